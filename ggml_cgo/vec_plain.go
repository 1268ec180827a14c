package ggml_cgo

import "math"

// Plain computes the vector operations in Go, with the same bits as every VecSet: products and sums rounded one by one
// (the conversions to float32 forbid the compiler to fuse them), sums over 16 lanes in the order of vec_lanes.h.
type Plain struct{}

type lanes [16]float32

// foldLanes adds over the lanes: l + (l+8), then +4, +2, +1.
func foldLanes(t *lanes) float32 {
	for step := 8; step > 0; step /= 2 {
		for l := range step {
			t[l] += t[l+step]
		}
	}
	return t[0]
}

// chains adds term(0..n-1) in four chains of 16 lanes, chunk c of 16 in chain c mod 4.
func chains(n int, term func(i int) float32) float32 {
	var t [4]lanes
	for i := range (n + 15) / 16 * 16 {
		x := float32(0)
		if i < n {
			x = term(i)
		}
		t[i/16%4][i%16] += x
	}
	for l := range 16 {
		t[0][l] = float32(t[0][l]+t[1][l]) + float32(t[2][l]+t[3][l])
	}
	return foldLanes(&t[0])
}

func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// Dot returns the sum of a[i] b[i].
func (Plain) Dot(a, b []float32) float32 {
	return chains(len(a), func(i int) float32 { return float32(a[i] * b[i]) })
}

// RMSNorm sets y = x / sqrt(mean(x^2) + eps) * w; w nil: no weight. y may be x.
func (p Plain) RMSNorm(y, x, w []float32, eps float32) {
	r := 1 / sqrt32(float32(p.Dot(x, x)/float32(len(x)))+eps)
	for i := range x {
		y[i] = float32(x[i] * r)
		if w != nil {
			y[i] *= w[i]
		}
	}
}

// L2Norm sets y = x / max(|x|, eps) * scale. y may be x.
func (p Plain) L2Norm(y, x []float32, eps, scale float32) {
	norm := sqrt32(p.Dot(x, x))
	if norm < eps {
		norm = eps
	}
	r := scale / norm
	for i := range x {
		y[i] = x[i] * r
	}
}

// Add sets y = y + x.
func (Plain) Add(y, x []float32) {
	for i := range x {
		y[i] += x[i]
	}
}

// AddScaled sets y = y + a x.
func (Plain) AddScaled(y, x []float32, a float32) {
	for i := range x {
		y[i] += float32(x[i] * a)
	}
}

// Scale sets y = a y.
func (Plain) Scale(y []float32, a float32) {
	for i := range y {
		y[i] *= a
	}
}

const (
	expMin = -86.9
	expMax = 88.722839
)

// exp32 is e^x as vexp in vec_lanes.h computes it.
func exp32(x float32) float32 {
	switch {
	case x != x:
		return x
	case x < expMin:
		return 0
	case x > expMax:
		return float32(math.Inf(1))
	}
	const shift = 12582912
	t := float32(x*1.44269504) + shift
	n := t - shift
	r := float32(x-float32(n*0.693359375)) - float32(n*-2.12194440e-4)
	p := float32(r*(1.0/720)) + 0.00837504
	p = float32(p*r) + 1.0/24
	p = float32(p*r) + 0.16666416
	p = float32(p*r) + 0.5
	p = float32(float32(p*float32(r*r))+r) + 1
	return (p + p) * math.Float32frombits((math.Float32bits(t)+126-0x4b400000)<<23)
}

func sigmoid32(x float32) float32 { return 1 / (1 + exp32(0-x)) }
func silu32(x float32) float32    { return x / (1 + exp32(0-x)) }

// SiLU sets y = x / (1 + e^-x).
func (Plain) SiLU(y, x []float32) {
	for i := range x {
		y[i] = silu32(x[i])
	}
}

// SiLUMul sets y = silu(gate) up.
func (Plain) SiLUMul(y, gate, up []float32) {
	for i := range gate {
		y[i] = silu32(gate[i]) * up[i]
	}
}

// Sigmoid sets y = 1 / (1 + e^-x).
func (Plain) Sigmoid(y, x []float32) {
	for i := range x {
		y[i] = sigmoid32(x[i])
	}
}

// SigmoidMul sets y = x sigmoid(gate).
func (Plain) SigmoidMul(y, x, gate []float32) {
	for i := range x {
		y[i] = x[i] * sigmoid32(gate[i])
	}
}

// Exp sets y = e^x: relative error below 2e-7; 0 below -86.9, infinity above 88.72.
func (Plain) Exp(y, x []float32) {
	for i := range x {
		y[i] = exp32(x[i])
	}
}

// max32 is the largest of x, NaN passed over.
func max32(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

// Softmax sets x = e^x / sum of e^x.
func (Plain) Softmax(x []float32) {
	m := max32(x)
	for i := range x {
		x[i] = exp32(x[i] - m)
	}
	r := 1 / chains(len(x), func(i int) float32 { return x[i] })
	for i := range x {
		x[i] *= r
	}
}

// ArgMax returns the index of the first of the largest elements, -1 where one is not a number.
func (Plain) ArgMax(x []float32) int {
	best := 0
	for i, v := range x {
		if v != v {
			return -1
		}
		if v > x[best] {
			best = i
		}
	}
	return best
}

// RopeHalf turns the pairs (i, i+n), n = len(cos): (a, b) <- (a cos - b sin, b cos + a sin).
func (Plain) RopeHalf(x, cos, sin []float32) {
	for i := range cos {
		turn(&x[i], &x[i+len(cos)], cos[i], sin[i])
	}
}

// RopeAdjacent turns the pairs (2i, 2i+1), i < len(cos).
func (Plain) RopeAdjacent(x, cos, sin []float32) {
	for i := range cos {
		turn(&x[2*i], &x[2*i+1], cos[i], sin[i])
	}
}

func turn(a, b *float32, c, s float32) {
	x, y := *a, *b
	*a = float32(x*c) - float32(y*s)
	*b = float32(y*c) + float32(x*s)
}

// Conv is one token of a causal convolution over channels [c0, c1): y = w[0] state[0] + ... + w[taps-1] u, then silu if
// asked for. w: planes [tap][channel]; state: planes [taps-1][channel], oldest first, moved on by one. y may be u.
func (Plain) Conv(y, u, w, state []float32, channels, c0, c1, taps int, silu bool) {
	for c := c0; c < c1; c++ {
		var t float32
		for j := range taps {
			s := u[c]
			if j < taps-1 {
				s = state[j*channels+c]
			}
			if m := float32(w[j*channels+c] * s); j == 0 {
				t = m
			} else {
				t += m
				state[(j-1)*channels+c] = s
			}
		}
		if silu {
			t = silu32(t)
		}
		y[c] = t
	}
}
