package kernels

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

// format is how a type of matrix is read: 256 weights (a super-block, eight blocks of 32, or what makes them up) at a
// time, unpacked to signed codes, integer scales and floats.
type format struct {
	form     Form
	size     int // bytes of 256 weights; of one float for FormF32
	unpackK  func(p []byte, t *blockK)
	unpack32 func(p []byte, t *block32)
	load     func(p []byte) float32
	mins     bool // a minimum besides the scale
	halves   bool // blocks of 32 with a scale per 16
}

// blockK is a super-block: weight i is d * scale[i/16] * q[i] - dmin * min[i/16].
type blockK struct {
	q          [256]int8
	scale, min [16]int16
	d, dmin    float32
}

// block32 is eight blocks of 32: weight i is d[i/16] * q[i] + m[i/32].
type block32 struct {
	q    [256]int8
	d    [16]float32
	m    [8]float32
	last [272]byte // of packed weights: a row's end, filled up with zeros
}

// formats by type; an entry without a form is a type that no set multiplies.
var formats = [...]format{
	gguf.F32:    {form: FormF32, size: 4, load: f32},
	gguf.F16:    {form: FormF32, size: 2, load: half},
	gguf.BF16:   {form: FormF32, size: 2, load: bf16},
	gguf.Q2_K:   {form: FormK, size: 84, unpackK: unpackQ2K, mins: true},
	gguf.Q3_K:   {form: FormK, size: 110, unpackK: unpackQ3K},
	gguf.Q4_K:   {form: FormK, size: 144, unpackK: unpackQ4K, mins: true},
	gguf.Q5_K:   {form: FormK, size: 176, unpackK: unpackQ5K, mins: true},
	gguf.Q6_K:   {form: FormK, size: 210, unpackK: unpackQ6K},
	gguf.IQ4XS:  {form: FormK, size: 136, unpackK: unpackIQ4XS},
	gguf.IQ2XXS: {form: FormK, size: 66, unpackK: unpackIQ2XXS},
	gguf.IQ2XS:  {form: FormK, size: 74, unpackK: unpackIQ2XS},
	gguf.IQ2S:   {form: FormK, size: 82, unpackK: unpackIQ2S},
	gguf.IQ3XXS: {form: FormK, size: 98, unpackK: unpackIQ3XXS},
	gguf.IQ3S:   {form: FormK, size: 110, unpackK: unpackIQ3S},
	gguf.IQ1S:   {form: FormK, size: 50, unpackK: unpackIQ1S},
	gguf.IQ1M:   {form: FormK, size: 56, unpackK: unpackIQ1M},
	gguf.TQ1_0:  {form: FormK, size: 54, unpackK: unpackTQ1},
	gguf.TQ2_0:  {form: FormK, size: 66, unpackK: unpackTQ2},
	gguf.Q8_0:   {form: Form32, size: 272, unpack32: unpackQ8},
	gguf.Q4_0:   {form: Form32, size: 144, unpack32: unpackQ4},
	gguf.Q4_1:   {form: Form32, size: 160, unpack32: unpackQ41, mins: true},
	gguf.Q5_0:   {form: Form32, size: 176, unpack32: unpackQ5},
	gguf.Q5_1:   {form: Form32, size: 192, unpack32: unpackQ51, mins: true},
	gguf.IQ4NL:  {form: Form32, size: 144, unpack32: unpackIQ4NL},
	gguf.MXFP4:  {form: Form32, size: 136, unpack32: unpackMXFP4},
	gguf.NVFP4:  {form: Form32, size: 144, unpack32: unpackNVFP4, halves: true},
	gguf.Q1_0:   {form: Form32, size: 36, unpack32: unpackQ10},
	gguf.Q2_0:   {form: Form32, size: 72, unpack32: unpackQ20},
}

// lookup returns the format of t; ok is false for a type that no set multiplies.
func lookup(t gguf.Type) (f *format, ok bool) {
	if uint64(t) >= uint64(len(formats)) || formats[t].form == 0 {
		return nil, false
	}
	return &formats[t], true
}

