package synth

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/epq-uring/epq-uring/gguf"
)

// random is a source of random words by position, so that any piece of a tensor can be made alone: SplitMix64 (Steele,
// Lea, Flood 2014) with its counter given.
type random uint64

const golden = 0x9e3779b97f4a7c15

func newRandom(seed uint64, name string) random {
	h := fnv.New64a()
	h.Write([]byte(name))
	return random(mix(mix(seed+golden) ^ h.Sum64()))
}

func (r random) word(i uint64) uint64 { return mix(uint64(r) + i*golden) }

// bytes fills dst with the bytes of the words, little endian, from byte offset on.
func (r random) bytes(dst []byte, offset uint64) {
	var word [8]byte
	i := offset / 8
	if skip := offset % 8; skip > 0 {
		binary.LittleEndian.PutUint64(word[:], r.word(i))
		dst = dst[copy(dst, word[skip:]):]
		i++
	}
	x := uint64(r) + i*golden
	for ; len(dst) >= 8; dst = dst[8:] {
		binary.LittleEndian.PutUint64(dst, mix(x))
		x += golden
	}
	binary.LittleEndian.PutUint64(word[:], mix(x))
	copy(dst, word[:])
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// normal makes a number that is about normal with mean 0 and variance 1, below 3.47: the sum of four uniform ones.
func normal(w uint64) float32 {
	sum := int32(w&0xffff) + int32(w>>16&0xffff) + int32(w>>32&0xffff) + int32(w>>48) - 131070
	return float32(sum) * (1.7320508 / 65536)
}

// floats is the data of an F32 tensor with elements f(i, x), x normal.
func floats(seed uint64, name string, f func(i int64, x float32) float32) gguf.Data {
	r := newRandom(seed, name)
	return func(dst []byte, offset int64) error {
		for at := 0; at < len(dst); at += 4 {
			i := (offset + int64(at)) / 4
			binary.LittleEndian.PutUint32(dst[at:], math.Float32bits(f(i, normal(r.word(uint64(i))))))
		}
		return nil
	}
}

// blocks is the data of a tensor of any type that synth knows with mean 0 and standard deviation std.
func (m *maker) blocks(name string, t gguf.Type, std float64) gguf.Data {
	switch t {
	case gguf.F32:
		s := float32(std)
		return floats(m.seed, name, func(_ int64, x float32) float32 { return x * s })
	case gguf.F16:
		return halves(newRandom(m.seed, name), std, f16)
	case gguf.BF16:
		return halves(newRandom(m.seed, name), std, bf16)
	}
	k := poolKey{t, std}
	if m.pools[k] == nil {
		m.pools[k] = newPool(t, std)
	}
	return m.pools[k].data(newRandom(m.seed, name))
}

func halves(r random, std float64, round func(float64) uint16) gguf.Data {
	return func(dst []byte, offset int64) error {
		for at := 0; at < len(dst); at += 2 {
			x := normal(r.word(uint64(offset+int64(at)) / 2))
			binary.LittleEndian.PutUint16(dst[at:], round(float64(x)*std))
		}
		return nil
	}
}

// A pool holds heads of blocks: everything but the codes of the weights, which may be any bits. Blocks draw from it.
type pool struct {
	t    gguf.Type
	at   int // where the head lies in a block
	size int
	head []byte // poolSize heads
}

type poolKey struct {
	t   gguf.Type
	std float64
}

const poolSize = 4096

// data makes blocks of random codes, each with a head of the pool.
func (p *pool) data(r random) gguf.Data {
	n, heads := p.t.BlockBytes(), random(mix(uint64(r)))
	return func(dst []byte, offset int64) error {
		r.bytes(dst, uint64(offset))
		if p.t == gguf.Q8_0 {
			noLowest(dst) // also where the heads come
		}
		first := uint64(offset) / uint64(n)
		for b := range len(dst) / n {
			h := int(heads.word(first+uint64(b))%poolSize) * p.size
			copy(dst[b*n+p.at:], p.head[h:h+p.size])
		}
		return nil
	}
}

// noLowest replaces the code -128, which no quantiser writes and which would make the mean differ from 0.
func noLowest(b []byte) {
	for i, c := range b {
		if c == 0x80 {
			b[i] = 0
		}
	}
}

// The levels of the codes of IQ4_NL and IQ4_XS, and those of MXFP4 (E2M1) times two.
var (
	levelsIQ4  = []float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	levelsE2M1 = []float64{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// newPool makes the heads for a type and a standard deviation. It panics for a type that no preset uses.
func newPool(t gguf.Type, std float64) *pool {
	g := &dice{r: newRandom(uint64(t), "heads")}
	p := &pool{t: t}
	one, ok := map[gguf.Type]func(g *dice, std float64) []byte{
		gguf.Q4_0: headQ4, gguf.Q5_0: headQ5, gguf.Q8_0: headQ8, gguf.Q4_K: headQ4K, gguf.Q5_K: headQ5K, gguf.Q6_K: headQ6K,
		gguf.IQ4NL: headIQ4NL, gguf.IQ4XS: headIQ4XS, gguf.MXFP4: headMXFP4,
	}[t]
	if !ok {
		panic(fmt.Sprintf("synth: no random blocks of type %s", t))
	}
	for range poolSize {
		h := one(g, std)
		p.head, p.size = append(p.head, h...), len(h)
	}
	if t == gguf.Q6_K {
		p.at = t.BlockBytes() - p.size
	}
	return p
}

// dice draws numbers one after the other.
type dice struct {
	r random
	i uint64
}

func (g *dice) unit() float64 {
	g.i++
	return float64(g.r.word(g.i)>>11) / (1 << 53)
}

func (g *dice) between(lo, hi int) int { return lo + int(g.unit()*float64(hi-lo)) } // lo <= n < hi

func (g *dice) sign() int { return 1 - 2*g.between(0, 2) }

// scale lets the scales of blocks differ a little around s, with mean square s^2.
func (g *dice) scale(s float64) float64 { return s * (0.7 + 0.6*g.unit()) / math.Sqrt(1.03) }

func meanSquare(levels []float64) float64 {
	var sum float64
	for _, x := range levels {
		sum += x * x
	}
	return sum / float64(len(levels))
}

// uniformSquare is the mean square of the whole numbers from lo to hi.
func uniformSquare(lo, hi int) float64 {
	var sum float64
	for i := lo; i <= hi; i++ {
		sum += float64(i) * float64(i)
	}
	return sum / float64(hi-lo+1)
}

func half(x float64) []byte { return binary.LittleEndian.AppendUint16(nil, f16(x)) }

// Each head function follows the block of its type: weight = d * (code - 8) and so on. Where the mean of the levels is
// not 0, scales of both signs cancel it.

func headQ8(g *dice, std float64) []byte {
	return half(g.scale(std / math.Sqrt(uniformSquare(-127, 127))))
}

func headQ4(g *dice, std float64) []byte {
	return half(float64(g.sign()) * g.scale(std/math.Sqrt(uniformSquare(-8, 7))))
}

// headQ5: the fifth bits of the codes, behind the scale, may be any.
func headQ5(g *dice, std float64) []byte {
	return half(float64(g.sign()) * g.scale(std/math.Sqrt(uniformSquare(-16, 15))))
}

func headIQ4NL(g *dice, std float64) []byte {
	return half(float64(g.sign()) * g.scale(std/math.Sqrt(meanSquare(levelsIQ4))))
}

func headQ4K(g *dice, std float64) []byte { return headK(g, std, 16) }
func headQ5K(g *dice, std float64) []byte { return headK(g, std, 32) }

// headK: d, dmin, then 8 scales and 8 minima of 6 bits; weight = d scale code - dmin minimum. Minima equal scales and
// dmin is d times the mean code, so the mean is 0; both are exact in 16 bits, as d is rounded to 6 bits and to a
// multiple of 2^-22.
func headK(g *dice, std float64, codes int) []byte {
	mean := float64(codes-1) / 2
	d := short(g.scale(std / math.Sqrt((uniformSquare(0, codes-1)-mean*mean)*uniformSquare(20, 63))))
	var s [8]byte
	for i := range s {
		s[i] = byte(g.between(20, 64))
	}
	h := append(half(d), half(d*mean)...)
	for i := range 4 {
		h = append(h, s[i]|s[i+4]>>4<<6)
	}
	h = append(h, h[4:8]...)
	for i := range 4 {
		h = append(h, s[i+4]&15|s[i+4]<<4)
	}
	return h
}

func short(d float64) float64 {
	frac, exp := math.Frexp(d)
	d = math.Ldexp(math.RoundToEven(frac*64)/64, exp)
	return max(math.RoundToEven(d*(1<<22)), 1) / (1 << 22)
}

// headQ6K lies at the end of the block: 16 scales of 8 bits, d; weight = d scale (code - 32).
func headQ6K(g *dice, std float64) []byte {
	h := make([]byte, 16, 18)
	for i := range h {
		h[i] = byte(int8(g.between(40, 121) * g.sign()))
	}
	return append(h, half(g.scale(std/math.Sqrt(uniformSquare(-32, 31)*uniformSquare(40, 120))))...)
}

// headIQ4XS: d, the high 2 bits of 8 scales, their low 4 bits; weight = d (scale - 32) level.
func headIQ4XS(g *dice, std float64) []byte {
	h := append(half(g.scale(std/math.Sqrt(meanSquare(levelsIQ4)*uniformSquare(10, 31)))), 0, 0, 0, 0, 0, 0)
	var high uint16
	for i := range 8 {
		s := g.between(10, 32)*g.sign() + 32
		high |= uint16(s>>4) << (2 * i)
		h[4+i/2] |= byte(s&15) << (4 * (i % 2))
	}
	binary.LittleEndian.PutUint16(h[2:], high)
	return h
}

// headMXFP4: an exponent; the two nearest powers of two are mixed so that the mean square is right.
func headMXFP4(g *dice, std float64) []byte {
	exp := math.Log2(std / math.Sqrt(meanSquare(levelsE2M1)/4))
	low := math.Floor(exp)
	share := (math.Exp2(2*(exp-low)) - 1) / 3
	if g.unit() < share {
		low++
	}
	return []byte{byte(int(low) + 127)}
}

// f16 rounds to the nearest 16-bit float, ties to even; x is far below the largest.
func f16(x float64) uint16 {
	var sign uint16
	if math.Signbit(x) {
		sign, x = 1<<15, -x
	}
	exp := max(math.Ilogb(x), -14) // below that, and at 0, numbers are spaced as there
	n := uint16(math.RoundToEven(math.Ldexp(x, 10-exp)))
	return sign | uint16(exp+14)<<10 + n // a full mantissa carries into the exponent, as it should
}

// bf16 rounds to the nearest bfloat16, ties to even.
func bf16(x float64) uint16 {
	u := math.Float32bits(float32(x))
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}
