package synth

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

var quantized = []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q5_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4NL, gguf.IQ4XS, gguf.MXFP4}

// Blocks of every type hold weights of mean 0 and the wanted standard deviation, none of them infinite or far out.
func TestBlockStatistics(t *testing.T) {
	for _, typ := range quantized {
		for _, std := range []float64{0.003, 0.02, 1} {
			m := newMaker(context.Background(), &shape{seed: 4}, nil)
			raw := make([]byte, 1<<16/typ.BlockLen()*typ.BlockBytes())
			if err := m.blocks("x", typ, std)(raw, 0); err != nil {
				t.Fatal(err)
			}
			var sum, square, most float64
			x := dequantize(typ, raw)
			for _, v := range x {
				sum, square, most = sum+v, square+v*v, max(most, math.Abs(v))
			}
			mean, dev := sum/float64(len(x)), math.Sqrt(square/float64(len(x)))
			if len(x) != 1<<16 || math.Abs(mean) > 0.03*std || math.Abs(dev/std-1) > 0.03 || !(most < 8*std) {
				t.Errorf("%s: %d weights, mean %g, deviation %g for %g, largest %g", typ, len(x), mean, dev, std, most)
			}
		}
	}
}

// Any piece of a tensor comes out as in the whole.
func TestPieces(t *testing.T) {
	for _, typ := range quantized {
		m := newMaker(context.Background(), &shape{seed: 4}, nil)
		data, n := m.blocks("x", typ, 0.1), typ.BlockBytes()
		whole, parts := make([]byte, 60*n), make([]byte, 60*n)
		cuts := []int{0, 1, 4, 25, 59, 60}
		err := data(whole, 0)
		for i := len(cuts) - 1; i > 0 && err == nil; i-- {
			err = data(parts[cuts[i-1]*n:cuts[i]*n], int64(cuts[i-1]*n))
		}
		if err != nil || !bytes.Equal(whole, parts) {
			t.Errorf("%s: pieces differ from the whole (%v)", typ, err)
		}
	}
}

func TestHalf(t *testing.T) {
	for u := range uint16(0x7c00) { // every finite number that is not negative
		x := fromHalf(u)
		if got := f16(x); got != u {
			t.Fatalf("%g is %04x, not %04x", x, got, u)
		}
		if got := f16(-x); u > 0 && got != u|0x8000 {
			t.Fatalf("%g is %04x", -x, got)
		}
		if next := fromHalf(u + 1); u < 0x7bff {
			if got, even := f16((x+next)/2), u+u&1; got != even {
				t.Fatalf("between %g and %g: %04x, not %04x", x, next, got, even)
			}
		}
	}
}

// fromHalf is the definition: sign, 5 bits of exponent, 10 of mantissa.
func fromHalf(u uint16) float64 {
	exp, frac := int(u>>10&31), float64(u&1023)
	x := math.Ldexp(frac, -24)
	if exp > 0 {
		x = math.Ldexp(frac+1024, exp-25)
	}
	if u>>15 == 1 {
		return -x
	}
	return x
}

// dequantize follows ggml's block layouts in the plainest way.
func dequantize(t gguf.Type, raw []byte) []float64 {
	var out []float64
	for ; len(raw) > 0; raw = raw[t.BlockBytes():] {
		out = append(out, dequantizeBlock(t, raw[:t.BlockBytes()])...)
	}
	return out
}

func dequantizeBlock(t gguf.Type, b []byte) []float64 {
	u16 := binary.LittleEndian.Uint16
	d := fromHalf(u16(append(b[:len(b):len(b)], 0, 0))) // of most types; of no use for blocks of one float
	x := make([]float64, t.BlockLen())
	nibbles := func(q []byte, f func(i int, code int)) {
		for i, c := range q {
			f(i, int(c&15))
			f(i+len(q), int(c>>4))
		}
	}
	switch t {
	case gguf.F32:
		x[0] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case gguf.F16:
		x[0] = d
	case gguf.BF16:
		x[0] = float64(math.Float32frombits(uint32(u16(b)) << 16))
	case gguf.Q8_0:
		for i := range x {
			x[i] = d * float64(int8(b[2+i]))
		}
	case gguf.Q4_0:
		nibbles(b[2:], func(i, c int) { x[i] = d * float64(c-8) })
	case gguf.Q5_0:
		high := binary.LittleEndian.Uint32(b[2:])
		nibbles(b[6:], func(i, c int) { x[i] = d * float64(c|int(high>>i&1)<<4-16) })
	case gguf.IQ4NL:
		nibbles(b[2:], func(i, c int) { x[i] = d * levelsIQ4[c] })
	case gguf.MXFP4:
		nibbles(b[1:], func(i, c int) { x[i] = math.Ldexp(levelsE2M1[c], int(b[0])-128) })
	case gguf.IQ4XS:
		high := u16(b[2:])
		for s := range 8 {
			scale := int(b[4+s/2]>>(4*(s%2))&15) | int(high>>(2*s)&3)<<4
			nibbles(b[8+16*s:8+16*s+16], func(i, c int) { x[32*s+i] = d * float64(scale-32) * levelsIQ4[c] })
		}
	case gguf.Q6_K:
		d = fromHalf(u16(b[208:]))
		for i := range x {
			half, group, j := i/128, i/32%4, i%32
			low := b[64*half+32*(group%2)+j] >> (4 * (group / 2)) & 15
			high := b[128+32*half+j] >> (2 * group) & 3
			x[i] = d * float64(int8(b[192+i/16])) * float64(int(low|high<<4)-32)
		}
	case gguf.Q4_K, gguf.Q5_K:
		dmin, s := fromHalf(u16(b[2:])), b[4:16]
		for i := range x {
			g := i / 32
			scale, least := s[g%4]&63, s[g%4+4]&63
			if g >= 4 {
				scale, least = s[g+4]&15|s[g-4]>>6<<4, s[g+4]>>4|s[g]>>6<<4
			}
			code := int(b[len(b)-128+32*(g/2)+i%32] >> (4 * (g % 2)) & 15)
			if t == gguf.Q5_K {
				code |= int(b[16+i%32]>>g&1) << 4
			}
			x[i] = d*float64(scale)*float64(code) - dmin*float64(least)
		}
	}
	return x
}
