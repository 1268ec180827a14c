package kernels

import "github.com/epq-uring/epq-uring/ggml_cgo"

// DeltaStep is one token of the gated delta net for one head:
//
//	S <- decay S;  d = beta (v - S^T k);  S <- S + k d^T;  o = S^T q
//
// state holds S transposed: a row of len(k) floats per value component, contiguous over the key components. decay is the
// factor e^g. len(q) = len(k), len(o) = len(v).
func (s *Set) DeltaStep(state, q, k, v []float32, decay, beta float32, o []float32) {
	g, b := [1]float32{decay}, [1]float32{beta}
	s.deltaStep(state, q, k, v, g[:], b[:], o, 0)
}

// DeltaStepVec is DeltaStep with a factor per key component: row i of S is multiplied by decay[i] (KDA).
func (s *Set) DeltaStepVec(state, q, k, v, decay []float32, beta float32, o []float32) {
	b := [1]float32{beta}
	s.deltaStep(state, q, k, v, decay[:len(k)], b[:], o, 1)
}

func (s *Set) deltaStep(state, q, k, v, decay, beta, o []float32, perKey int32) {
	if len(k) == 0 || len(v) == 0 {
		return
	}
	shape := ggml_cgo.DeltaShape{KeyDim: int64(len(k)), ValueDim: int64(len(v)), Tokens: 1, PerKey: perKey}
	s.vec.Delta(state[:len(k)*len(v)], q[:len(k)], k, v, decay, beta, o[:len(v)], &shape)
}

// DeltaShape says how the tokens of one head lie in memory: floats from one token to the next in each array.
type DeltaShape struct {
	KeyDim, ValueDim, Tokens                        int
	QStep, KStep, VStep, OStep, DecayStep, BetaStep int
	PerKey                                          bool // a factor of decay per key component
}

// DeltaRun is DeltaStep or DeltaStepVec for the tokens of one head, one after the other, with the state kept in the cache of
// the CPU: the same bits, in less time.
func (s *Set) DeltaRun(state, q, k, v, decay, beta, o []float32, d DeltaShape) {
	if d.KeyDim < 1 || d.ValueDim < 1 || d.Tokens < 1 {
		return
	}
	shape := ggml_cgo.DeltaShape{
		KeyDim: int64(d.KeyDim), ValueDim: int64(d.ValueDim), Tokens: int64(d.Tokens),
		QStep: int64(d.QStep), KStep: int64(d.KStep), VStep: int64(d.VStep), OStep: int64(d.OStep),
		DecayStep: int64(d.DecayStep), BetaStep: int64(d.BetaStep),
	}
	factors := 1
	if d.PerKey {
		shape.PerKey, factors = 1, d.KeyDim
	}
	until := func(x []float32, step, n int) []float32 {
		if step < 0 {
			panic("kernels: DeltaRun backwards")
		}
		return x[:(d.Tokens-1)*step+n]
	}
	s.vec.Delta(state[:d.KeyDim*d.ValueDim], until(q, d.QStep, d.KeyDim), until(k, d.KStep, d.KeyDim), until(v, d.VStep, d.ValueDim),
		until(decay, d.DecayStep, factors), until(beta, d.BetaStep, 1), until(o, d.OStep, d.ValueDim), &shape)
}
