package model

import (
	"github.com/epq-uring/epq-uring/kernels"
)

// Forward computes a batch: every token passes every layer, sequences' states move on, and the wanted rows of logits are
// emitted. After an error the states of the batch's sequences are not to be used again without Reset. Nothing fails once
// rows are being emitted, unless Emit does.
func (m *Model) Forward(b *Batch) error {
	if err := m.check(b); err != nil {
		return err
	}
	if m.prediction != nil {
		m.makeRoom(b)
	}
	m.tasks.moe.last = nil
	m.embedding(b)
	n := len(b.Tokens)
	m.experts.Hint(-1, m.s.x[:n*m.Config.Width])
	for i := range m.layers {
		if err := m.layer(&m.layers[i], b); err != nil {
			return err
		}
	}
	if err := m.head(b, m.norm, &m.output); err != nil || m.prediction == nil {
		return err
	}
	m.follow(b)
	return nil
}

// layer takes the residual stream through one block.
func (m *Model) layer(l *layer, b *Batch) error {
	n := len(b.Tokens)
	m.tasks.norm = normTask{m: m, weight: l.attnNorm}
	m.pool.Run(&m.tasks.norm, n)
	m.mix(l, b)
	m.tasks.norm = normTask{m: m, weight: l.ffnNorm, add: m.s.half, bias: l.bias, sw: l.sharedSwitch}
	m.pool.Run(&m.tasks.norm, n)
	return m.feedForward(l, b)
}

// mix is the first half of a layer.
func (m *Model) mix(l *layer, b *Batch) {
	switch l.mixer {
	case DeltaNet:
		m.deltaNet(l, b)
	case KDA:
		m.kda(l, b)
	case MLA:
		m.latent(l, b)
	default:
		m.attention(l, b)
	}
}

// embedding starts the residual stream and tables the rotations of the batch's positions.
func (m *Model) embedding(b *Batch) {
	c, s := m.Config, &m.s
	for i, id := range b.Tokens {
		row := m.embed.Data[int(id)*m.embed.RowBytes:][:m.embed.RowBytes]
		// The type was checked when the tensor was bound.
		_ = m.set.Dequantize(m.embed.Type, s.x[i*c.Width:(i+1)*c.Width], row)
	}
	m.rotations(b)
}

// rotations tables the turns of the batch's positions.
func (m *Model) rotations(b *Batch) {
	for i, pos := range b.Pos {
		cos, sin := m.s.turns(m.Config, i)
		m.Config.Rope.table(cos, sin, int(pos))
	}
}

// turns are cosine and sine of the rotation of the batch's token i.
func (s *scratch) turns(c Config, i int) (cos, sin []float32) {
	h := c.Rope.Dim / 2
	return s.cos[i*h : (i+1)*h], s.sin[i*h : (i+1)*h]
}

// head turns the wanted rows into logits, as many at a time as there is room for.
func (m *Model) head(b *Batch, norm []float32, output *kernels.Matrix) error {
	n, s := m.Config.Width, &m.s
	for rows := b.Rows; len(rows) > 0; {
		k := min(len(rows), m.opt.LogitRows)
		for i, r := range rows[:k] {
			a := s.a[i*n : (i+1)*n]
			m.set.RMSNorm(a, s.x[int(r)*n:int(r+1)*n], norm, m.Config.Eps)
			m.set.Quantize(s.in, i, a)
		}
		m.gather(s.inPanel, s.in, nil, k, forms(output))
		m.multiply(k, product{w: output, in: s.inPanel, y: s.logits, ldy: m.Vocab()})
		for i, r := range rows[:k] {
			if err := b.Emit(r, s.logits[i*m.Vocab():(i+1)*m.Vocab()]); err != nil {
				return err
			}
		}
		rows = rows[k:]
	}
	return nil
}

// normTask prepares the input of half a layer, one token a unit: adds what the half before left, norms, quantises.
type normTask struct {
	m         *Model
	weight    []float32
	add, bias []float32 // of all tokens, of each; or nil
	sw        []float32 // row of the shared expert's switch, or nil
}

func (t *normTask) Do(_, i int) {
	m, n := t.m, t.m.Config.Width
	x, a := m.s.x[i*n:(i+1)*n], m.s.a[i*n:(i+1)*n]
	if t.add != nil {
		m.set.Add(x, t.add[i*n:(i+1)*n])
	}
	if t.bias != nil {
		m.set.Add(x, t.bias)
	}
	m.set.RMSNorm(a, x, t.weight, m.Config.Eps)
	m.set.Quantize(m.s.in, i, a)
	if t.sw != nil {
		m.s.sharedIn[i] = sigmoid(m.set.Dot(a, t.sw))
	}
}

