package model

import "github.com/epq-uring/epq-uring/kernels"

// attention is grouped-query attention:
//
//	[q | gate] = W_q a   (gated: interleaved by head)    k = W_k a    v = W_v a    each + its bias, where there is one
//	q_h <- rope(RMS(q_h))    k_g <- rope(RMS(k_g))       without RMS where heads have no norms
//	o_h = sum_j w_j v_g(j)   w_j = exp(q_h . k_g(j) / sqrt(d)) / (sum_j exp(..) + exp(sink_h))    g = h div (H/G)
//	y = W_o concat_h(o_h * sigmoid(gate_h)) + bias       without gate where there is none
//
// over j <= t, of which a block with a sliding window sees the last window positions only.
func (m *Model) attention(l *layer, b *Batch) {
	s, t, c, n := &m.s, &m.tasks, m.Config, len(b.Tokens)
	m.gather(s.inPanel, s.in, nil, n, forms(&l.q, &l.k, &l.v))
	m.multiply(n,
		product{w: &l.q, in: s.inPanel, y: s.qRaw, ldy: l.q.Rows},
		product{w: &l.k, in: s.inPanel, y: s.k, ldy: l.k.Rows},
		product{w: &l.v, in: s.inPanel, y: s.v, ldy: l.v.Rows})
	t.heads.l, t.heads.b = l, b
	m.pool.Run(&t.heads, n)
	t.cutWalks(m, b, 0, n)
	t.walks.run(l, b)
	t.join.l, t.join.b = l, b
	m.pool.Run(&t.join, n)
	m.gather(s.oPanel, s.oActs, nil, n, forms(&l.out))
	m.multiply(n, product{w: &l.out, in: s.oPanel, y: s.half, ldy: c.Width})
}

// headTask norms and turns the heads of one token a unit and stores its keys and values.
type headTask struct {
	m        *Model
	l        *layer
	b        *Batch
	keysOnly bool // there are no queries
}

func (t *headTask) Do(_, i int) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	cos, sin := s.turns(c, i)
	turn := func(to, from, norm []float32) {
		if norm != nil {
			m.set.RMSNorm(to, from, norm, c.Eps)
		} else {
			copy(to, from)
		}
		m.set.Rope(to, cos, sin, kernels.Half)
	}
	t.keys(i, turn)
	if t.keysOnly {
		return
	}
	qs := s.qRaw[i*l.q.Rows:][:l.q.Rows]
	if l.qBias != nil {
		m.set.Add(qs, l.qBias)
	}
	stride := l.q.Rows / c.Heads // twice the head where the gate stands beside it
	for h := range c.Heads {
		turn(s.q[(i*c.Heads+h)*c.KeyDim:][:c.KeyDim], qs[h*stride:][:c.KeyDim], l.qNorm)
	}
}

// keys turns and stores what token i caches.
func (t *headTask) keys(i int, turn func(to, from, norm []float32)) {
	m, s, c, l, st := t.m, &t.m.s, t.m.Config, t.l, t.m.state
	seq, pos := t.b.Seqs[i], int(t.b.Pos[i])
	ks, vs := s.k[i*l.k.Rows:][:l.k.Rows], s.v[i*l.v.Rows:][:l.v.Rows]
	if l.kBias != nil {
		m.set.Add(ks, l.kBias)
		m.set.Add(vs, l.vBias)
	}
	for g := range c.KVHeads {
		k := ks[g*c.KeyDim:][:c.KeyDim]
		turn(k, k, l.kNorm)
		m.set.StoreKV(st.key(seq, l.cache, g)[pos*st.rowK:(pos+1)*st.rowK], k, st.typeK)
		m.set.StoreKV(st.value(seq, l.cache, g)[pos*st.rowV:(pos+1)*st.rowV], vs[g*c.ValueDim:][:c.ValueDim], st.typeV)
	}
}

// walk is one unit of attention: tokens [first, first+n) of one sequence over segments [seg0, seg1) of the cache that some
// neighbouring query heads read.
type walk struct {
	first, n   int
	head       int // first query head
	seg0, seg1 int
	alone      bool // a decoding token whose segments are units of their own; joinTask or expandTask puts them together
}

type walkTask struct {
	m     *Model
	l     *layer
	b     *Batch
	base  int // token that has the first row of s.q and s.o
	walks []walk
}

// run walks through a layer's cache as cutWalks has divided it.
func (t *walkTask) run(l *layer, b *Batch) {
	t.l, t.b = l, b
	t.m.pool.Run(t, len(t.walks))
}

// alone reports whether a batch is of decoding tokens, whose attention is divided by segments.
func (m *Model) alone(b *Batch) bool { return len(b.Tokens) <= m.opt.Sequences }

