package ggml_cgo

import (
	"fmt"
	"math"
	"testing"
)

type attentionOps interface {
	StoreKV(dst []byte, x []float32, cacheType int)
	Attend(part, q []float32, rows int, limit []int32, k, v []byte, c *CacheShape, from, to int, scale float32)
	Merge(out, parts []float32, count, stride int, sink []float32)
	Delta(state, q, k, v, decay, beta, o []float32, d *DeltaShape)
}

func cacheBytes(t, n int) int {
	return map[int]int{CacheF32: 4 * n, CacheF16: 2 * n, CacheQ80: n / 32 * 34}[t]
}

func store(o attentionOps, x []float32, rows, n, t int) []byte {
	size := cacheBytes(t, n)
	b := make([]byte, rows*size+1)[1:] // odd address
	for r := range rows {
		o.StoreKV(b[r*size:(r+1)*size], x[r*n:(r+1)*n], t)
	}
	return b
}

// attention stores a cache and attends to it with rows of mixed limits, in two segments, with and without a sink.
func attention(o attentionOps, kt, vt, dk, dv, rows, from, mid, to int) []float32 {
	k := store(o, random(1, to*dk, 1), to, dk, kt)
	c := CacheShape{KType: int32(kt), VType: int32(vt), KeyDim: int32(dk), VDim: int32(dv), KStride: int64(cacheBytes(kt, dk)), VStride: int64(cacheBytes(vt, dv))}
	v := k
	if vt < 0 { // the value is the beginning of the key
		c.VType, c.VStride = c.KType, c.KStride
	} else {
		v = store(o, random(2, to*dv, 1), to, dv, vt)
	}
	q := random(3, rows*dk, 1)
	limit := make([]int32, rows)
	for r := range limit {
		limit[r] = int32(to - r*7%(to+3)) // some see nothing
	}
	width := dv + 2
	parts := make([]float32, 2*rows*width)
	o.Attend(parts[:rows*width], q, rows, limit, k, v, &c, from, mid, 0.3)
	o.Attend(parts[rows*width:], q, rows, limit, k, v, &c, mid, to, 0.3)
	out := clone(parts)
	for r := range rows {
		y := make([]float32, dv)
		for _, sink := range [][]float32{nil, {1.5}} {
			o.Merge(y, parts[r*width:], 2, rows*width, sink)
			out = append(out, y...)
		}
	}
	return out
}

func TestVecAttentionSameBits(t *testing.T) {
	for _, s := range runnable() {
		for _, c := range []struct{ kt, vt, dk, dv, rows, from, mid, to int }{
			{CacheF16, CacheF16, 64, 64, 8, 0, 64, 130}, {CacheF16, CacheF16, 128, 128, 5, 0, 32, 33}, {CacheF32, CacheF16, 24, 40, 3, 5, 40, 71},
			{CacheF32, CacheF32, 1, 1, 1, 0, 0, 1}, {CacheF32, CacheF32, 17, 3, 2, 31, 32, 40}, {CacheF16, CacheF32, 256, 256, 7, 0, 16, 50},
			{CacheQ80, CacheQ80, 64, 96, 6, 0, 40, 70}, {CacheF16, -1, 576, 512, 9, 3, 20, 45}, {CacheQ80, -1, 576, 512, 4, 0, 32, 40},
			{CacheF16, CacheF16, 32, 32, 150, 0, 32, 100}, {CacheF16, CacheF16, MaxHeadDim, 16, 2, 0, 4, 9},
		} {
			what := fmt.Sprintf("%s %+v", s.Name, c)
			sameBits(t, what, attention(s, c.kt, c.vt, c.dk, c.dv, c.rows, c.from, c.mid, c.to), attention(Plain{}, c.kt, c.vt, c.dk, c.dv, c.rows, c.from, c.mid, c.to))
		}
	}
}

// TestVecAttentionRowsAlone computes each row by itself: the neighbours, and broken values they see and it does not, change nothing.
func TestVecAttentionRowsAlone(t *testing.T) {
	const dk, dv, rows, to = 128, 80, 13, 200
	c := CacheShape{KType: CacheF16, VType: CacheF16, KeyDim: dk, VDim: dv, KStride: 2 * dk, VStride: 2 * dv}
	for _, s := range runnable() {
		kx, vx, q := random(1, to*dk, 1), random(2, to*dv, 1), random(3, rows*dk, 1)
		for i := 150 * dv; i < len(vx); i++ {
			vx[i] = float32(math.Inf(1))
			kx[150*dk+i%dk] = float32(math.NaN())
		}
		k, v := store(s, kx, to, dk, CacheF16), store(s, vx, to, dv, CacheF16)
		limit := make([]int32, rows)
		for r := range limit {
			limit[r] = int32(150 - 9*(r%4))
		}
		limit[5], limit[6] = 0, 200
		all, one := make([]float32, rows*(dv+2)), make([]float32, dv+2)
		s.Attend(all, q, rows, limit, k, v, &c, 0, to, 0.1)
		for r := range rows {
			s.Attend(one, q[r*dk:], 1, limit[r:], k, v, &c, 0, to, 0.1)
			sameBits(t, fmt.Sprint(s.Name, " row ", r), all[r*(dv+2):(r+1)*(dv+2)], one)
			for i, x := range one {
				if bad := x != x; bad != (r == 6 && i != dv) {
					t.Fatalf("%s: row %d element %d is %v", s.Name, r, i, x)
				}
			}
		}
	}
}

