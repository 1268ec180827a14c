package model

import (
	"errors"
	"fmt"
	"math"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/kernels"
)

// ErrNotFinite is the kind of a router whose scores are NaN or infinite: broken weights, or activations that overflowed.
var ErrNotFinite = errors.New("not finite")

// feedForward is the second half of a layer: router, routed experts added in rank order, then what stands beside them. A
// layer without routed experts has the latter alone. E is the activation (activation.go).
//
//	T, w = chosen experts and their weights (route.go)
//	x += sum over T of w_e (W_down,e E(W_gate,e a, W_up,e a) + bias) + switch shared(a)      switch = sigmoid(w_s . a), or 1
func (m *Model) feedForward(l *layer, b *Batch) error {
	s, t, n := &m.s, &m.tasks, len(b.Tokens)
	t.moe.l, t.moe.tokens, t.moe.shared, t.sum.l = l, n, l.sharedGate.Rows > 0, l
	if l.moe < 0 {
		m.gather(s.inPanel, s.in, nil, n, forms(&l.sharedGate, &l.sharedUp))
		if err := t.moe.compute(nil); err != nil {
			return err
		}
		m.pool.Run(&t.sum, n)
		t.moe.last = nil // its memory holds the dense layer's hidden state now
		return nil
	}
	if err := m.chooseExperts(l, b); err != nil {
		return err
	}
	m.experts.Hint(l.moe, s.x[:n*m.Config.Width])
	m.groupByExpert(n)
	group := groupExperts
	if n == 1 {
		group = m.Config.Used
	}
	if err := m.experts.Use(l.moe, s.union, group, t.moe.ready); err != nil {
		return fmt.Errorf("layer %d: %w", l.block, err)
	}
	m.pool.Run(&t.sum, n)
	t.moe.last = l
	return nil
}

// chooseExperts runs the router; the panel it leaves serves the shared expert too.
func (m *Model) chooseExperts(l *layer, b *Batch) error {
	s, t, n := &m.s, &m.tasks, len(b.Tokens)
	f := forms(&l.router, &l.sharedGate, &l.sharedUp)
	if n == 1 {
		// A lone token's experts read this very panel.
		g, _ := kernels.FormOf(l.gateType)
		u, _ := kernels.FormOf(l.upType)
		f |= g | u
	}
	m.gather(s.inPanel, s.in, nil, n, f)
	m.multiply(n, product{w: &l.router, in: s.inPanel, y: s.scores, ldy: m.Config.Experts})
	t.route.l, t.route.bad = l, -1
	m.pool.Run(&t.route, n)
	if bad := int(t.route.bad); bad >= 0 {
		return m.notFinite(l, b, bad)
	}
	if (m.Observer != nil || m.Force != nil) && l.block < m.Config.Blocks {
		m.observe(l, b)
	}
	return nil
}

// notFinite says what broke the scores of layer l for a token of the batch: an expert of the layer before, or else the
// router itself.
func (m *Model) notFinite(l *layer, b *Batch, token int) error {
	if block, e, ok := m.Culprit(b, token); ok {
		return fmt.Errorf("model: layer %d, expert %d, position %d: %w: its output, from weights that are no numbers or activations that overflowed; "+
			"check the file (epq-uring verify)", block, e, b.Pos[token], ErrNotFinite)
	}
	return fmt.Errorf("%w: its router's scores, from weights or activations that overflowed; check the file", tokenErrorKind(l, b, token, ErrNotFinite))
}

// Culprit finds the routed expert whose output is not finite for some token of the sequence that b's given token belongs to,
// in the last layer with experts that this pass has computed. What such an expert breaks shows in the next router's scores,
// or in the logits; b is the batch that Forward is at. It is not for the hot path.
func (m *Model) Culprit(b *Batch, token int) (block, e int, ok bool) {
	s, n := &m.s, m.Config.Width
	if m.tasks.moe.last == nil {
		return 0, 0, false
	}
	for _, id := range s.union {
		for r := s.base[id]; r < s.base[id]+s.count[id]; r++ {
			if b.Seqs[s.cols[r]] == b.Seqs[token] && !finite(s.out[int(r)*n:int(r+1)*n]) {
				return m.tasks.moe.last.block, int(id), true
			}
		}
	}
	return 0, 0, false
}

