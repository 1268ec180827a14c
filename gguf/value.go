package gguf

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Kind is the type of a metadata value as stored in a file.
type Kind uint32

// The kinds of values.
const (
	KindUint8   Kind = 0
	KindInt8    Kind = 1
	KindUint16  Kind = 2
	KindInt16   Kind = 3
	KindUint32  Kind = 4
	KindInt32   Kind = 5
	KindFloat32 Kind = 6
	KindBool    Kind = 7
	KindString  Kind = 8
	KindArray   Kind = 9
	KindUint64  Kind = 10
	KindInt64   Kind = 11
	KindFloat64 Kind = 12
)

// kinds holds the name of each kind and the fewest bytes a value of it takes in a file: an empty string has its length,
// an empty array its kind and length.
var kinds = [...]struct {
	name  string
	bytes int
}{
	KindUint8: {"uint8", 1}, KindInt8: {"int8", 1}, KindUint16: {"uint16", 2}, KindInt16: {"int16", 2},
	KindUint32: {"uint32", 4}, KindInt32: {"int32", 4}, KindFloat32: {"float32", 4}, KindBool: {"bool", 1},
	KindString: {"string", 8}, KindArray: {"array", 12}, KindUint64: {"uint64", 8}, KindInt64: {"int64", 8},
	KindFloat64: {"float64", 8},
}

func (k Kind) known() bool { return uint64(k) < uint64(len(kinds)) }

// String returns the name of the kind: "uint32", "array".
func (k Kind) String() string {
	if k.known() {
		return kinds[k].name
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Value is one value of the metadata.
type Value struct {
	kind, elem Kind // elem: of an array's elements
	// data is a bool, string or number of the kind's Go type; for arrays a slice of them, stringArray for strings and
	// []Value for arrays of arrays.
	data any
}

// stringArray holds many strings in one piece of memory: string i ends at ends[i], where the next begins.
type stringArray struct {
	text string
	ends []uint32
}

func (a stringArray) strings() []string {
	s, from := make([]string, len(a.ends)), uint32(0)
	for i, to := range a.ends {
		s[i], from = a.text[from:to], to
	}
	return s
}

// Kind returns the kind of the value.
func (v Value) Kind() Kind { return v.kind }

// Len returns the number of elements of an array, 0 for other values.
func (v Value) Len() int {
	switch d := v.data.(type) {
	case []uint8:
		return len(d)
	case []int8:
		return len(d)
	case []uint16:
		return len(d)
	case []int16:
		return len(d)
	case []uint32:
		return len(d)
	case []int32:
		return len(d)
	case []uint64:
		return len(d)
	case []int64:
		return len(d)
	case []float32:
		return len(d)
	case []float64:
		return len(d)
	case []bool:
		return len(d)
	case stringArray:
		return len(d.ends)
	case []Value:
		return len(d)
	}
	return 0
}

// Any returns the value as the Go type of its kind, arrays as slices (arrays of arrays as []Value). Slices of numbers
// belong to the File; a slice of strings is made anew by each call, its strings share memory.
func (v Value) Any() any {
	if a, ok := v.data.(stringArray); ok {
		return a.strings()
	}
	return v.data
}

// String returns the value as JSON, a string without its quotes.
func (v Value) String() string {
	if s, ok := v.data.(string); ok {
		return s
	}
	return string(v.appendJSON(nil))
}

// MarshalJSON writes numbers exactly, and NaN and infinities as strings.
func (v Value) MarshalJSON() ([]byte, error) { return v.appendJSON(nil), nil }

func (v Value) appendJSON(b []byte) []byte {
	switch d := v.data.(type) {
	case string:
		return appendString(b, d)
	case bool:
		return strconv.AppendBool(b, d)
	case float32:
		return appendFloat(b, float64(d), 32)
	case float64:
		return appendFloat(b, d, 64)
	case stringArray:
		return appendList(b, d.strings(), appendString)
	case []bool:
		return appendList(b, d, strconv.AppendBool)
	case []float32:
		return appendList(b, d, func(b []byte, x float32) []byte { return appendFloat(b, float64(x), 32) })
	case []float64:
		return appendList(b, d, func(b []byte, x float64) []byte { return appendFloat(b, x, 64) })
	case []Value:
		return appendList(b, d, func(b []byte, x Value) []byte { return x.appendJSON(b) })
	case []uint64:
		return appendList(b, d, func(b []byte, x uint64) []byte { return strconv.AppendUint(b, x, 10) })
	case uint64:
		return strconv.AppendUint(b, d, 10)
	}
	if i, ok := asInt(v.data); ok {
		return strconv.AppendInt(b, i, 10)
	}
	is, _ := asInts(v.data)
	return appendList(b, is, func(b []byte, x int64) []byte { return strconv.AppendInt(b, x, 10) })
}

func appendList[T any](b []byte, list []T, one func([]byte, T) []byte) []byte {
	b = append(b, '[')
	for i, x := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, x)
	}
	return append(b, ']')
}

func appendString(b []byte, s string) []byte {
	j, err := json.Marshal(s)
	if err != nil { // strings always marshal
		panic(err)
	}
	return append(b, j...)
}

