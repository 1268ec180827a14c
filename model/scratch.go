package model

import "github.com/epq-uring/epq-uring/kernels"

// scratch is the memory of one forward pass; T is the largest batch. What a layer's mixer leaves between its stages
// shares one region with what the next kind of mixer leaves.
type scratch struct {
	x    []float32 // [T][width] the residual stream
	a    []float32 // [T][width] its norm, what a layer half reads
	half []float32 // [T][width] what the mixer adds to it

	in      *kernels.Acts  // a, quantised
	inPanel *kernels.Panel // all columns of it
	cos     []float32      // [T][RopeDim/2] of each token's position
	sin     []float32

	// attention: q and its gate as projected, then normed and turned; output by heads
	qRaw, q, k, v, o []float32
	oActs            *kernels.Acts
	oPanel           *kernels.Panel
	parts            []float32 // segments of decoding tokens

	// delta net
	qkv, z, alpha, beta, y []float32
	yActs                  *kernels.Acts
	yPanel                 *kernels.Panel

	// experts
	scores     []float32 // [T][experts]
	ids        []int32   // [T][used]
	weights    []float32 // [T][used]
	rowOf      []int32   // [T][used] -> row of out
	count      []int32   // [experts] tokens of the batch
	base       []int32   // [experts] first row
	cols       []int32   // [T*used] token of each row
	iota       []int32   // 0, 1, 2, ..
	union      []int32   // experts of the batch
	hidden     *kernels.Acts
	out        []float32 // [T*used][width]
	sharedIn   []float32 // [T] how much of the shared expert counts
	sharedHid  *kernels.Acts
	sharedOut  []float32 // [T][width]
	jobPanels  []*kernels.Panel
	jobHiddens []*kernels.Panel
	sharedPan  *kernels.Panel

	workers []workerScratch
	logits  []float32 // [LogitRows][vocab]
}

// workerScratch is what one worker needs for itself.
type workerScratch struct {
	gate, up []float32 // [T][partRows] of an expert's hidden state
	q        []float32 // queries of one unit, gathered
	limits   []int32
	parts    []float32
}

const (
	// partRows is how many rows of gate and up one unit computes: a whole super-block of the hidden state, so that the
	// same worker can apply the activation and quantise it.
	partRows = 256
	// groupExperts is how many experts of a prompt are computed together: enough units for a handful of threads, few
	// enough that slots come free early.
	groupExperts = 4
	// partFloats bounds a worker's partial attention results; it decides how many tokens share one walk over the cache.
	partFloats = 1 << 18
)

// forms collects the layouts that the readers of an input want.
func forms(ws ...*kernels.Matrix) kernels.Form {
	var f kernels.Form
	for _, w := range ws {
		if w.Rows > 0 {
			g, _ := kernels.FormOf(w.Type)
			f |= g
		}
	}
	return f
}

func (s *scratch) acts(mem *space, tokens, cols int, f kernels.Form) *kernels.Acts {
	b := mem.bytes(kernels.ActsBytes(tokens, cols, f))
	if b == nil {
		return nil
	}
	return kernels.NewActs(b, tokens, cols, f)
}

func (s *scratch) panel(mem *space, tokens, cols int, f kernels.Form) *kernels.Panel {
	b := mem.bytes(kernels.PanelBytes(tokens, cols, f))
	if b == nil {
		return nil
	}
	return kernels.NewPanel(b, tokens, cols, f)
}

// inputs says in which forms each kind of input is read, over all layers.
type inputs struct{ in, o, y, hidden, shared kernels.Form }

func (m *Model) inputs() inputs {
	f := inputs{in: forms(&m.output)}
	for i := range m.layers {
		l := &m.layers[i]
		f.in |= forms(&l.q, &l.k, &l.v, &l.qkv, &l.z, &l.alpha, &l.beta, &l.router, &l.sharedGate, &l.sharedUp)
		f.o |= forms(&l.out)
		f.y |= forms(&l.ssmOut)
		f.shared |= forms(&l.sharedDown)
		g, _ := kernels.FormOf(l.gateType)
		u, _ := kernels.FormOf(l.upType)
		d, _ := kernels.FormOf(l.downType)
		f.in |= g | u
		f.hidden |= d
	}
	return f
}