// quantiseTask quantises rows of x, one a unit.
type quantiseTask struct {
	m    *Model
	acts *kernels.Acts
	x    []float32
}

func (t *quantiseTask) run(m *Model, rows int, acts *kernels.Acts, x []float32) {
	t.m, t.acts, t.x = m, acts, x
	m.pool.Run(t, rows)
}

func (t *quantiseTask) Do(_, i int) {
	n := t.acts.Cols()
	t.m.set.Quantize(t.acts, i, t.x[i*n:(i+1)*n])
}

// product is one matrix times the columns of a panel: y[c*ldy+r].
type product struct {
	w   *kernels.Matrix
	in  *kernels.Panel
	y   []float32
	ldy int
}

// Rows of a matrix that a worker takes at a time. A prompt's units are short, so that a worker that is held up loses
// little and the rows stay in its cache over all columns; a single column's are long, because every unit prefetches a few
// KiB beyond its end, but never so long that a worker gets fewer than unitsPerWorker of them.
const (
	unitRows       = 64
	longUnitRows   = 256
	unitsPerWorker = 8
)

// mulTask multiplies several matrices; units are blocks of rows, one matrix after the other.
type mulTask struct {
	m        *Model
	products []product
	rows     int // of a unit
}

func (t *mulTask) Do(_, unit int) {
	for i := range t.products {
		p := &t.products[i]
		n := t.units(p)
		if unit < n {
			r := unit * t.rows
			t.m.set.Mul(p.w, r, min(r+t.rows, p.w.Rows), p.in, p.y, p.ldy)
			return
		}
		unit -= n
	}
}

func (t *mulTask) units(p *product) int { return (p.w.Rows + t.rows - 1) / t.rows }

// run computes the products; one hand-over to the workers for all of them.
func (t *mulTask) run(columns int) {
	t.rows = unitRows
	if columns == 1 {
		rows := 0
		for i := range t.products {
			rows += t.products[i].w.Rows
		}
		t.rows = min(max(rows/(unitsPerWorker*t.m.pool.Threads()), unitRows), longUnitRows)
	}
	units := 0
	for i := range t.products {
		units += t.units(&t.products[i])
	}
	t.m.pool.Run(t, units)
}

// multiply computes products of one input, whose panel is gathered for so many columns.
func (m *Model) multiply(columns int, ps ...product) {
	t := &m.tasks.mul
	t.products = append(t.products[:0], ps...)
	t.run(columns)
}

// packTask packs the wide groups of panels, in parallel.
type packTask struct {
	m      *Model
	panels []*kernels.Panel
	groups []int
}

func (t *packTask) Do(_, unit int) {
	for i, p := range t.panels {
		if unit < t.groups[i] {
			t.m.set.Pack(p, unit)
			return
		}
		unit -= t.groups[i]
	}
}

func (t *packTask) add(p *kernels.Panel, groups int) {
	if groups > 0 {
		t.panels, t.groups = append(t.panels, p), append(t.groups, groups)
	}
}

// run packs what was added.
func (t *packTask) run() {
	units := 0
	for _, g := range t.groups {
		units += g
	}
	if units > 0 {
		t.m.pool.Run(t, units)
	}
	t.panels, t.groups = t.panels[:0], t.groups[:0]
}

// gather makes a panel of n columns ready for products.
func (m *Model) gather(p *kernels.Panel, a *kernels.Acts, cols []int32, n int, f kernels.Form) {
	m.tasks.pack.add(p, m.set.Gather(p, a, cols, n, f))
	m.tasks.pack.run()
}

// tasks are the operations that workers run, made once so that a token allocates nothing.
type tasks struct {
	norm     normTask
	quantise quantiseTask
	mul      mulTask
	pack     packTask
	delta    deltaTask
	kda      kdaTask
	heads    headTask
	turn     turnTask
	absorb   absorbTask
	walks    walkTask
	expand   expandTask
	join     joinTask
	route    routeTask
	gate     gateUpTask
	sum      sumTask
	moe      moeRun
	pair     pairTask
	final    finalTask
}

func (t *tasks) bind(m *Model) {
	t.mul.m, t.pack.m = m, m
	t.delta.m, t.kda.m, t.heads.m, t.turn.m, t.walks.m, t.join.m = m, m, m, m, m, m
	t.route.m, t.gate.m, t.sum.m, t.moe.m = m, m, m, m
	t.pair.m, t.final.m = m, m
	t.moe.ready = t.moe.compute
}