func finite(x []float32) bool {
	for _, v := range x {
		if !(v >= -math.MaxFloat32 && v <= math.MaxFloat32) {
			return false
		}
	}
	return true
}

// observe shows the model's own choice and replaces it where a choice is forced; the weights follow from the scores of
// whatever is selected.
func (m *Model) observe(l *layer, b *Batch) {
	s, k := &m.s, m.Config.Used
	for i := range b.Tokens {
		ids := s.ids[i*k : (i+1)*k]
		if m.Observer != nil {
			m.Observer(l.moe, i, ids)
		}
		if m.Force == nil {
			continue
		}
		if forced := m.Force(l.moe, i); forced != nil {
			copy(ids, forced)
			m.Config.weigh(ids, s.weights[i*k:(i+1)*k], s.scores[i*m.Config.Experts:(i+1)*m.Config.Experts])
		}
	}
}

// groupByExpert sorts the batch's (token, rank) pairs by expert: each expert gets neighbouring rows of the hidden states
// and outputs. A lone token keeps its ranks' order, so that the heaviest expert is read first.
func (m *Model) groupByExpert(n int) {
	s, k := &m.s, m.Config.Used
	ids := s.ids[:n*k]
	s.union = s.union[:0]
	clear(s.count)
	for _, e := range ids {
		if s.count[e] == 0 {
			s.union = append(s.union, e)
		}
		s.count[e]++
	}
	row := int32(0)
	for _, e := range s.union {
		s.base[e] = row
		row += s.count[e]
		s.count[e] = 0
	}
	for i, e := range ids {
		r := s.base[e] + s.count[e]
		s.count[e]++
		s.rowOf[i], s.cols[r] = r, int32(i/k)
	}
}

// job is one expert's work on its tokens: out[first+i] = down(E(gate a, up a)) of column cols[i].
type job struct {
	gate, up, down kernels.Matrix
	joint          joint
	in, mid        *kernels.Panel
	hidden         *kernels.Acts
	first, n       int // rows of hidden
	out            []float32
}

// moeRun computes the experts of a layer as they become ready.
type moeRun struct {
	m      *Model
	l      *layer
	tokens int
	shared bool // the shared expert is still to be computed; it goes with the first group
	jobs   []job
	last   *layer // whose experts' outputs are in the scratch, of this pass; nil: none
	ready  func([]expert.Ready) error
}

func (t *moeRun) compute(ready []expert.Ready) error {
	m, s := t.m, &t.m.s
	t.jobs = t.jobs[:0]
	if t.shared {
		t.shared = false
		t.addShared()
	}
	for i, r := range ready {
		if err := t.add(i, r); err != nil {
			return err
		}
	}
	m.tasks.pack.run()
	units := 0
	for i := range t.jobs {
		units += t.jobs[i].parts()
	}
	m.tasks.gate.jobs = t.jobs
	m.pool.Run(&m.tasks.gate, units)

	for i, r := range ready {
		j := &t.jobs[len(t.jobs)-len(ready)+i]
		data, err := r.Down()
		if err != nil {
			return err
		}
		if j.down, err = kernels.NewMatrix(t.l.downType, m.Config.Width, m.Config.ExpertWidth, data); err != nil {
			return err
		}
	}
	mul := &m.tasks.mul
	mul.products = mul.products[:0]
	for i := range t.jobs {
		j := &t.jobs[i]
		f, _ := kernels.FormOf(j.down.Type)
		m.tasks.pack.add(j.mid, m.set.Gather(j.mid, j.hidden, s.iota[j.first:j.first+j.n], j.n, f))
		mul.products = append(mul.products, product{w: &j.down, in: j.mid, y: j.out, ldy: m.Config.Width})
	}
	m.tasks.pack.run()
	mul.run(t.tokens)
	return nil
}

func (t *moeRun) addShared() {
	m, s, l := t.m, &t.m.s, t.l
	side := &s.shared
	if l.moe < 0 {
		side = &s.dense
	}
	t.jobs = append(t.jobs, job{
		gate: l.sharedGate, up: l.sharedUp, down: l.sharedDown,
		joint: joint{kind: m.spec.Activation, limit: l.sharedLimit},
		in:    s.inPanel, mid: side.panel, hidden: side.hidden, n: t.tokens, out: s.sharedOut[:t.tokens*m.Config.Width],
	})
}

