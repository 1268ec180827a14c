package gguf

import "encoding/binary"

// scales are where half-precision scales and minima lie in a block of a quantised type (ggml's block structs). IQ1_M
// spreads its one over four words, and types that are not here have scales of other kinds: neither is looked at.
var scales = map[Type][]int{
	Q4_0: {0}, Q4_1: {0, 2}, Q5_0: {0}, Q5_1: {0, 2}, Q8_0: {0}, Q8_1: {0, 2}, Q1_0: {0}, Q2_0: {0},
	Q2_K: {80, 82}, Q3_K: {108}, Q4_K: {0, 2}, Q5_K: {0, 2}, Q6_K: {208}, TQ1_0: {52}, TQ2_0: {64},
	IQ2XXS: {0}, IQ2XS: {0}, IQ2S: {0}, IQ3XXS: {0}, IQ3S: {0}, IQ1S: {0}, IQ4NL: {0}, IQ4XS: {0},
}

// halfExponent are the bits of a half that are all set in NaN and infinities.
const halfExponent = 0x7c00

// NotFinite finds the first block of b, whole blocks of t, with a scale (or, of plain numbers, a value) that is NaN or
// infinite.
func (t Type) NotFinite(b []byte) (block int, found bool) {
	switch t {
	case F16:
		return saturated(b, 2, halfExponent)
	case BF16:
		return saturated(b, 2, 0x7f80)
	case F32:
		return saturated(b, 4, 0x7f800000)
	}
	at, size := scales[t], t.BlockBytes()
	if at == nil {
		return 0, false
	}
	for from := 0; from < len(b); from += size {
		for _, offset := range at {
			if binary.LittleEndian.Uint16(b[from+offset:])&halfExponent == halfExponent {
				return from / size, true
			}
		}
	}
	return 0, false
}

// saturated finds the first number of so many bytes whose exponent's bits are all set, eight bytes at a time: where they
// are, what is left of the number after exclusive or is zero, and zero minus one borrows its highest bit.
func saturated(b []byte, bytes int, exponent uint64) (index int, found bool) {
	mask, ones := uint64(0), uint64(0)
	for shift := 0; shift < 64; shift += 8 * bytes {
		mask, ones = mask|exponent<<shift, ones|1<<shift
	}
	high, at := ones<<(8*bytes-1), 0
	for ; at+8 <= len(b); at += 8 {
		if v := binary.LittleEndian.Uint64(b[at:])&mask ^ mask; (v-ones)&^v&high != 0 {
			break
		}
	}
	for ; at < len(b); at += bytes {
		x := uint64(0)
		for i, c := range b[at : at+bytes] {
			x |= uint64(c) << (8 * i)
		}
		if x&exponent == exponent {
			return at / bytes, true
		}
	}
	return 0, false
}