func TestHalfConversions(t *testing.T) {
	all := make([]float32, 0, 1<<18)
	for h := range 1 << 16 {
		f := HalfToFloat(uint16(h))
		if back := FloatToHalf(f); back != uint16(h) && f == f {
			t.Fatalf("%#x -> %v -> %#x", h, f, back)
		}
		next := math.Float32bits(f)
		all = append(all, f, math.Float32frombits(next+0x1000), math.Float32frombits(next+0xfff), math.Float32frombits(next+0x1001))
	}
	for f, want := range map[float32]uint16{1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, 6e-8: 1, 2.9802322e-8: 0, 2.98023259e-8: 1, 6.1e-5: 0x3ff, 1.00048828125: 0x3c00, 1.00146484375: 0x3c02} {
		if got := FloatToHalf(f); got != want {
			t.Errorf("%v -> %#x, want %#x", f, got, want)
		}
	}
	want := store(Plain{}, all, 1, len(all), CacheF16)
	for _, s := range runnable() {
		got := store(s, all, 1, len(all), CacheF16)
		for i, x := range all {
			if x == x && (got[2*i] != want[2*i] || got[2*i+1] != want[2*i+1]) {
				t.Fatalf("%s: %v (%#x) -> %x, want %x", s.Name, x, math.Float32bits(x), got[2*i:2*i+2], want[2*i:2*i+2])
			}
		}
	}
}

func TestVecQ80SameBytes(t *testing.T) {
	x := append(random(9, 320, 3), make([]float32, 32)...)
	x[40] = float32(math.NaN())
	want := store(Plain{}, x, 1, len(x), CacheQ80)
	for _, s := range runnable() {
		if got := store(s, x, 1, len(x), CacheQ80); string(got) != string(want) {
			t.Errorf("%s: % x, want % x", s.Name, got, want)
		}
	}
}

// delta runs some tokens at once and returns outputs and state.
func delta(o attentionOps, dk, dv, tokens int, perKey int32, atOnce bool) []float32 {
	q, k, v := random(1, tokens*(dk+3), 0.3), random(2, tokens*(dk+3), 0.3), random(3, tokens*dv, 1)
	decay, beta := make([]float32, tokens*dk), make([]float32, tokens)
	for i, x := range random(4, tokens*dk, 1) {
		decay[i] = float32(1 / (1 + math.Exp(-3+float64(x))))
	}
	for i := range beta {
		beta[i] = 1 / float32(i+1)
	}
	state, out := random(5, dk*dv, 1), make([]float32, tokens*dv)
	d := DeltaShape{KeyDim: int64(dk), ValueDim: int64(dv), Tokens: int64(tokens), QStep: int64(dk + 3), KStep: int64(dk + 3), VStep: int64(dv), OStep: int64(dv), DecayStep: int64(dk), BetaStep: 1, PerKey: perKey}
	if atOnce {
		o.Delta(state, q, k, v, decay, beta, out, &d)
		return append(out, state...)
	}
	d.Tokens = 1
	for t := range tokens {
		o.Delta(state, q[t*(dk+3):], k[t*(dk+3):], v[t*dv:], decay[t*dk:], beta[t:], out[t*dv:], &d)
	}
	return append(out, state...)
}

func TestVecDeltaSameBits(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {8, 8}, {17, 5}, {24, 33}, {32, 32}, {64, 64}, {100, 40}, {128, 128}, {256, 20}} {
		for perKey := range int32(2) {
			want := delta(Plain{}, shape[0], shape[1], 5, perKey, false)
			for _, s := range runnable() {
				what := fmt.Sprint(s.Name, shape, perKey)
				sameBits(t, what, delta(s, shape[0], shape[1], 5, perKey, true), want)
				sameBits(t, what+" token by token", delta(s, shape[0], shape[1], 5, perKey, false), want)
			}
		}
	}
}
