package model

import (
	"math"

	"github.com/epq-uring/epq-uring/kernels"
)

// kda is Kimi delta attention (docs/models/bailingmoe3.md): a delta net whose state forgets by key component. Per token,
// with a the normed input, and H heads of d:
//
//	u = W_q a, W_k a, W_v a side by side      z = W_g a      beta = sigmoid(W_beta a)      f = W_f a
//	q, k, v = silu(causal convolution of u);  q, k of unit length by head, q / sqrt(d)
//	g = bound sigmoid(ssm_a (f + dt))         by component, in (bound, 0)
//	S <- exp(g) S by row;  e = beta (v - S' k);  S <- S + k e';  o = S' q
//	y = W_o concat_h(RMS(o_h; ssm_norm) * sigmoid(z_h))
func (m *Model) kda(l *layer, b *Batch) {
	s, c, n := &m.s, m.Config, len(b.Tokens)
	inner, channels := c.StateDim*c.ValueHeads, c.convChannels()
	m.gather(s.inPanel, s.in, nil, n, forms(&l.q, &l.k, &l.v, &l.z, &l.alpha, &l.beta))
	m.multiply(n,
		product{w: &l.q, in: s.inPanel, y: s.qkv, ldy: channels},
		product{w: &l.k, in: s.inPanel, y: s.qkv[inner:], ldy: channels},
		product{w: &l.v, in: s.inPanel, y: s.qkv[2*inner:], ldy: channels},
		product{w: &l.z, in: s.inPanel, y: s.z, ldy: inner},
		product{w: &l.alpha, in: s.inPanel, y: s.alpha, ldy: inner},
		product{w: &l.beta, in: s.inPanel, y: s.beta, ldy: c.ValueHeads})
	m.recur(l, b)
}

// kdaTask walks the batch for one head a unit, so that its state stays in cache over a prompt.
type kdaTask struct {
	m *Model
	l *layer
	b *Batch
}

func (t *kdaTask) Do(_, h int) { t.b.sequences(func(first, n int) { t.run(h, first, n) }) }

// run is one head over tokens [first, first+n) of one sequence.
func (t *kdaTask) run(h, first, n int) {
	m, s, c := t.m, &t.m.s, t.m.Config
	dim, inner, channels := c.StateDim, c.StateDim*c.ValueHeads, c.convChannels()
	at := int(t.b.Seqs[first])*m.state.recurrents + t.l.recurrent
	for i := first; i < first+n; i++ {
		t.prepare(h, i, m.state.taps[at])
	}
	shape := kernels.DeltaShape{
		KeyDim: dim, ValueDim: dim, Tokens: n, QStep: channels, KStep: channels, VStep: channels, OStep: inner,
		DecayStep: inner, BetaStep: c.ValueHeads, PerKey: true,
	}
	u, from := s.qkv[first*channels+h*dim:], first*inner+h*dim
	state := m.state.matrices[at][h*dim*dim : (h+1)*dim*dim]
	m.rewind.keepMatrix(t.b.Seqs[first], at, h*dim*dim, state)
	m.set.DeltaRun(state, u, u[inner:], u[2*inner:], s.alpha[from:],
		s.beta[first*c.ValueHeads+h:], s.y[from:], shape)
	for i := range n {
		o := s.y[from+i*inner:][:dim]
		m.set.RMSNorm(o, o, t.l.ssmNorm, c.Eps)
		m.set.SigmoidMul(o, o, s.z[from+i*inner:][:dim])
	}
}

// prepare turns what was projected for one token into q, k, v, decay factors and beta, in place.
func (t *kdaTask) prepare(h, i int, taps []float32) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	dim, inner, channels := c.StateDim, c.StateDim*c.ValueHeads, c.convChannels()
	u := s.qkv[i*channels : (i+1)*channels]
	for at := h * dim; at < channels; at += inner {
		m.set.Conv(u, u, l.conv, taps, channels, at, at+dim, c.ConvTaps, true)
	}
	q, k := u[h*dim:(h+1)*dim], u[inner+h*dim:][:dim]
	m.set.L2Norm(q, q, c.Eps, float32(1/math.Sqrt(float64(dim))))
	m.set.L2Norm(k, k, c.Eps, 1)
	f := s.alpha[i*inner+h*dim:][:dim]
	m.set.Add(f, l.dtBias[h*dim:(h+1)*dim])
	m.set.Scale(f, l.decay[h])
	m.set.Sigmoid(f, f)
	m.set.Scale(f, c.DecayBound)
	m.set.Exp(f, f)
	beta := &s.beta[i*c.ValueHeads+h]
	*beta = sigmoid(*beta)
}