// add makes a job of the i-th ready expert of this group.
func (t *moeRun) add(i int, r expert.Ready) error {
	m, s, c, l := t.m, &t.m.s, t.m.Config, t.l
	e := int(s.union[r.Index])
	first, n := int(s.base[e]), int(s.count[e])
	gate, up := r.GateUp()
	j := job{joint: l.jointOf(m.spec, e, c.ExpertWidth)}
	j.in, j.mid, j.hidden, j.first, j.n = s.inPanel, s.jobHiddens[i], s.hidden, first, n
	j.out = s.out[first*c.Width : (first+n)*c.Width]
	var err error
	if j.gate, err = kernels.NewMatrix(l.gateType, c.ExpertWidth, c.Width, gate); err != nil {
		return err
	}
	if j.up, err = kernels.NewMatrix(l.upType, c.ExpertWidth, c.Width, up); err != nil {
		return err
	}
	if t.tokens > 1 {
		j.in = s.jobPanels[i]
		m.tasks.pack.add(j.in, m.set.Gather(j.in, s.in, s.cols[first:first+n], n, forms(&j.gate, &j.up)))
	}
	t.jobs = append(t.jobs, j)
	return nil
}

// parts is the number of units of an expert's first half.
func (j *job) parts() int { return (j.gate.Rows + partRows - 1) / partRows }

// gateUpTask computes a block of rows of gate and up for all tokens of an expert, applies the activation and quantises
// the result: one super-block of the hidden state has one owner, so no barrier lies between.
type gateUpTask struct {
	m    *Model
	jobs []job
}

func (t *gateUpTask) Do(worker, unit int) {
	for i := range t.jobs {
		j := &t.jobs[i]
		if unit < j.parts() {
			t.part(&t.m.s.workers[worker], j, unit*partRows)
			return
		}
		unit -= j.parts()
	}
}

func (t *gateUpTask) part(w *workerScratch, j *job, r0 int) {
	m := t.m
	rows := min(partRows, j.gate.Rows-r0)
	gate, up := block(j.gate, r0, rows), block(j.up, r0, rows)
	m.set.Mul(&gate, 0, rows, j.in, w.gate, rows)
	m.set.Mul(&up, 0, rows, j.in, w.up, rows)
	for c := range j.n {
		h := w.gate[c*rows : (c+1)*rows]
		j.joint.apply(m.set, h, w.up[c*rows:(c+1)*rows], r0)
		m.set.QuantizePart(j.hidden, j.first+c, r0, h)
	}
}

// block is the part of a matrix that begins at row r0.
func block(w kernels.Matrix, r0, rows int) kernels.Matrix {
	w.Data = w.Data[r0*w.RowBytes : (r0+rows)*w.RowBytes]
	w.Rows = rows
	return w
}

// sumTask adds the experts' rows to the residual stream in rank order, then what stands beside them; one token a unit.
type sumTask struct {
	m *Model
	l *layer
}

func (t *sumTask) Do(_, i int) {
	m, s, l, n := t.m, &t.m.s, t.l, t.m.Config.Width
	x := s.x[i*n : (i+1)*n]
	if l.moe >= 0 {
		t.routed(x, i)
	}
	switch {
	case l.sharedSwitch != nil:
		m.set.AddScaled(x, s.sharedOut[i*n:(i+1)*n], s.sharedIn[i])
	case l.sharedGate.Rows > 0:
		m.set.Add(x, s.sharedOut[i*n:(i+1)*n])
	}
}

// routed adds the routed experts of token i.
func (t *sumTask) routed(x []float32, i int) {
	m, s, n, k := t.m, &t.m.s, len(x), t.m.Config.Used
	for rank := range k {
		row, w := int(s.rowOf[i*k+rank]), s.weights[i*k+rank]
		m.set.AddScaled(x, s.out[row*n:(row+1)*n], w)
		if t.l.downBias != nil {
			e := int(s.ids[i*k+rank])
			m.set.AddScaled(x, t.l.downBias[e*n:(e+1)*n], w)
		}
	}
}