func appendFloat(b []byte, x float64, bits int) []byte {
	s := strconv.FormatFloat(x, 'g', -1, bits)
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return append(append(append(b, '"'), s...), '"')
	}
	return append(b, s...)
}

// asInt converts a number of any integer type that fits.
func asInt(x any) (int64, bool) {
	switch x := x.(type) {
	case uint8:
		return int64(x), true
	case int8:
		return int64(x), true
	case uint16:
		return int64(x), true
	case int16:
		return int64(x), true
	case uint32:
		return int64(x), true
	case int32:
		return int64(x), true
	case int64:
		return x, true
	case uint64:
		return int64(x), x <= math.MaxInt64
	}
	return 0, false
}

// asInts converts a slice of any integer type, if every number fits.
func asInts(x any) ([]int64, bool) {
	switch x := x.(type) {
	case []uint8:
		return convert[uint8, int64](x), true
	case []int8:
		return convert[int8, int64](x), true
	case []uint16:
		return convert[uint16, int64](x), true
	case []int16:
		return convert[int16, int64](x), true
	case []uint32:
		return convert[uint32, int64](x), true
	case []int32:
		return convert[int32, int64](x), true
	case []int64:
		return convert[int64, int64](x), true
	case []uint64:
		for _, u := range x {
			if u > math.MaxInt64 {
				return nil, false
			}
		}
		return convert[uint64, int64](x), true
	}
	return nil, false
}

type number interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64
}

func convert[A, B number](a []A) []B {
	b := make([]B, len(a))
	for i, x := range a {
		b[i] = B(x)
	}
	return b
}

// A getter returns (value, true, nil) when the key is present and its value converts without loss; (zero, false, nil)
// when it is absent; an error that wraps ErrCorrupt when it has another kind or does not fit.

// Uint returns a whole number of any kind that is not negative.
func (f *File) Uint(key string) (uint64, bool, error) {
	return get(f, key, "a number of 0 or more", func(v Value) (uint64, bool) {
		if u, ok := v.data.(uint64); ok {
			return u, true
		}
		i, ok := asInt(v.data)
		return uint64(i), ok && i >= 0
	})
}

// Int returns a whole number of any kind.
func (f *File) Int(key string) (int64, bool, error) {
	return get(f, key, "a whole number below 2^63", func(v Value) (int64, bool) { return asInt(v.data) })
}

// Float returns a number of any kind.
func (f *File) Float(key string) (float64, bool, error) {
	return get(f, key, "a number", func(v Value) (float64, bool) {
		switch x := v.data.(type) {
		case float32:
			return float64(x), true
		case float64:
			return x, true
		}
		i, ok := asInt(v.data)
		return float64(i), ok
	})
}

// Bool returns a bool.
func (f *File) Bool(key string) (bool, bool, error) { return exact[bool](f, key, "a bool") }

// String returns a string.
func (f *File) String(key string) (string, bool, error) { return exact[string](f, key, "a string") }

// Strings returns an array of strings; the slice is made anew, its strings share one piece of memory with the File.
func (f *File) Strings(key string) ([]string, bool, error) {
	a, ok, err := exact[stringArray](f, key, "an array of strings")
	if !ok {
		return nil, false, err
	}
	return a.strings(), true, nil
}

// Ints returns an array of whole numbers of any kind.
func (f *File) Ints(key string) ([]int64, bool, error) {
	return get(f, key, "an array of whole numbers", func(v Value) ([]int64, bool) { return asInts(v.data) })
}

// Floats returns an array of numbers of any kind.
func (f *File) Floats(key string) ([]float64, bool, error) {
	return get(f, key, "an array of numbers", func(v Value) ([]float64, bool) {
		switch x := v.data.(type) {
		case []float32:
			return convert[float32, float64](x), true
		case []float64:
			return convert[float64, float64](x), true
		}
		is, ok := asInts(v.data)
		return convert[int64, float64](is), ok
	})
}

func exact[T any](f *File, key, want string) (T, bool, error) {
	return get(f, key, want, func(v Value) (T, bool) { x, ok := v.data.(T); return x, ok })
}

func get[T any](f *File, key, want string, as func(Value) (T, bool)) (T, bool, error) {
	var zero T
	v, ok := f.values[key]
	if !ok {
		return zero, false, nil
	}
	x, ok := as(v)
	if !ok {
		return zero, false, fmt.Errorf("gguf: %s: key %s is %s, wanted %s: %w", f.Shards[0].Path, short(key), v.describe(), want, ErrCorrupt)
	}
	return x, true, nil
}

// describe names a value in an error: its kind and, if that is short, what it is.
func (v Value) describe() string {
	if v.kind == KindArray {
		return fmt.Sprintf("an array of %d %s", v.Len(), v.elem)
	}
	if v.kind == KindString {
		return "the string " + short(v.String())
	}
	return fmt.Sprintf("the %s %s", v.kind, v)
}

// short quotes a text of a file for an error: one line, of bounded length.
func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return strconv.Quote(s)
}