// unit is the number of weights that Mat counts a row in, index the place of the form in the arrays of Acts.
func (f *format) unit() int { return [5]int{FormF32: 1, FormK: 256, Form32: 32}[f.form] }

func (f *format) index() int { return bits.TrailingZeros8(uint8(f.form)) }

// Blocks that dequantising unpacks to; every call of an unpacker lets its block escape.
var (
	blocksK  = sync.Pool{New: func() any { return new(blockK) }}
	blocks32 = sync.Pool{New: func() any { return new(block32) }}
)

// dequantize writes the weights of src. Products are rounded before sums: float32() forbids fusing them.
func (f *format) dequantize(dst []float32, src []byte) {
	switch f.form {
	case FormF32:
		for i := range dst {
			dst[i] = f.load(src[i*f.size:])
		}
	case FormK:
		t := blocksK.Get().(*blockK)
		defer blocksK.Put(t)
		*t = blockK{}
		for ; len(dst) > 0; dst, src = dst[256:], src[f.size:] {
			f.unpackK(src, t)
			for i, q := range t.q {
				dst[i] = float32(float32(t.d*float32(t.scale[i/16]))*float32(q)) - float32(t.dmin*float32(t.min[i/16]))
			}
		}
	case Form32:
		t := blocks32.Get().(*block32)
		defer blocks32.Put(t)
		*t = block32{}
		for len(dst) > 0 {
			f.group(src, t)
			n := min(256, len(dst))
			for i := range n {
				dst[i] = float32(t.d[i/16] * float32(t.q[i]))
				if f.mins { // adding 0 would turn -0 into 0
					dst[i] += t.m[i/32]
				}
			}
			dst, src = dst[n:], src[min(f.size, len(src)):]
		}
	}
}

// group unpacks eight blocks of 32; where a row ends, the missing ones count as zeros.
func (f *format) group(p []byte, t *block32) {
	if len(p) < f.size {
		clear(t.last[copy(t.last[:], p):])
		p = t.last[:f.size]
	}
	f.unpack32(p, t)
}

// ---- numbers -----------------------------------------------------------------------------------------------------

func f32(p []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(p)) }

func bf16(p []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(p)) << 16)
}

