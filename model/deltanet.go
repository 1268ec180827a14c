package model

import (
	"math"

	"github.com/epq-uring/epq-uring/kernels"
)

// deltaNet is the gated delta net (spec of qwen35moe, section 3); per token, with a the normed input:
//
//	u = W_qkv a    z = W_gate a    beta = sigmoid(W_beta a)    g = ssm_a * softplus(W_alpha a + dt)
//	q, k, v = split of silu(causal convolution of u);  q, k of unit length by head, q / sqrt(s)
//	S <- exp(g) S;  d = beta (v - S k);  S <- S + d k';  o = S q          v head h reads q/k head h mod Hk
//	y = W_out concat_h(RMS(o_h; ssm_norm) * silu(z_h))
func (m *Model) deltaNet(l *layer, b *Batch) {
	s, c, n := &m.s, m.Config, len(b.Tokens)
	m.gather(s.inPanel, s.in, nil, n, forms(&l.qkv, &l.z, &l.alpha, &l.beta))
	m.multiply(n,
		product{w: &l.qkv, in: s.inPanel, y: s.qkv, ldy: l.qkv.Rows},
		product{w: &l.z, in: s.inPanel, y: s.z, ldy: l.z.Rows},
		product{w: &l.alpha, in: s.inPanel, y: s.alpha, ldy: c.ValueHeads},
		product{w: &l.beta, in: s.inPanel, y: s.beta, ldy: c.ValueHeads})
	m.recur(l, b)
}

// recur is the rest of a recurrent layer once its inputs are projected: the heads, and the projection of what they leave.
func (m *Model) recur(l *layer, b *Batch) {
	s, n := &m.s, len(b.Tokens)
	m.rewind.keep(m, l, b)
	m.runHeads(l, b)
	m.tasks.quantise.run(m, n, s.yActs, s.y)
	m.gather(s.yPanel, s.yActs, nil, n, forms(&l.ssmOut))
	m.multiply(n, product{w: &l.ssmOut, in: s.yPanel, y: s.half, ldy: m.Config.Width})
}

// runHeads moves the states of a recurrent layer on by a batch.
func (m *Model) runHeads(l *layer, b *Batch) {
	t := &m.tasks
	if l.mixer == KDA {
		t.kda.l, t.kda.b = l, b
		m.pool.Run(&t.kda, m.Config.ValueHeads)
		return
	}
	t.delta.l, t.delta.b = l, b
	m.pool.Run(&t.delta, m.Config.KeyGroups)
}

// deltaTask walks the batch for one q/k head and its v heads a unit, so that their state stays in cache over a prompt.
type deltaTask struct {
	m *Model
	l *layer
	b *Batch
}

func (t *deltaTask) Do(_, g int) { t.b.sequences(func(first, n int) { t.run(g, first, n) }) }

// run is q/k head g and its v heads over tokens [first, first+n) of one sequence: all inputs first, then each head's
// recurrence in one go, then all outputs.
func (t *deltaTask) run(g, first, n int) {
	m, s, c := t.m, &t.m.s, t.m.Config
	dim, channels, heads := c.StateDim, c.convChannels(), c.ValueHeads
	at := int(t.b.Seqs[first])*m.state.recurrents + t.l.recurrent
	for i := first; i < first+n; i++ {
		t.prepare(g, i, m.state.taps[at])
	}
	shape := kernels.DeltaShape{
		KeyDim: dim, ValueDim: dim, Tokens: n, QStep: channels, KStep: channels, VStep: channels, OStep: heads * dim, DecayStep: heads, BetaStep: heads,
	}
	u := s.qkv[first*channels:]
	for h := g; h < heads; h += c.KeyGroups {
		state := m.state.matrices[at][h*dim*dim : (h+1)*dim*dim]
		m.rewind.keepMatrix(t.b.Seqs[first], at, h*dim*dim, state)
		m.set.DeltaRun(state, u[g*dim:], u[(c.KeyGroups+g)*dim:], u[(2*c.KeyGroups+h)*dim:], s.alpha[first*heads+h:], s.beta[first*heads+h:],
			s.y[(first*heads+h)*dim:], shape)
		for i := first; i < first+n; i++ {
			o := s.y[(i*heads+h)*dim:][:dim]
			m.set.RMSNorm(o, o, t.l.ssmNorm, c.Eps)
			m.set.SiLUMul(o, s.z[(i*heads+h)*dim:][:dim], o)
		}
	}
}

// prepare turns what was projected for one token into q, k, v, decay factor and beta, in place.
func (t *deltaTask) prepare(g, i int, taps []float32) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	dim, channels := c.StateDim, c.convChannels()
	u := s.qkv[i*channels : (i+1)*channels]
	conv := func(channel int) []float32 {
		m.set.Conv(u, u, l.conv, taps, channels, channel, channel+dim, c.ConvTaps, true)
		return u[channel : channel+dim]
	}
	q, k := conv(g*dim), conv((c.KeyGroups+g)*dim)
	m.set.L2Norm(q, q, c.Eps, float32(1/math.Sqrt(float64(dim))))
	m.set.L2Norm(k, k, c.Eps, 1)
	for h := g; h < c.ValueHeads; h += c.KeyGroups {
		conv((2*c.KeyGroups + h) * dim)
		alpha, beta := &s.alpha[i*c.ValueHeads+h], &s.beta[i*c.ValueHeads+h]
		*alpha = expf(l.decay[h] * softplus(*alpha+l.dtBias[h]))
		*beta = sigmoid(*beta)
	}
}

// Scalars of a head: few per token, so the library's precision costs nothing.

func expf(x float32) float32 { return float32(math.Exp(float64(x))) }

func sigmoid(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

// softplus is ln(1 + e^x); above 20 the difference to x is below half a unit in the last place.
func softplus(x float32) float32 {
	if x > 20 {
		return x
	}
	return float32(math.Log1p(math.Exp(float64(x))))
}
