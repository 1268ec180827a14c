package ggml_cgo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/cpuid/v2"
)

// vecOps is what the sets and the plain twin have in common.
type vecOps interface {
	RMSNorm(y, x, w []float32, eps float32)
	L2Norm(y, x []float32, eps, scale float32)
	Add(y, x []float32)
	AddScaled(y, x []float32, a float32)
	Scale(y []float32, a float32)
	SiLU(y, x []float32)
	SiLUMul(y, gate, up []float32)
	Sigmoid(y, x []float32)
	SigmoidMul(y, x, gate []float32)
	Exp(y, x []float32)
	Softmax(x []float32)
	Dot(a, b []float32) float32
	ArgMax(x []float32) int
	RopeHalf(x, cos, sin []float32)
	RopeAdjacent(x, cos, sin []float32)
	Conv(y, u, w, state []float32, channels, c0, c1, taps int, silu bool)
}

// runnable returns the sets this CPU can run.
func runnable() []*VecSet {
	var sets []*VecSet
	for _, s := range VecSets() {
		switch {
		case s.Name == "avx2" && !cpuid.CPU.Supports(cpuid.AVX2, cpuid.F16C),
			s.Name == "avxvnni" && !cpuid.CPU.Supports(cpuid.AVX2, cpuid.F16C),
			s.Name == "avx512" && !cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ):
		default:
			sets = append(sets, s)
		}
	}
	return sets
}

func random(seed uint64, n int, size float32) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n+1)[1:] // not 16-byte aligned
	for i := range x {
		x[i] = float32(r.NormFloat64()) * size
	}
	return x
}

func clone(x []float32) []float32 { return append(make([]float32, 0, len(x)+3), x...) }

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		g, w := math.Float32bits(got[i]), math.Float32bits(want[i])
		if g != w && !(got[i] != got[i] && want[i] != want[i]) { // which NaN is left open
			t.Fatalf("%s: element %d of %d is %v (%#x), the plain twin says %v (%#x)", what, i, len(want), got[i], g, want[i], w)
		}
	}
}

// operations run every elementwise operation and sum on the same input and collect all results.
func operations(o vecOps, n int, size float32) []float32 {
	x, w, g := random(uint64(n), n, size), random(uint64(n)+1000, n, size), random(uint64(n)+2000, n, size)
	var out []float32
	keep := func(f func(y []float32)) {
		y := append(clone(x), 7, 7, 7)
		f(y[:n])
		out = append(out, y...) // with what lies behind the slice
	}
	keep(func(y []float32) { o.RMSNorm(y, x, w, 1e-6) })
	keep(func(y []float32) { o.RMSNorm(y, y, nil, 1e-5) })
	keep(func(y []float32) { o.L2Norm(y, x, 1e-6, 0.25) })
	keep(func(y []float32) { o.L2Norm(y, x, 1e6, 3) })
	keep(func(y []float32) { o.Add(y, w) })
	keep(func(y []float32) { o.AddScaled(y, w, 0.3) })
	keep(func(y []float32) { o.Scale(y, 0.7) })
	keep(func(y []float32) { o.SiLU(y, g) })
	keep(func(y []float32) { o.SiLUMul(y, g, w) })
	keep(func(y []float32) { o.Sigmoid(y, g) })
	keep(func(y []float32) { o.SigmoidMul(y, w, g) })
	keep(func(y []float32) { o.Exp(y, g) })
	keep(func(y []float32) { o.Softmax(y) })
	out = append(out, o.Dot(x, w), float32(o.ArgMax(g)))
	for _, rope := range []func(x, c, s []float32){o.RopeHalf, o.RopeAdjacent} {
		keep(func(y []float32) { rope(y, g[:n/2], w[:n/2]) })
	}
	for _, taps := range []int{1, 3, 4} {
		for _, silu := range []bool{false, true} {
			planes, state := random(uint64(n)+3000, n*taps, 1), random(uint64(n)+4000, n*taps, 1)[:n*(taps-1)]
			c0 := n / 3
			for range 3 {
				keep(func(y []float32) { o.Conv(y, g, planes, state, n, c0, n, taps, silu) })
				out = append(out, state...)
			}
		}
	}
	return out
}

func TestVecSameBits(t *testing.T) {
	for _, s := range runnable() {
		t.Run(s.Name, func(t *testing.T) {
			for n := 1; n <= 600; n++ {
				size := []float32{1, 30, 1e-3}[n%3]
				sameBits(t, fmt.Sprint("length ", n), operations(s, n, size), operations(Plain{}, n, size))
			}
		})
	}
}