// half converts IEEE half precision, exactly.
func half(p []byte) float32 {
	h := uint32(binary.LittleEndian.Uint16(p))
	sign, e, m := h&0x8000<<16, h>>10&31, h&1023
	switch e {
	case 0:
		f := float32(m) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}

// halfE8M0 is half of 2^(e-127): MXFP4's codes are twice their value.
func halfE8M0(e byte) float32 {
	if e < 2 {
		return math.Float32frombits(0x00200000 << e)
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

// halfUE4M3 is half of an unsigned float of 4 bits exponent and 3 bits mantissa; 0x7f counts as 0.
func halfUE4M3(x byte) float32 {
	if x == 0x7f {
		return 0
	}
	e, m := uint32(x>>3&15), uint32(x&7)
	if e == 0 {
		return float32(m) * 0x1p-10
	}
	return math.Float32frombits((e+119)<<23 | m<<20)
}

// fma is a*b + c rounded once: the float64 sum is rounded to odd, which makes the second rounding harmless (Boldo and
// Melquiond, 2008).
func fma(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return float32(s)
	}
	t := s - p
	e := (p - (s - t)) + (z - t)
	if e != 0 && math.Float64bits(s)&1 == 0 {
		s = math.Nextafter(s, math.Inf(sign(e)))
	}
	return float32(s)
}

func sign(x float64) int {
	if x < 0 {
		return -1
	}
	return 1
}

// ---- super-blocks of 256 -----------------------------------------------------------------------------------------

func unpackQ2K(p []byte, t *blockK) { // scales[16] qs[64] d dmin
	for i := range 16 {
		t.scale[i], t.min[i] = int16(p[i]&15), int16(p[i]>>4)
	}
	for i := range t.q {
		t.q[i] = int8(p[16+i/128*32+i%32] >> (i / 32 % 4 * 2) & 3)
	}
	t.d, t.dmin = half(p[80:]), half(p[82:])
}

func unpackQ3K(p []byte, t *blockK) { // hmask[32] qs[64] scales[12] d
	s := p[96:]
	for i := range 16 {
		t.scale[i] = int16(s[i%8]>>(i/8*4)&15|s[8+i%4]>>(i/4*2)&3<<4) - 32
	}
	for i := range t.q {
		t.q[i] = int8(p[32+i/128*32+i%32]>>(i/32%4*2)&3|p[i%32]>>(i/32)&1<<2) - 4
	}
	t.d = half(p[108:])
}

func scalesQ4K(p []byte, t *blockK) { // d dmin scales[12], 6 bits each
	s := p[4:]
	for g := range 8 {
		scale, m := s[g]&63, s[g+4]&63
		if g >= 4 {
			scale, m = s[g+4]&15|s[g-4]>>6<<4, s[g+4]>>4|s[g]>>6<<4
		}
		t.scale[2*g], t.scale[2*g+1] = int16(scale), int16(scale)
		t.min[2*g], t.min[2*g+1] = int16(m), int16(m)
	}
	t.d, t.dmin = half(p), half(p[2:])
}

func unpackQ4K(p []byte, t *blockK) { // header, qs[128]
	scalesQ4K(p, t)
	for i := range t.q {
		t.q[i] = int8(p[16+i/64*32+i%32] >> (i / 32 % 2 * 4) & 15)
	}
}

func unpackQ5K(p []byte, t *blockK) { // header, qh[32] qs[128]
	scalesQ4K(p, t)
	for i := range t.q {
		t.q[i] = int8(p[48+i/64*32+i%32]>>(i/32%2*4)&15 | p[16+i%32]>>(i/32)&1<<4)
	}
}

func unpackQ6K(p []byte, t *blockK) { // ql[128] qh[64] scales[16] d
	for i := range 16 {
		t.scale[i] = int16(int8(p[192+i]))
	}
	for i := range t.q {
		n, l := i/128, i%128
		t.q[i] = int8(p[64*n+l%64]>>(l/64*4)&15|p[128+32*n+l%32]>>(l/32*2)&3<<4) - 32
	}
	t.d = half(p[208:])
}

var (
	codesIQ4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	codesFP4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12} // twice the value
)

func unpackIQ4XS(p []byte, t *blockK) { // d scales_h[2] scales_l[4] qs[128]
	h := binary.LittleEndian.Uint16(p[2:])
	for i := range 16 {
		t.scale[i] = int16(p[4+i/4]>>(i/2%2*4)&15|uint8(h>>(i/2*2))&3<<4) - 32
	}
	for i := range t.q {
		t.q[i] = codesIQ4[p[8+i/32*16+i%16]>>(i/16%2*4)&15]
	}
	t.d = half(p)
}

func ones(t *blockK) {
	for i := range t.scale {
		t.scale[i] = 1
	}
}

func unpackTQ1(p []byte, t *blockK) { // qs[48] qh[4] d; base 3 digits, highest first
	pow3 := [5]byte{1, 3, 9, 27, 81}
	digit := func(b byte, n int) int8 { return int8(int(b*pow3[n])*3>>8) - 1 }
	for i := range 160 {
		t.q[i] = digit(p[i%32], i/32)
	}
	for i := range 80 {
		t.q[160+i] = digit(p[32+i%16], i/16)
	}
	for i := range 16 {
		t.q[240+i] = digit(p[48+i%4], i/4)
	}
	ones(t)
	t.d = half(p[52:])
}

func unpackTQ2(p []byte, t *blockK) { // qs[64] d
	for i := range t.q {
		t.q[i] = int8(p[i/128*32+i%32]>>(i/32%4*2)&3) - 1
	}
	ones(t)
	t.d = half(p[64:])
}

// signed8 writes eight codes of a book, negated where the bit is set.
func signed8(q []int8, grid uint64, signs uint8) {
	for i := range q[:8] {
		q[i] = int8(grid >> (8 * i))
		if signs>>i&1 != 0 {
			q[i] = -q[i]
		}
	}
}

// evenSigns completes seven stored signs: the eighth makes their number even.
func evenSigns(s uint32) uint8 { return uint8(s&127) | uint8(bits.OnesCount32(s&127)&1)<<7 }

func unpackIQ2XXS(p []byte, t *blockK) { // d, 8 x (4 indices; 4 x 7 signs, scale)
	for b := range 8 {
		aux := binary.LittleEndian.Uint32(p[2+8*b+4:])
		t.scale[2*b] = int16(2*(aux>>28) + 1)
		t.scale[2*b+1] = t.scale[2*b]
		for l := range 4 {
			signed8(t.q[32*b+8*l:], books.IQ2XXS[p[2+8*b+l]], evenSigns(aux>>(7*l)))
		}
	}
	t.d = half(p) * 0.125
}

// oddScales are sixteen scales of 4 bits, each 2s + 1.
func oddScales(p []byte, t *blockK) {
	for i := range 16 {
		t.scale[i] = 2*int16(p[i/2]>>(i%2*4)&15) + 1
	}
}

func unpackIQ2XS(p []byte, t *blockK) { // d, 32 x (9 bits index, 7 signs), scales[8]
	oddScales(p[66:], t)
	for i := range 32 {
		v := binary.LittleEndian.Uint16(p[2+2*i:])
		signed8(t.q[8*i:], books.IQ2XS[v&511], evenSigns(uint32(v>>9)))
	}
	t.d = half(p) * 0.125
}

func unpackIQ2S(p []byte, t *blockK) { // d, indices[32] signs[32] qh[8] scales[8]
	oddScales(p[74:], t)
	for i := range 32 {
		signed8(t.q[8*i:], books.IQ2S[int(p[2+i])|int(p[66+i/4]>>(i%4*2)&3)<<8], p[34+i])
	}
	t.d = half(p) * 0.125
}

func unpackIQ3XXS(p []byte, t *blockK) { // d, indices[64], 8 x (4 x 7 signs, scale)
	for b := range 8 {
		aux := binary.LittleEndian.Uint32(p[66+4*b:])
		t.scale[2*b] = int16(2*(aux>>28) + 1)
		t.scale[2*b+1] = t.scale[2*b]
		for l := range 4 {
			i := p[2+8*b+2*l:]
			signed8(t.q[32*b+8*l:], uint64(books.IQ3XXS[i[0]])|uint64(books.IQ3XXS[i[1]])<<32, evenSigns(aux>>(7*l)))
		}
	}
	t.d = half(p) * 0.25
}

func unpackIQ3S(p []byte, t *blockK) { // d, indices[64] qh[8] signs[32] scales[4]
	for i := range 16 {
		t.scale[i] = 2*int16(p[106+i/4]>>(i/2%2*4)&15) + 1
	}
	for i := range 32 {
		h := int(p[66+i/4] >> (i % 4 * 2))
		a, b := books.IQ3S[int(p[2+2*i])|h&1<<8], books.IQ3S[int(p[3+2*i])|h&2<<7]
		signed8(t.q[8*i:], uint64(a)|uint64(b)<<32, p[74+i])
	}
	t.d = half(p)
}

// eighths writes eight times (code of -1, 0, 1 plus or minus an eighth).
func eighths(q []int8, grid uint64, minus bool) {
	shift := int8(1)
	if minus {
		shift = -1
	}
	for i := range q[:8] {
		q[i] = 8*int8(grid>>(8*i)) + shift
	}
}

func unpackIQ1S(p []byte, t *blockK) { // d, indices[32], 8 x (4 x 3 bits of index, scale, sign of the shift)
	for i := range 32 {
		h := binary.LittleEndian.Uint16(p[34+i/4*2:])
		t.scale[i/2] = int16(2*(h>>12&7) + 1)
		eighths(t.q[8*i:], books.IQ1S[int(p[2+i])|int(h>>(3*(i%4))&7)<<8], h>>15 != 0)
	}
	t.d = half(p) * 0.125
}

func unpackIQ1M(p []byte, t *blockK) { // indices[32] qh[16] scales[8], whose top nibbles are d
	s := p[48:]
	for i := range 16 {
		t.scale[i] = int16(2*(binary.LittleEndian.Uint16(s[i/4*2:])>>(i%4*3)&7) + 1)
	}
	for i := range 32 {
		h := p[32+i/2] >> (i % 2 * 4)
		eighths(t.q[8*i:], books.IQ1S[int(p[i])|int(h&7)<<8], h&8 != 0)
	}
	t.d = half([]byte{s[1]>>4 | s[3]>>4<<4, s[5]>>4 | s[7]>>4<<4}) * 0.125
}

// ---- blocks of 32 and multiples, eight blocks of 32 at a time ------------------------------------------------------

// nibbles writes the 32 codes of block b from 16 bytes, low halves first, through f.
func (t *block32) nibbles(b int, d float32, qs []byte, f func(i int, v byte) int8) {
	t.d[2*b], t.d[2*b+1] = d, d
	for i := range 32 {
		t.q[32*b+i] = f(i, qs[i%16]>>(i/16*4)&15)
	}
}

func unpackQ8(p []byte, t *block32) { // d qs[32]
	for b := range 8 {
		p := p[34*b:]
		t.d[2*b] = half(p)
		t.d[2*b+1] = t.d[2*b]
		for i := range 32 {
			t.q[32*b+i] = int8(p[2+i])
		}
	}
}

func unpackQ4(p []byte, t *block32) { // d qs[16]
	for b := range 8 {
		p := p[18*b:]
		t.nibbles(b, half(p), p[2:], func(_ int, v byte) int8 { return int8(v) - 8 })
	}
}

func unpackQ41(p []byte, t *block32) { // d m qs[16]
	for b := range 8 {
		p := p[20*b:]
		t.nibbles(b, half(p), p[4:], func(_ int, v byte) int8 { return int8(v) })
		t.m[b] = half(p[2:])
	}
}

func unpackQ5(p []byte, t *block32) { // d qh[4] qs[16]
	for b := range 8 {
		p := p[22*b:]
		h := binary.LittleEndian.Uint32(p[2:])
		t.nibbles(b, half(p), p[6:], func(i int, v byte) int8 { return int8(v|byte(h>>i&1)<<4) - 16 })
	}
}

func unpackQ51(p []byte, t *block32) { // d m qh[4] qs[16]
	for b := range 8 {
		p := p[24*b:]
		h := binary.LittleEndian.Uint32(p[4:])
		t.nibbles(b, half(p), p[8:], func(i int, v byte) int8 { return int8(v | byte(h>>i&1)<<4) })
		t.m[b] = half(p[2:])
	}
}

func unpackIQ4NL(p []byte, t *block32) { // d qs[16]
	for b := range 8 {
		p := p[18*b:]
		t.nibbles(b, half(p), p[2:], func(_ int, v byte) int8 { return codesIQ4[v] })
	}
}

func unpackMXFP4(p []byte, t *block32) { // e qs[16]
	for b := range 8 {
		p := p[17*b:]
		t.nibbles(b, halfE8M0(p[0]), p[1:], func(_ int, v byte) int8 { return codesFP4[v] })
	}
}

func unpackNVFP4(p []byte, t *block32) { // four blocks of 64: d[4] qs[32]
	for s := range 16 {
		b := p[s/4*36:]
		t.d[s] = halfUE4M3(b[s%4])
		for i := range 16 {
			t.q[16*s+i] = codesFP4[b[4+s%4*8+i%8]>>(i/8*4)&15]
		}
	}
}

func unpackQ10(p []byte, t *block32) { // two blocks of 128: d qs[16]
	for i := range t.q {
		t.d[i/16] = half(p[i/128*18:])
		t.q[i] = int8(p[i/128*18+2+i%128/8]>>(i%8)&1)*2 - 1
	}
}

func unpackQ20(p []byte, t *block32) { // four blocks of 64: d qs[16]
	for i := range t.q {
		t.d[i/16] = half(p[i/64*18:])
		t.q[i] = int8(p[i/64*18+2+i%64/4]>>(i%4*2)&3) - 1
	}
}

// ---- operations --------------------------------------------------------------------------------------------------

// plain is the Go twin of the C sets: slow, and easy to check by eye against ggml_cgo/blocks.h.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) HasWide(uint32) bool { return false }

func (plain) Wide(uint32, unsafe.Pointer, int, int, unsafe.Pointer, int, int, int, *float32, int) {}

func (plain) PackK(ggml_cgo.Columns, int, unsafe.Pointer) {}

func (plain) Pack32(ggml_cgo.Columns, int, unsafe.Pointer) {}

func (plain) Rows(typ uint32, w unsafe.Pointer, rowBytes, rows int, x *ggml_cgo.Columns, n int, y *float32, ldy int) {
	f := &formats[typ]
	out := unsafe.Slice(y, (len(x.Index)-1)*ldy+rows)
	for r := range rows {
		row := unsafe.Slice((*byte)(unsafe.Add(w, r*rowBytes)), rowBytes)
		for c, i := range x.Index {
			col := unsafe.Add(x.Base, int(i)*x.Stride)
			switch f.form {
			case FormF32:
				out[c*ldy+r] = f.dotFloats(row, unsafe.Slice((*float32)(col), n))
			case FormK:
				out[c*ldy+r] = f.dotK(row, unsafe.Slice((*actK)(col), (n+3)/4), n)
			case Form32:
				out[c*ldy+r] = f.dot32(row, unsafe.Slice((*act32)(col), (n+7)/8), n)
			}
		}
	}
}

func (f *format) dotFloats(row []byte, x []float32) float32 {
	var lane [32]float32
	for i, v := range x {
		lane[i%32] += float32(f.load(row[i*f.size:]) * v)
	}
	for n := 16; n > 0; n /= 2 {
		for i := range n {
			lane[i] += lane[i+n]
		}
	}
	return lane[0]
}

func dot(a, b []int8) (sum int32) {
	for i := range a {
		sum += int32(a[i]) * int32(b[i])
	}
	return sum
}

func (f *format) dotK(row []byte, x []actK, n int) (acc float32) {
	var t blockK
	var v [4]float32
	for b := range n {
		a, s := &x[b/4], b%4
		f.unpackK(row[b*f.size:], &t)
		var isum, msum int32
		for i := range 16 {
			isum += int32(t.scale[i]) * dot(t.q[16*i:16*i+16], a.q[s][16*i:])
			msum += int32(t.min[i]) * int32(a.s16[s][i]) / -16
		}
		v[s] = float32(float32(t.d*a.d[s]) * float32(isum))
		if f.mins {
			v[s] = fma(-float32(t.dmin*a.d[s]), float32(msum), v[s])
		}
		if s == 3 || b == n-1 {
			acc += (v[0] + v[1]) + (v[2] + v[3])
			v = [4]float32{}
		}
	}
	return acc
}

func (f *format) dot32(row []byte, x []act32, n int) (acc float32) {
	var t block32
	for g := range x {
		a := &x[g]
		f.group(row[min(len(row), g*f.size):], &t)
		var v [8]float32
		for b := range 8 {
			s0, s1 := dot(t.q[32*b:32*b+16], a.q[32*b:]), dot(t.q[32*b+16:32*b+32], a.q[32*b+16:])
			if f.halves {
				v[b] = float32(float32(t.d[2*b]*a.d[b])*float32(s0)) + float32(float32(t.d[2*b+1]*a.d[b])*float32(s1))
				continue
			}
			v[b] = float32(float32(t.d[2*b]*a.d[b]) * float32(s0+s1))
			if f.mins {
				v[b] = fma(float32(t.m[b]*a.d[b]), float32(a.sum[b]), v[b])
			}
		}
		acc += (v[0] + v[1]) + (v[2] + v[3])
		acc += (v[4] + v[5]) + (v[6] + v[7])
	}
	return acc
}

// codes quantises x to q as ggml_cgo/quantize.h: top is the largest magnitude, inverse what x is multiplied with.
func codes(x []float32, q []int8, inverse float32) {
	for i, v := range x {
		q[i] = int8(min(127, math.RoundToEven(float64(v*inverse))))
	}
}

// extreme returns the first value of largest magnitude, 0 below 2^-116 and NaN if a value is not finite.
func extreme(x []float32) (m float32) {
	for _, v := range x {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return float32(math.NaN())
		}
		if max(v, -v) > max(m, -m) {
			m = v
		}
	}
	if max(m, -m) < 0x1p-116 {
		return 0
	}
	return m
}

