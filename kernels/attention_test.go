package kernels

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func near(t *testing.T, what string, got []float32, want []float64, bound float64) {
	t.Helper()
	var size float64
	for _, w := range want {
		size = max(size, math.Abs(w))
	}
	for i := range want {
		if e := math.Abs(float64(got[i]) - want[i]); !(e <= bound*size) {
			t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(want), got[i], want[i])
		}
	}
}

// attend64 is softmax attention of one query over positions [from, to) in float64.
func attend64(q, k, v []float32, dk, dv, vstep, from, to int, scale float64, sink *float64) []float64 {
	out, sum := make([]float64, dv), 0.0
	if sink != nil {
		sum = math.Exp(*sink)
	}
	for p := from; p < to; p++ {
		s := 0.0
		for i := range dk {
			s += float64(q[i]) * float64(k[p*dk+i])
		}
		w := math.Exp(s * scale)
		sum += w
		for i := range dv {
			out[i] += w * float64(v[p*vstep+i])
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func storeAll(s *Set, x []float32, n int, t gguf.Type) []byte {
	size := KVBytes(t, n)
	b := make([]byte, len(x)/n*size)
	for p := range len(x) / n {
		s.StoreKV(b[p*size:], x[p*n:(p+1)*n], t)
	}
	return b
}

func TestAttentionAgainstFloat64(t *testing.T) {
	const positions, rows = 1100, 6
	for _, s := range All() {
		for _, c := range []struct {
			t      gguf.Type
			dk, dv int
			mla    bool
			from   int // of the window
			bound  float64
		}{
			{gguf.F32, 64, 64, false, 0, 3e-6}, {gguf.F16, 128, 128, false, 0, 2e-3}, {gguf.F32, 24, 40, false, 0, 3e-6},
			{gguf.Q8_0, 64, 96, false, 0, 4e-2}, {gguf.F32, 48, 32, true, 0, 3e-6}, {gguf.F32, 64, 64, false, 850, 3e-6},
		} {
			kx, vx, q := normal(1, positions*c.dk), normal(2, positions*c.dv), normal(3, rows*c.dk)
			k, v, vstep := storeAll(s, kx, c.dk, c.t), storeAll(s, vx, c.dv, c.t), c.dv
			if c.mla {
				v, vx, vstep = nil, kx, c.dk
			}
			limit := make([]int32, rows)
			for r := range limit {
				limit[r] = int32(positions - 40*r)
			}
			scale := 1 / math.Sqrt(float64(c.dk))
			width := PartLen(c.dv)
			segments := (positions + Segment - 1) / Segment
			parts := make([]float32, segments*rows*width)
			for i := range segments {
				from, to := max(i*Segment, c.from), min((i+1)*Segment, positions)
				s.AttendPart(parts[i*rows*width:], q, rows, limit, k, v, c.t, c.t, c.dk, c.dv, from, to, float32(scale))
			}
			sink := 2.0
			for r := range rows {
				y := make([]float32, c.dv)
				what := fmt.Sprintf("%s %+v row %d", s.Name, c, r)
				s.AttendMerge(y, parts[r*width:], segments, rows*width, c.dv)
				near(t, what, y, attend64(q[r*c.dk:], kx, vx, c.dk, c.dv, vstep, c.from, int(limit[r]), scale, nil), c.bound)
				s.AttendMergeSink(y, parts[r*width:], segments, rows*width, c.dv, float32(sink))
				near(t, what+" sink", y, attend64(q[r*c.dk:], kx, vx, c.dk, c.dv, vstep, c.from, int(limit[r]), scale, &sink), c.bound)
			}
		}
	}
}

func TestAttentionOfNothingIsZero(t *testing.T) {
	for _, s := range All() {
		part, y := []float32{7, 7, 7, 7}, []float32{7, 7}
		s.AttendPart(part, []float32{1}, 1, []int32{0}, nil, nil, gguf.F32, gguf.F32, 1, 2, 0, 0, 1)
		s.AttendMerge(y, part, 1, 4, 2)
		if y[0] != 0 || y[1] != 0 {
			t.Errorf("%s: %v", s.Name, y)
		}
		s.AttendMergeSink(y, part, 1, 4, 2, 3)
		if y[0] != 0 || y[1] != 0 {
			t.Errorf("%s with a sink: %v", s.Name, y)
		}
	}
}

func TestCheckCache(t *testing.T) {
	for _, c := range []struct {
		k, v   gguf.Type
		dk, dv int
		ok     bool
	}{
		{gguf.F16, gguf.F16, 128, 128, true}, {gguf.Q8_0, gguf.F32, 64, 24, true}, {gguf.Q8_0, gguf.F16, 24, 24, false},
		{gguf.Q4_K, gguf.F16, 256, 256, false}, {gguf.F16, gguf.F16, 2049, 64, false}, {gguf.F16, gguf.F16, 64, 0, false},
	} {
		if err := CheckCache(c.k, c.v, c.dk, c.dv); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrCacheType) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestRope(t *testing.T) {
	const n = 20
	cos, sin := make([]float32, n), make([]float32, n)
	factor := make([]float32, n)
	for i := range factor {
		factor[i] = 1 + float32(i)
	}
	RopeTable(cos, sin, 262143, 6e6, factor)
	for _, s := range All() {
		for _, p := range []Pairing{Half, Adjacent} {
			x := normal(4, 2*n+5)
			y := append([]float32(nil), x...)
			s.Rope(y, cos, sin, p)
			want := make([]float64, len(x))
			for i := range want {
				want[i] = float64(x[i])
			}
			for i := range n {
				a, b := i, i+n
				if p == Adjacent {
					a, b = 2*i, 2*i+1
				}
				angle := 262143 * math.Pow(6e6, -2*float64(i)/(2*n)) / float64(1+i)
				want[a] = float64(x[a])*math.Cos(angle) - float64(x[b])*math.Sin(angle)
				want[b] = float64(x[a])*math.Sin(angle) + float64(x[b])*math.Cos(angle)
			}
			near(t, fmt.Sprint(s.Name, p), y, want, 1e-6)
		}
	}
}

// delta64 is the recurrence in its order of the equations, in float64; s is [key][value].
func delta64(s [][]float64, q, k, v, decay []float32, beta float64) []float64 {
	out := make([]float64, len(v))
	for j := range v {
		p := 0.0
		for i := range k {
			s[i][j] *= float64(decay[i])
			p += s[i][j] * float64(k[i])
		}
		d := beta * (float64(v[j]) - p)
		for i := range k {
			s[i][j] += float64(k[i]) * d
			out[j] += s[i][j] * float64(q[i])
		}
	}
	return out
}

func TestDeltaAgainstFloat64(t *testing.T) {
	const tokens = 20
	for _, set := range All() {
		for _, n := range [][2]int{{128, 128}, {64, 64}, {24, 40}} {
			for _, perKey := range []bool{false, true} {
				dk, dv := n[0], n[1]
				state, run := make([]float32, dk*dv), make([]float32, dk*dv)
				s := make([][]float64, dk)
				for i := range s {
					s[i] = make([]float64, dv)
				}
				q, k, v := normal(1, tokens*dk), normal(2, tokens*dk), normal(3, tokens*dv)
				decay, beta, got := make([]float32, tokens*dk), make([]float32, tokens), make([]float32, tokens*dv)
				for i, x := range normal(4, tokens*dk) {
					decay[i] = float32(math.Exp(-0.1 * math.Abs(float64(x))))
					if !perKey {
						decay[i] = 0.97
					}
				}
				for i := range beta {
					beta[i] = 0.5
					set.L2Norm(q[i*dk:(i+1)*dk], q[i*dk:(i+1)*dk], 1e-6, 1)
					set.L2Norm(k[i*dk:(i+1)*dk], k[i*dk:(i+1)*dk], 1e-6, 1)
				}
				for i := range tokens {
					qt, kt, vt, g, o := q[i*dk:(i+1)*dk], k[i*dk:(i+1)*dk], v[i*dv:(i+1)*dv], decay[i*dk:(i+1)*dk], got[i*dv:(i+1)*dv]
					if perKey {
						set.DeltaStepVec(state, qt, kt, vt, g, beta[i], o)
					} else {
						set.DeltaStep(state, qt, kt, vt, g[0], beta[i], o)
					}
					near(t, fmt.Sprint(set.Name, n, perKey, " token ", i), o, delta64(s, qt, kt, vt, g, 0.5), 2e-6)
				}
				all := make([]float32, tokens*dv)
				set.DeltaRun(run, q, k, v, decay, beta, all, DeltaShape{KeyDim: dk, ValueDim: dv, Tokens: tokens, QStep: dk, KStep: dk, VStep: dv, OStep: dv, DecayStep: dk, BetaStep: 1, PerKey: perKey})
				for i := range all {
					if all[i] != got[i] {
						t.Fatalf("%s %v: DeltaRun gives %v, DeltaStep %v", set.Name, n, all[i], got[i])
					}
				}
				for i := range run {
					if run[i] != state[i] {
						t.Fatalf("%s %v: states differ", set.Name, n)
					}
				}
			}
		}
	}
}

func TestSmallOperationsDoNotAllocate(t *testing.T) {
	s := Best()
	x, y, part := normal(1, 256), normal(2, 256), make([]float32, 66)
	cache := make([]byte, 64*4*8)
	state := make([]float32, 64*64)
	if n := testing.AllocsPerRun(20, func() {
		s.RMSNorm(y, x, nil, 1e-6)
		s.SiLUMul(y, x, x)
		s.Softmax(y)
		s.DeltaStep(state, x[:64], y[:64], x[:64], 0.9, 0.5, y[64:128])
		s.AttendPart(part, x[:64], 1, []int32{8}, cache, cache, gguf.F32, gguf.F32, 64, 64, 0, 8, 0.1)
		s.AttendMergeSink(y[:64], part, 1, 66, 64, 0.5)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAttendDecode(b *testing.B) { // one token, 8 heads of a kv head, 1024 positions in F16
	const d, positions, rows = 256, 1024, 8
	s := Best()
	k, v := storeAll(s, normal(1, positions*d), d, gguf.F16), storeAll(s, normal(2, positions*d), d, gguf.F16)
	q, part, limit := normal(3, rows*d), make([]float32, rows*PartLen(d)), make([]int32, rows)
	for r := range limit {
		limit[r] = positions
	}
	b.SetBytes(int64(len(k) + len(v)))
	for b.Loop() {
		s.AttendPart(part, q, rows, limit, k, v, gguf.F16, gguf.F16, d, d, 0, positions, 0.06)
	}
}

func BenchmarkDeltaStep(b *testing.B) { // one token of one layer: 32 heads, states of 30 layers in turn
	const heads, d, layers = 32, 128, 30
	s := Best()
	state, q, k, v, o := make([]float32, layers*heads*d*d), normal(1, d), normal(2, d), normal(3, d), make([]float32, d)
	s.L2Norm(k, k, 1e-6, 1)
	b.SetBytes(2 * 4 * heads * d * d)
	layer := 0
	for b.Loop() {
		for h := range heads {
			s.DeltaStep(state[(layer*heads+h)*d*d:], q, k, v, 0.97, 0.5, o)
		}
		layer = (layer + 1) % layers
	}
}
