package model

import (
	"math"

	"github.com/epq-uring/epq-uring/kernels"
)

// attention is grouped-query attention, with or without a gate on its output:
//
//	[q | gate] = W_q a   (gated: interleaved by head)    k = W_k a    v = W_v a
//	q_h <- rope(RMS(q_h))    k_g <- rope(RMS(k_g))
//	o_h = sum_{j<=t} softmax_j(q_h . k_g(j) / sqrt(d)) v_g(j)    g = h div (H/G)
//	y = W_o concat_h(o_h * sigmoid(gate_h))
func (m *Model) attention(l *layer, b *Batch) {
	s, t, c, n := &m.s, &m.tasks, m.Config, len(b.Tokens)
	m.gather(s.inPanel, s.in, nil, n, forms(&l.q, &l.k, &l.v))
	m.multiply(n,
		product{w: &l.q, in: s.inPanel, y: s.qRaw, ldy: l.q.Rows},
		product{w: &l.k, in: s.inPanel, y: s.k, ldy: l.k.Rows},
		product{w: &l.v, in: s.inPanel, y: s.v, ldy: l.v.Rows})
	t.heads.l, t.heads.b = l, b
	m.pool.Run(&t.heads, n)
	t.walks.l, t.walks.b = l, b
	m.pool.Run(&t.walks, len(t.walks.walks))
	t.join.l, t.join.b = l, b
	m.pool.Run(&t.join, n)
	m.gather(s.oPanel, s.oActs, nil, n, forms(&l.out))
	m.multiply(n, product{w: &l.out, in: s.oPanel, y: s.half, ldy: c.Width})
}

// headTask norms and turns the heads of one token a unit and stores its keys and values.
type headTask struct {
	m *Model
	l *layer
	b *Batch
}

func (t *headTask) Do(_, i int) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	seq, pos := t.b.Seqs[i], int(t.b.Pos[i])
	half := c.RopeDim / 2
	cos, sin := s.cos[i*half:(i+1)*half], s.sin[i*half:(i+1)*half]
	stride := l.q.Rows / c.Heads // twice the head where the gate stands beside it
	for h := range c.Heads {
		raw := s.qRaw[i*l.q.Rows+h*stride:][:c.KeyDim]
		q := s.q[(i*c.Heads+h)*c.KeyDim:][:c.KeyDim]
		m.set.RMSNorm(q, raw, l.qNorm, c.Eps)
		m.set.Rope(q, cos, sin, kernels.Half)
	}
	for g := range c.KVHeads {
		k := s.k[(i*c.KVHeads+g)*c.KeyDim:][:c.KeyDim]
		m.set.RMSNorm(k, k, l.kNorm, c.Eps)
		m.set.Rope(k, cos, sin, kernels.Half)
		st := m.state
		m.set.StoreKV(st.key(seq, l.cache, g)[pos*st.rowK:(pos+1)*st.rowK], k, st.typeK)
		v := s.v[(i*c.KVHeads+g)*c.ValueDim:][:c.ValueDim]
		m.set.StoreKV(st.value(seq, l.cache, g)[pos*st.rowV:(pos+1)*st.rowV], v, st.typeV)
	}
}

// walk is one unit of attention: tokens [first, first+n) of one sequence over segments [seg0, seg1) of one kv head.
type walk struct {
	first, n   int
	head       int
	seg0, seg1 int
	alone      bool // a decoding token whose segments are units of their own; joinTask puts them together
}

type walkTask struct {
	m     *Model
	l     *layer
	b     *Batch
	walks []walk
}