func codesK(x []float32, q []int8) (d float32) {
	m := extreme(x)
	if m == 0 || m != m {
		clear(q)
		return m
	}
	codes(x, q, -127/m)
	return 1 / (-127 / m)
}

func codes32(x []float32, q []int8) (d float32) {
	m := extreme(x)
	if m == 0 || m != m {
		clear(q)
		return m
	}
	d = max(m, -m) / 127
	codes(x, q, 1/d)
	return d
}

func (plain) QuantizeK(column unsafe.Pointer, cols, from int, x []float32) {
	nb, end := cols/256, (from+len(x))/256
	a := unsafe.Slice((*actK)(column), (nb+3)/4)
	for b := from / 256; b < end; b++ {
		g, s := &a[b/4], b%4
		g.d[s] = codesK(x[256*b-from:][:256], g.q[s][:])
		g.complete(s)
		if nb == 2 {
			g.q[s+2], g.d[s+2] = g.q[s], g.d[s]
			g.complete(s + 2)
		}
	}
	for b := end; end == nb && nb != 2 && b%4 != 0; b++ {
		g, s := &a[b/4], b%4
		g.q[s], g.d[s] = [256]int8{}, 0
		g.complete(s)
	}
}

// complete derives the second order and the sums of block s from its codes.
func (g *actK) complete(s int) {
	for i, j := range [8]int{0, 2, 1, 3, 4, 6, 5, 7} {
		copy(g.p[s][32*i:32*i+32], g.q[s][32*j:])
		g.s32[s][i] = int16(sum8(g.q[s][32*i : 32*i+32]))
	}
	for i := range 16 {
		g.s16[s][i] = int16(-16 * sum8(g.q[s][16*i:16*i+16]))
	}
}

func sum8(q []int8) (sum int32) {
	for _, v := range q {
		sum += int32(v)
	}
	return sum
}

func (plain) Quantize32(column unsafe.Pointer, cols, from int, x []float32) {
	nb, end := cols/32, (from+len(x))/32
	a := unsafe.Slice((*act32)(column), (nb+7)/8)
	for b := from / 32; b < end; b++ {
		a[b/8].set(b%8, x[32*b-from:][:32])
	}
	for b := end; end == nb && b%8 != 0; b++ {
		a[b/8].set(b%8, make([]float32, 32))
	}
}

func (g *act32) set(b int, x []float32) {
	g.d[b] = codes32(x, g.q[32*b:32*b+32])
	g.complete(b)
}

// complete derives the second order and the sum of block b from its codes.
func (g *act32) complete(b int) {
	q, h := g.q[32*b:32*b+32], g.h[b/4*128+b%4*16:]
	copy(h[:16], q)
	copy(h[64:80], q[16:])
	g.sum[b] = sum8(q)
}
