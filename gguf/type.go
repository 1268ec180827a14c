package gguf

import (
	"fmt"
	"math"
	"strings"
)

// Type is a tensor type as stored in a file (ggml's numbers).
type Type uint32

// The tensor types in use in 2026; the numbers left out were removed from the format.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	Q8_K   Type = 15
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ1S   Type = 19
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	IQ1M   Type = 29
	BF16   Type = 30
	TQ1_0  Type = 34
	TQ2_0  Type = 35
	MXFP4  Type = 39
	NVFP4  Type = 40
	Q1_0   Type = 41
	Q2_0   Type = 42
)

// typeInfo is a line of the table of tensor types: bytes 0 marks a type that was removed from the format.
type typeInfo struct {
	name         string
	block, bytes int // elements and bytes of one block
}

var types = [...]typeInfo{
	F32:    {"F32", 1, 4},
	F16:    {"F16", 1, 2},
	Q4_0:   {"Q4_0", 32, 18},
	Q4_1:   {"Q4_1", 32, 20},
	4:      {name: "Q4_2"},
	5:      {name: "Q4_3"},
	Q5_0:   {"Q5_0", 32, 22},
	Q5_1:   {"Q5_1", 32, 24},
	Q8_0:   {"Q8_0", 32, 34},
	Q8_1:   {"Q8_1", 32, 36},
	Q2_K:   {"Q2_K", 256, 84},
	Q3_K:   {"Q3_K", 256, 110},
	Q4_K:   {"Q4_K", 256, 144},
	Q5_K:   {"Q5_K", 256, 176},
	Q6_K:   {"Q6_K", 256, 210},
	Q8_K:   {"Q8_K", 256, 292},
	IQ2XXS: {"IQ2_XXS", 256, 66},
	IQ2XS:  {"IQ2_XS", 256, 74},
	IQ3XXS: {"IQ3_XXS", 256, 98},
	IQ1S:   {"IQ1_S", 256, 50},
	IQ4NL:  {"IQ4_NL", 32, 18},
	IQ3S:   {"IQ3_S", 256, 110},
	IQ2S:   {"IQ2_S", 256, 82},
	IQ4XS:  {"IQ4_XS", 256, 136},
	I8:     {"I8", 1, 1},
	I16:    {"I16", 1, 2},
	I32:    {"I32", 1, 4},
	I64:    {"I64", 1, 8},
	F64:    {"F64", 1, 8},
	IQ1M:   {"IQ1_M", 256, 56},
	BF16:   {"BF16", 1, 2},
	31:     {name: "Q4_0_4_4"},
	32:     {name: "Q4_0_4_8"},
	33:     {name: "Q4_0_8_8"},
	TQ1_0:  {"TQ1_0", 256, 54},
	TQ2_0:  {"TQ2_0", 256, 66},
	36:     {name: "IQ4_NL_4_4"},
	37:     {name: "IQ4_NL_4_8"},
	38:     {name: "IQ4_NL_8_8"},
	MXFP4:  {"MXFP4", 32, 17},
	NVFP4:  {"NVFP4", 64, 36},
	Q1_0:   {"Q1_0", 128, 18},
	Q2_0:   {"Q2_0", 64, 18},
}

func (t Type) info() typeInfo {
	if uint64(t) < uint64(len(types)) {
		return types[t]
	}
	return typeInfo{}
}

// Known reports whether t is a type in use: one whose block sizes are known.
func (t Type) Known() bool { return t.info().bytes > 0 }

// String returns the name as users write it: "Q4_K", "F32"; a number for a type without a name.
func (t Type) String() string {
	if n := t.info().name; n != "" {
		return n
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// BlockLen returns the number of elements of a block: 1 for plain numbers, 0 for a type that is not Known.
func (t Type) BlockLen() int { return t.info().block }

// BlockBytes returns the number of bytes of a block, 0 for a type that is not Known.
func (t Type) BlockBytes() int { return t.info().bytes }

// RowBytes returns the bytes of a row of cols elements. It fails with ErrUnsupported for a type that is not Known and
// with ErrCorrupt for a row that does not fill its blocks or whose size overflows.
func (t Type) RowBytes(cols int64) (int64, error) {
	i := t.info()
	switch {
	case i.bytes == 0 && i.name != "":
		return 0, fmt.Errorf("tensor type %d (%s) was removed from the format, convert the model again: %w", uint32(t), i.name, ErrUnsupported)
	case i.bytes == 0:
		return 0, fmt.Errorf("unknown tensor type %d, a newer version may know it: %w", uint32(t), ErrUnsupported)
	case cols < 0 || cols%int64(i.block) != 0:
		return 0, fmt.Errorf("a row of %d elements does not fill blocks of %d (%s): %w", cols, i.block, i.name, ErrCorrupt)
	case cols/int64(i.block) > math.MaxInt64/int64(i.bytes):
		return 0, fmt.Errorf("the bytes of a row of %d elements (%s) overflow: %w", cols, i.name, ErrCorrupt)
	}
	return cols / int64(i.block) * int64(i.bytes), nil
}

// ParseType returns the Known type of that name, in either case; ErrUnsupported for any other.
func ParseType(name string) (Type, error) {
	for t, i := range types {
		if i.bytes > 0 && strings.EqualFold(i.name, name) {
			return Type(t), nil
		}
	}
	return 0, fmt.Errorf("gguf: no tensor type is called %q: %w", name, ErrUnsupported)
}