// cutWalks divides a batch's attention once for all layers: decoding tokens by segment, prompts by tokens. Either way a
// row's segments are computed alone and merged in order, so the bits are the same.
func (t *tasks) cutWalks(m *Model, b *Batch) {
	w := t.walks.walks[:0]
	defer func() { t.walks.walks = w }()
	if m.state.caches == 0 {
		return
	}
	alone := len(b.Tokens) <= m.opt.Sequences
	for i := 0; i < len(b.Tokens); {
		n := 1
		for !alone && n < m.tokensPerWalk() && i+n < len(b.Tokens) && b.Seqs[i+n] == b.Seqs[i] {
			n++
		}
		segs := m.segments(int(b.Pos[i+n-1]) + 1)
		for g := range m.Config.KVHeads {
			if !alone {
				w = append(w, walk{first: i, n: n, head: g, seg1: segs})
				continue
			}
			for s := range segs {
				w = append(w, walk{first: i, n: 1, head: g, seg0: s, seg1: s + 1, alone: true})
			}
		}
		i += n
	}
}

func (t *walkTask) Do(worker, unit int) {
	m, c, w := t.m, t.m.Config, &t.walks[unit]
	ws := &m.s.workers[worker]
	perToken := c.Heads / c.KVHeads
	rows, stride := w.n*perToken, c.ValueDim+2
	for i := range w.n {
		from := ((w.first+i)*c.Heads + w.head*perToken) * c.KeyDim
		copy(ws.q[i*perToken*c.KeyDim:], m.s.q[from:from+perToken*c.KeyDim])
		for h := range perToken {
			ws.limits[i*perToken+h] = t.b.Pos[w.first+i] + 1
		}
	}
	parts := ws.parts
	if w.alone {
		parts = m.aloneParts(w.first, w.head)[w.seg0*perToken*stride:]
	}
	st, seq := m.state, t.b.Seqs[w.first]
	for s := w.seg0; s < w.seg1; s++ {
		m.set.AttendPart(parts[(s-w.seg0)*rows*stride:][:rows*stride], ws.q[:rows*c.KeyDim], rows, ws.limits[:rows],
			st.key(seq, t.l.cache, w.head), st.value(seq, t.l.cache, w.head), st.typeK, st.typeV, c.KeyDim, c.ValueDim,
			s*kernels.Segment, (s+1)*kernels.Segment, m.attentionScale())
	}
	if w.alone {
		return
	}
	for r := range rows {
		token, head := w.first+r/perToken, w.head*perToken+r%perToken
		m.merge(token, head, parts[r*stride:], rows*stride, int(ws.limits[r]))
	}
}

// merge puts the segments of one row together.
func (m *Model) merge(token, head int, parts []float32, stride, limit int) {
	c := m.Config
	o := m.s.o[(token*c.Heads+head)*c.ValueDim:][:c.ValueDim]
	m.set.AttendMerge(o, parts, m.segments(limit), stride, c.ValueDim)
}

// aloneParts is where the segments of a decoding token and kv head go: [segment][head of the group][ValueDim+2].
func (m *Model) aloneParts(token, head int) []float32 {
	c := m.Config
	n := c.Heads / c.KVHeads * m.segments(m.opt.Context) * (c.ValueDim + 2)
	return m.s.parts[(token*c.KVHeads+head)*n:][:n]
}

// joinTask finishes one token a unit: merges its segments if they were units of their own, gates, quantises.
type joinTask struct {
	m *Model
	l *layer
	b *Batch
}

func (t *joinTask) Do(_, i int) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	perToken, stride := c.Heads/c.KVHeads, c.ValueDim+2
	if len(t.b.Tokens) <= m.opt.Sequences {
		for h := range c.Heads {
			parts := m.aloneParts(i, h/perToken)[h%perToken*stride:]
			m.merge(i, h, parts, perToken*stride, int(t.b.Pos[i])+1)
		}
	}
	o := s.o[i*c.Heads*c.ValueDim:][:c.Heads*c.ValueDim]
	if l.mixer == GatedAttention {
		for h := range c.Heads {
			gate := s.qRaw[i*l.q.Rows+(2*h+1)*c.KeyDim:][:c.ValueDim]
			m.set.SigmoidMul(o[h*c.ValueDim:(h+1)*c.ValueDim], o[h*c.ValueDim:(h+1)*c.ValueDim], gate)
		}
	}
	m.set.Quantize(s.oActs, i, o)
}

func (m *Model) attentionScale() float32 { return float32(1 / math.Sqrt(float64(m.Config.KeyDim))) }