func (s *scratch) divide(mem *space, m *Model) {
	c, T, f := m.Config, m.opt.UBatch, m.inputs()
	rows := T * c.Used
	s.x, s.a, s.half = mem.floats(T*c.Width), mem.floats(T*c.Width), mem.floats(T*c.Width)
	s.in, s.inPanel = s.acts(mem, T, c.Width, f.in), s.panel(mem, T, c.Width, f.in)
	s.cos, s.sin = mem.floats(T*c.RopeDim/2), mem.floats(T*c.RopeDim/2)

	mixers := *mem // attention and delta net use the same region in turn
	if m.state.caches > 0 {
		s.divideAttention(mem, m, f.o)
	}
	if m.state.recurrents > 0 {
		end := mem.used
		*mem = mixers
		s.divideDelta(mem, m, f.y)
		mem.used = max(mem.used, end)
	}

	s.scores = mem.floats(T * c.Experts)
	s.ids, s.weights, s.rowOf = mem.ints(rows), mem.floats(rows), mem.ints(rows)
	s.count, s.base, s.union = mem.ints(c.Experts), mem.ints(c.Experts), mem.ints(c.Experts)
	s.cols, s.iota = mem.ints(rows), mem.ints(max(rows, T))
	for i := range s.iota {
		s.iota[i] = int32(i)
	}
	s.hidden, s.out = s.acts(mem, rows, c.ExpertWidth, f.hidden), mem.floats(rows*c.Width)
	s.jobPanels, s.jobHiddens = nil, nil
	for range max(groupExperts, c.Used) {
		n := T
		if len(s.jobPanels) >= groupExperts {
			n = 1 // only a single token's experts come more than groupExperts at a time
		}
		s.jobPanels = append(s.jobPanels, s.panel(mem, n, c.Width, f.in))
		s.jobHiddens = append(s.jobHiddens, s.panel(mem, n, c.ExpertWidth, f.hidden))
	}
	if c.SharedWidth > 0 {
		s.sharedIn, s.sharedOut = mem.floats(T), mem.floats(T*c.Width)
		s.sharedHid, s.sharedPan = s.acts(mem, T, c.SharedWidth, f.shared), s.panel(mem, T, c.SharedWidth, f.shared)
	}
	s.logits = mem.floats(m.opt.LogitRows * m.Vocab())
	s.workers = make([]workerScratch, m.opt.Threads)
	for i := range s.workers {
		s.workers[i].divide(mem, m)
	}
}

func (s *scratch) divideAttention(mem *space, m *Model, f kernels.Form) {
	c, T := m.Config, m.opt.UBatch
	qRows := c.Heads * c.KeyDim
	s.qRaw, s.q = mem.floats(2*T*qRows), mem.floats(T*qRows)
	s.k, s.v = mem.floats(T*c.KVHeads*c.KeyDim), mem.floats(T*c.KVHeads*c.ValueDim)
	s.o = mem.floats(T * c.Heads * c.ValueDim)
	s.oActs, s.oPanel = s.acts(mem, T, c.Heads*c.ValueDim, f), s.panel(mem, T, c.Heads*c.ValueDim, f)
	s.parts = mem.floats(min(T, m.opt.Sequences) * c.Heads * m.segments(m.opt.Context) * (c.ValueDim + 2))
}

func (s *scratch) divideDelta(mem *space, m *Model, f kernels.Form) {
	c, T := m.Config, m.opt.UBatch
	inner := c.StateDim * c.ValueHeads
	s.qkv, s.z, s.y = mem.floats(T*c.convChannels()), mem.floats(T*inner), mem.floats(T*inner)
	s.alpha, s.beta = mem.floats(T*c.ValueHeads), mem.floats(T*c.ValueHeads)
	s.yActs, s.yPanel = s.acts(mem, T, inner, f), s.panel(mem, T, inner, f)
}

func (w *workerScratch) divide(mem *space, m *Model) {
	c, T := m.Config, m.opt.UBatch
	w.gate, w.up = mem.floats(T*partRows), mem.floats(T*partRows)
	if m.state.caches > 0 {
		n := m.tokensPerWalk()
		perToken := c.Heads / c.KVHeads
		w.q = mem.floats(n * perToken * c.KeyDim)
		w.limits = mem.ints(n * perToken)
		w.parts = mem.floats(n * perToken * m.segments(m.opt.Context) * (c.ValueDim + 2))
	}
}

// segments is the number of attention segments that n positions touch.
func (m *Model) segments(n int) int { return (n + kernels.Segment - 1) / kernels.Segment }

// tokensPerWalk is how many tokens of a prompt share one walk over the cache.
func (m *Model) tokensPerWalk() int {
	c := m.Config
	perToken := c.Heads / c.KVHeads * m.segments(m.opt.Context) * (c.ValueDim + 2)
	return max(1, min(16, partFloats/perToken, m.opt.UBatch))
}
