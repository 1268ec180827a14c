package kernels

import "math"

// The small operations: one thread, any length, the same bits in every set. Sums are taken over 16 lanes in an order that
// depends on the length only. A slice shorter than the one that gives the length panics.

// RMSNorm sets y = x / sqrt(mean(x^2) + eps) * w; w nil: no weight. y may be x.
func (s *Set) RMSNorm(y, x, w []float32, eps float32) {
	if len(x) == 0 {
		return
	}
	if w != nil {
		w = w[:len(x)]
	}
	s.vec.RMSNorm(y[:len(x)], x, w, eps)
}

// L2Norm sets y = x / max(|x|, eps) * scale. y may be x.
func (s *Set) L2Norm(y, x []float32, eps, scale float32) { s.vec.L2Norm(y[:len(x)], x, eps, scale) }

// Add sets y = y + x, over the length of x.
func (s *Set) Add(y, x []float32) { s.vec.Add(y[:len(x)], x) }

// AddScaled sets y = y + a x, over the length of x.
func (s *Set) AddScaled(y, x []float32, a float32) { s.vec.AddScaled(y[:len(x)], x, a) }

// Scale sets y = a y.
func (s *Set) Scale(y []float32, a float32) { s.vec.Scale(y, a) }

// SiLU sets y = x / (1 + e^-x). y may be x.
func (s *Set) SiLU(y, x []float32) { s.vec.SiLU(y[:len(x)], x) }

// SiLUMul sets y = silu(gate) up. y may be gate or up.
func (s *Set) SiLUMul(y, gate, up []float32) { s.vec.SiLUMul(y[:len(gate)], gate, up[:len(gate)]) }

// Sigmoid sets y = 1 / (1 + e^-x). y may be x.
func (s *Set) Sigmoid(y, x []float32) { s.vec.Sigmoid(y[:len(x)], x) }

// SigmoidMul sets y = x sigmoid(gate). y may be x or gate.
func (s *Set) SigmoidMul(y, x, gate []float32) { s.vec.SigmoidMul(y[:len(x)], x, gate[:len(x)]) }

// Exp sets y = e^x with a relative error below 2e-7; 0 below -86.9, infinity above 88.72. y may be x.
func (s *Set) Exp(y, x []float32) { s.vec.Exp(y[:len(x)], x) }

// Softmax sets x = e^x / sum of e^x.
func (s *Set) Softmax(x []float32) { s.vec.Softmax(x) }

// Dot returns the sum of a[i] b[i] over the length of a.
func (s *Set) Dot(a, b []float32) float32 { return s.vec.Dot(a, b[:len(a)]) }

// ArgMax returns the index of the first of the largest elements; -1 where one is not a number or there is none.
func (s *Set) ArgMax(x []float32) int {
	if len(x) == 0 {
		return -1
	}
	return s.vec.ArgMax(x)
}

// Pairing says which components of a head rope turns together.
type Pairing uint8

const (
	Half     Pairing = iota // (i, i+n)
	Adjacent                // (2i, 2i+1)
)

// Rope turns n = len(cos) pairs of one head by the angles of RopeTable: (a, b) <- (a cos - b sin, b cos + a sin). The
// components from 2n on stay.
func (s *Set) Rope(x []float32, cos, sin []float32, p Pairing) {
	x, sin = x[:2*len(cos)], sin[:len(cos)]
	if p == Adjacent {
		s.vec.RopeAdjacent(x, cos, sin)
	} else {
		s.vec.RopeHalf(x, cos, sin)
	}
}

// RopeTable sets the cosine and sine of the angles pos * base^(-i/n) / factor[i], i < n = len(cos), in float64; factor
// nil: 1. Angles by repeated multiplication in float32 are off by 0.005 at position 262143.
func RopeTable(cos, sin []float32, pos int, base float64, factor []float32) {
	n := float64(len(cos))
	for i := range cos {
		a := float64(pos) * math.Pow(base, -float64(i)/n)
		if factor != nil {
			a /= float64(factor[i])
		}
		s, c := math.Sincos(a)
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// Conv is one token of a causal convolution over channels [c0, c1): y = w[0] state[0] + ... + w[taps-2] state[taps-2] +
// w[taps-1] u, then silu if asked for. w: planes [taps][channels]; state: planes [taps-1][channels], oldest first, moved on
// by one token. y may be u. Different ranges of channels may run in parallel.
func (s *Set) Conv(y, u, w, state []float32, channels, c0, c1, taps int, silu bool) {
	if c0 < 0 || c1 > channels || taps < 1 {
		panic("kernels: Conv of channels that are not there")
	}
	s.vec.Conv(y[:channels], u[:channels], w[:taps*channels], state[:(taps-1)*channels], channels, c0, c1, taps, silu)
}