// special are the values an operation may go wrong at.
var special = func() []float32 {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -1, inf, -inf, nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 88.72, 88.7229, 88.376, 88.38, -86.89, -86.91, -87.4, -104, 0.34657, -0.34658}
	for i := -200; i <= 200; i++ {
		x = append(x, float32(i)*0.5*float32(math.Ln2))
	}
	return x
}()

func TestVecSpecialValues(t *testing.T) {
	for _, s := range runnable() {
		for _, op := range []func(o vecOps, y []float32){
			func(o vecOps, y []float32) { o.Exp(y, special) },
			func(o vecOps, y []float32) { o.SiLU(y, special) },
			func(o vecOps, y []float32) { o.Sigmoid(y, special) },
			func(o vecOps, y []float32) { copy(y, special); o.Softmax(y) },
			func(o vecOps, y []float32) { copy(y, special[:5]); o.Softmax(y[:5]) },
			func(o vecOps, y []float32) { o.RMSNorm(y, special, special, 1e-6) },
			func(o vecOps, y []float32) { o.L2Norm(y, special, 1e-6, 1) },
		} {
			got, want := make([]float32, len(special)), make([]float32, len(special))
			op(s, got)
			op(Plain{}, want)
			sameBits(t, s.Name, got, want)
		}
	}
}

func TestVecExpBound(t *testing.T) {
	const step = 1 << 12
	x, y := make([]float32, step), make([]float32, step)
	for _, s := range runnable() {
		worst := 0.0
		for at := -86.9; at < 88.7228; at += 0.0007 * step {
			for i := range x {
				x[i] = float32(min(at+0.0007*float64(i), 88.7228))
			}
			s.Exp(y, x)
			for i := range x {
				worst = max(worst, math.Abs(float64(y[i])/math.Exp(float64(x[i]))-1))
			}
		}
		if worst > 2e-7 || worst == 0 {
			t.Errorf("%s: relative error %.3g", s.Name, worst)
		}
	}
}

func TestVecAgainstFloat64(t *testing.T) {
	const n = 4096
	x, w := random(1, n, 1), random(2, n, 1)
	var dot, size, square, sum float64
	for i := range x {
		dot += float64(x[i]) * float64(w[i])
		size += math.Abs(float64(x[i]) * float64(w[i]))
		square += float64(x[i]) * float64(x[i])
		sum += math.Exp(float64(x[i]))
	}
	for _, s := range runnable() {
		if got := float64(s.Dot(x, w)); math.Abs(got-dot) > 1e-6*size {
			t.Errorf("%s: dot %v, want %v", s.Name, got, dot)
		}
		check := func(what string, y []float32, want func(i int) float64) {
			t.Helper()
			for i := range y {
				if e := math.Abs(float64(y[i]) - want(i)); e > 1e-6*math.Abs(want(i))+1e-9 {
					t.Fatalf("%s: %s[%d] = %v, want %v", s.Name, what, i, y[i], want(i))
				}
			}
		}
		y := make([]float32, n)
		s.RMSNorm(y, x, w, 1e-6)
		check("rms", y, func(i int) float64 { return float64(x[i]) / math.Sqrt(square/n+1e-6) * float64(w[i]) })
		s.L2Norm(y, x, 1e-6, 0.5)
		check("l2", y, func(i int) float64 { return float64(x[i]) / math.Sqrt(square) * 0.5 })
		s.SiLUMul(y, x, w)
		check("silu", y, func(i int) float64 { return float64(x[i]) / (1 + math.Exp(-float64(x[i]))) * float64(w[i]) })
		s.SigmoidMul(y, x, w)
		check("sigmoid", y, func(i int) float64 { return float64(x[i]) / (1 + math.Exp(-float64(w[i]))) })
		copy(y, x)
		s.Softmax(y)
		check("softmax", y, func(i int) float64 { return math.Exp(float64(x[i])) / sum })
	}
}

func TestVecArgMax(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	long := random(5, 1000, 1)
	long[70], long[777] = 9, 9
	broken := clone(long)
	broken[999] = nan
	for _, c := range []struct {
		x    []float32
		want int
	}{
		{[]float32{1}, 0}, {[]float32{-inf, -inf}, 0}, {[]float32{1, 3, 3, 2}, 1}, {[]float32{1, inf, 2}, 1}, {[]float32{nan, 3}, -1}, {[]float32{3, nan}, -1},
		{long, 70}, {broken, -1},
	} {
		for _, s := range runnable() {
			if got := s.ArgMax(c.x); got != c.want {
				t.Errorf("%s: %d, want %d", s.Name, got, c.want)
			}
		}
	}
}