// cutWalks divides the attention of tokens [first, first+n): decoding tokens by segment, prompts by tokens. Either way a
// row's segments are computed alone and merged in order, so the bits are the same.
func (t *tasks) cutWalks(m *Model, b *Batch, first, n int) {
	w := t.walks.walks[:0]
	alone := m.alone(b)
	for i := first; i < first+n; {
		k := 1
		for !alone && k < m.tokensPerWalk() && i+k < first+n && b.Seqs[i+k] == b.Seqs[i] {
			k++
		}
		segs := m.segments(int(b.Pos[i+k-1]) + 1)
		for h := 0; h < m.Config.Heads; h += m.headsPerWalk() {
			if !alone {
				w = append(w, walk{first: i, n: k, head: h, seg1: segs})
				continue
			}
			for s := range segs {
				w = append(w, walk{first: i, n: 1, head: h, seg0: s, seg1: s + 1, alone: true})
			}
		}
		i += k
	}
	t.walks.walks, t.walks.base = w, first
}

func (t *walkTask) Do(worker, unit int) {
	m, c, w := t.m, t.m.Config, &t.walks[unit]
	ws := &m.s.workers[worker]
	heads := m.headsPerWalk()
	rows, stride := w.n*heads, c.ValueDim+2
	for i := range w.n {
		from := ((w.first-t.base+i)*c.Heads + w.head) * c.KeyDim
		copy(ws.q[i*heads*c.KeyDim:], m.s.q[from:from+heads*c.KeyDim])
		for h := range heads {
			ws.limits[i*heads+h] = t.b.Pos[w.first+i] + 1
		}
	}
	parts := ws.parts
	if w.alone {
		parts = m.aloneParts(w.first, w.head)[w.seg0*heads*stride:]
	}
	for s := w.seg0; s < w.seg1; s++ {
		part := parts[(s-w.seg0)*rows*stride:][:rows*stride]
		if t.l.window == 0 {
			t.attend(ws, w, part, 0, rows, s, 0)
			continue
		}
		for i := range w.n { // each token's window begins elsewhere
			r := i * heads
			t.attend(ws, w, part[r*stride:], r, heads, s, t.l.begin(int(ws.limits[r])))
		}
	}
	if w.alone {
		return
	}
	for r := range rows {
		m.merge(t.l, w.first-t.base+r/heads, w.head+r%heads, parts[r*stride:], rows*stride, int(ws.limits[r]))
	}
}

// attend lets rows [r0, r0+n) of a walk look at what segment s has from position begin on.
func (t *walkTask) attend(ws *workerScratch, w *walk, part []float32, r0, n, s, begin int) {
	m, c, st := t.m, t.m.Config, t.m.state
	from, to := max(s*kernels.Segment, begin), (s+1)*kernels.Segment
	if from >= to {
		return
	}
	seq, kv := t.b.Seqs[w.first], w.head/(c.Heads/c.KVHeads)
	m.set.AttendPart(part[:n*(c.ValueDim+2)], ws.q[r0*c.KeyDim:][:n*c.KeyDim], n, ws.limits[r0:r0+n],
		st.key(seq, t.l.cache, kv), st.value(seq, t.l.cache, kv), st.typeK, st.typeV, c.KeyDim, c.ValueDim, from, to, c.Scale)
}

// begin is the first position that a row with this limit sees.
func (l *layer) begin(limit int) int {
	if l.window == 0 {
		return 0
	}
	return max(0, limit-l.window)
}

// merge puts the segments of one row together; token counts from the first row of s.o.
func (m *Model) merge(l *layer, token, head int, parts []float32, stride, limit int) {
	c := m.Config
	o := m.s.o[(token*c.Heads+head)*c.ValueDim:][:c.ValueDim]
	first := l.begin(limit) / kernels.Segment
	parts, n := parts[first*stride:], m.segments(limit)-first
	if l.sinks != nil {
		m.set.AttendMergeSink(o, parts, n, stride, c.ValueDim, l.sinks[head])
		return
	}
	m.set.AttendMerge(o, parts, n, stride, c.ValueDim)
}

// mergeAlone is merge for a decoding token, whose segments were units of their own.
func (m *Model) mergeAlone(l *layer, token, head, limit int) {
	heads, stride := m.headsPerWalk(), m.Config.ValueDim+2
	m.merge(l, token, head, m.aloneParts(token, head)[head%heads*stride:], heads*stride, limit)
}

// aloneParts is where the segments of a decoding token go, for the query heads that share a walk with this one:
// [segment][head][ValueDim+2].
func (m *Model) aloneParts(token, head int) []float32 {
	c, heads := m.Config, m.headsPerWalk()
	n := heads * m.segments(m.opt.Context) * (c.ValueDim + 2)
	return m.s.parts[(token*c.Heads+head)/heads*n:][:n]
}

// joinTask finishes one token a unit: merges its segments if they were units of their own, gates, quantises.
type joinTask struct {
	m *Model
	l *layer
	b *Batch
}

func (t *joinTask) Do(_, i int) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	if m.alone(t.b) {
		for h := range c.Heads {
			m.mergeAlone(l, i, h, int(t.b.Pos[i])+1)
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
