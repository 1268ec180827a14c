package model

import "github.com/epq-uring/epq-uring/kernels"

// latent is multi-head latent attention in its absorbed form (docs/models/bailingmoe3.md, deepseek2.md): all heads read one
// cached key [c | p], whose first part is also the value, and each head's matrices move its query into that space and the
// result out of it.
//
//	[q_h | r_h] = W_q a, or W_qb RMS(W_qa a)       [c | p] = W_kva a       c <- RMS(c)    r_h, p <- rope (neighbouring pairs)
//	u_h = W_kb,h q_h       o_h = sum_{j<=t} softmax_j(scale (u_h . c_j + r_h . p_j)) c_j
//	y = W_o concat_h(W_vb,h o_h * sigmoid(gate_h))           gate = W_gate a, where there is one
//
// A prompt passes in slices, so that what lies in the wide space stays small.
func (m *Model) latent(l *layer, b *Batch) {
	s, t, c, n := &m.s, &m.tasks, m.Config, len(b.Tokens)
	m.latentInputs(l, n)
	t.turn.l, t.turn.b = l, b
	m.pool.Run(&t.turn, n)
	for first := 0; first < n; first += m.sliceOf() {
		count := min(m.sliceOf(), n-first)
		t.absorb = absorbTask{m: m, l: l, first: first, n: count}
		m.pool.Run(&t.absorb, c.Heads)
		t.cutWalks(m, b, first, count)
		t.walks.run(l, b)
		t.expand = expandTask{m: m, l: l, b: b, first: first, n: count}
		m.pool.Run(&t.expand, c.Heads)
	}
	t.quantise.run(m, n, s.oActs, s.oHeads)
	m.gather(s.oPanel, s.oActs, nil, n, forms(&l.out))
	m.multiply(n, product{w: &l.out, in: s.oPanel, y: s.half, ldy: c.Width})
}

// latentInputs projects queries, the compressed key and the gate.
func (m *Model) latentInputs(l *layer, n int) {
	s := &m.s
	first, y := &l.q, s.qRaw
	if l.qA.Rows > 0 {
		first, y = &l.qA, s.qRank
	}
	m.gather(s.inPanel, s.in, nil, n, forms(first, &l.kvA, &l.gate))
	m.multiply(n,
		product{w: first, in: s.inPanel, y: y, ldy: first.Rows},
		product{w: &l.kvA, in: s.inPanel, y: s.k, ldy: l.kvA.Rows},
		product{w: &l.gate, in: s.inPanel, y: s.gate, ldy: l.gate.Rows})
	if l.qA.Rows == 0 {
		return
	}
	rank := l.qA.Rows
	for i := range n {
		m.set.RMSNorm(s.qRank[i*rank:(i+1)*rank], s.qRank[i*rank:(i+1)*rank], l.qANorm, m.Config.Eps)
	}
	m.tasks.quantise.run(m, n, s.qRankActs, s.qRank)
	m.gather(s.qRankPanel, s.qRankActs, nil, n, forms(&l.q))
	m.multiply(n, product{w: &l.q, in: s.qRankPanel, y: s.qRaw, ldy: l.q.Rows})
}

// turnTask norms one token's compressed key, turns what turns and stores the key.
type turnTask struct {
	m        *Model
	l        *layer
	b        *Batch
	keysOnly bool // there are no queries
}

func (t *turnTask) Do(_, i int) {
	m, s, c := t.m, &t.m.s, t.m.Config
	cos, sin := s.turns(c, i)
	head := c.Latent.Nope + c.Rope.Dim
	for h := range c.Heads {
		if t.keysOnly {
			break
		}
		m.set.Rope(s.qRaw[(i*c.Heads+h)*head+c.Latent.Nope:][:c.Rope.Dim], cos, sin, kernels.Adjacent)
	}
	k := s.k[i*c.KeyDim : (i+1)*c.KeyDim]
	m.set.RMSNorm(k[:c.Latent.Rank], k[:c.Latent.Rank], t.l.kvANorm, c.Eps)
	m.set.Rope(k[c.Latent.Rank:], cos, sin, kernels.Adjacent)
	st, pos := m.state, int(t.b.Pos[i])
	m.set.StoreKV(st.key(t.b.Seqs[i], t.l.cache, 0)[pos*st.rowK:(pos+1)*st.rowK], k, st.typeK)
}

// absorbTask moves one head's queries of a slice into the space of the compressed key.
type absorbTask struct {
	m        *Model
	l        *layer
	first, n int
}

func (t *absorbTask) Do(worker, h int) {
	m, s, c := t.m, &t.m.s, t.m.Config
	n, head := c.Latent, c.Latent.Nope+c.Rope.Dim
	for i := range t.n {
		q := s.qRaw[((t.first+i)*c.Heads+h)*head:][:head]
		m.set.Quantize(s.nope, i*c.Heads+h, q[:n.Nope])
		copy(s.q[(i*c.Heads+h)*c.KeyDim+n.Rank:][:c.Rope.Dim], q[n.Nope:])
	}
	w := block(t.l.kB, h*n.Rank, n.Rank)
	m.multiplyHead(worker, h, t.n, &w, m.s.workers[worker].nope, s.nope, s.q[h*c.KeyDim:], c.Heads*c.KeyDim)
}

// expandTask moves one head's results of a slice out of the space of the compressed key, and gates them.
type expandTask struct {
	m        *Model
	l        *layer
	b        *Batch
	first, n int
}

func (t *expandTask) Do(worker, h int) {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	n := c.Latent
	for i := range t.n {
		if m.alone(t.b) {
			m.mergeAlone(l, i, h, int(t.b.Pos[i])+1)
		}
		m.set.Quantize(s.latent, i*c.Heads+h, s.o[(i*c.Heads+h)*n.Rank:][:n.Rank])
	}
	w := block(l.vB, h*l.vStep+l.vFirst, n.Head)
	y := s.oHeads[(t.first*c.Heads+h)*n.Head:]
	m.multiplyHead(worker, h, t.n, &w, s.workers[worker].latents, s.latent, y, c.Heads*n.Head)
	if l.gate.Rows == 0 {
		return
	}
	for i := range t.n {
		m.set.Scale(y[i*c.Heads*n.Head:][:n.Head], sigmoid(s.gate[(t.first+i)*c.Heads+h]))
	}
}

// multiplyHead multiplies a matrix of one head with that head's columns of a slice; all of it on one worker.
func (m *Model) multiplyHead(worker, h, n int, w *kernels.Matrix, p *kernels.Panel, a *kernels.Acts, y []float32, ldy int) {
	cols := m.s.workers[worker].cols[:n]
	for i := range cols {
		cols[i] = int32(i*m.Config.Heads + h)
	}
	for g := range m.set.Gather(p, a, cols, n, forms(w)) {
		m.set.Pack(p, g)
	}
	m.set.Mul(w, 0, w.Rows, p, y, ldy)
}
