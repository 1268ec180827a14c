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
	cos     []float32      // [T][Rope.Dim/2] of each token's position
	sin     []float32

	// attention: q and its gate as projected, then normed and turned; output by heads
	qRaw, q, k, v, o []float32
	oActs            *kernels.Acts
	oPanel           *kernels.Panel
	parts            []float32 // segments of decoding tokens

	// MLA: q and o above are those of one slice of a batch, in the space of the compressed key
	gate       []float32 // [T][heads]
	oHeads     []float32 // [T][heads][Latent.Head]
	qRank      []float32 // [T][Latent.QueryRank]
	qRankActs  *kernels.Acts
	qRankPanel *kernels.Panel
	nope       *kernels.Acts // [slice][heads] columns of Latent.Nope
	latent     *kernels.Acts // [slice][heads] columns of Latent.Rank

	// delta net; KDA: q, k and v side by side in qkv, alpha the decay of every component
	qkv, z, alpha, beta, y []float32
	yActs                  *kernels.Acts
	yPanel                 *kernels.Panel

	// experts
	scores     []float32 // [T][experts]
	choice     []float32 // [T][experts] what decides where it is not the scores
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
	sharedOut  []float32 // [T][width] of the shared expert, or of a layer without routed ones
	shared     beside
	dense      beside
	jobPanels  []*kernels.Panel
	jobHiddens []*kernels.Panel

	foreseen       []float32     // [width] a norm; these four are Foresee's alone
	foreseenChoice []float32     // [experts]
	foreseenActs   *kernels.Acts // a column per layer
	foreseenIn     [ForeseeLayers]*kernels.Panel

	predict predictScratch

	workers []workerScratch
	logits  []float32 // [LogitRows][vocab]
}

// beside is the hidden state of a feed-forward that is not paged.
type beside struct {
	hidden *kernels.Acts
	panel  *kernels.Panel
}

// workerScratch is what one worker needs for itself.
type workerScratch struct {
	gate, up []float32 // [T][partRows] of an expert's hidden state
	q        []float32 // queries of one unit, gathered
	limits   []int32
	parts    []float32
	groups   []float32 // values of a router's groups
	best     []int32   // groups

	cols          []int32        // MLA: columns of one head
	nope, latents *kernels.Panel // of one head over a slice of a batch
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
	// walkHeads bounds the query heads of one unit of attention: their queries and results stay in the L1 cache while the
	// keys go by.
	walkHeads = 8
	// sliceTokens is how many tokens of a prompt MLA takes at a time through the space of the compressed key, which is
	// several times wider than the heads'.
	sliceTokens = 64
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

// acts makes quantised columns with their own memory; nil while counting.
func (s *space) acts(tokens, cols int, f kernels.Form) *kernels.Acts {
	b := s.bytes(kernels.ActsBytes(tokens, cols, f))
	if b == nil {
		return nil
	}
	return kernels.NewActs(b, tokens, cols, f)
}

// panel makes a panel with its own memory; nil while counting.
func (s *space) panel(tokens, cols int, f kernels.Form) *kernels.Panel {
	b := s.bytes(kernels.PanelBytes(tokens, cols, f))
	if b == nil {
		return nil
	}
	return kernels.NewPanel(b, tokens, cols, f)
}

// inputs says in which forms each kind of input is read, over all layers.
type inputs struct{ in, o, y, hidden, shared, dense, qRank, nope, latent kernels.Form }

func (m *Model) inputs() inputs {
	f := inputs{in: forms(&m.output)}
	if p := m.prediction; p != nil {
		f.in |= forms(p.output)
	}
	all := m.allLayers()
	for i := range all {
		l := &all[i]
		f.in |= forms(&l.k, &l.v, &l.qA, &l.kvA, &l.gate, &l.qkv, &l.z, &l.alpha, &l.beta, &l.router, &l.sharedGate, &l.sharedUp)
		if l.qA.Rows > 0 {
			f.qRank |= forms(&l.q)
		} else {
			f.in |= forms(&l.q)
		}
		f.o |= forms(&l.out)
		f.y |= forms(&l.ssmOut)
		f.nope |= forms(&l.kB)
		f.latent |= forms(&l.vB)
		if l.moe < 0 {
			f.dense |= forms(&l.sharedDown)
			continue
		}
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
	s.x, s.a, s.half = mem.floats(T*c.Width), mem.floats(T*c.Width), mem.floats(T*c.Width)
	s.in, s.inPanel = mem.acts(T, c.Width, f.in), mem.panel(T, c.Width, f.in)
	s.cos, s.sin = mem.floats(T*c.Rope.Dim/2), mem.floats(T*c.Rope.Dim/2)
	mem.overlay(
		func() { s.divideAttention(mem, m, f) },
		func() { s.divideDelta(mem, m, f.y) })
	s.sharedOut, s.iota = mem.floats(T*c.Width), mem.ints(max(T*max(c.Used, 1), ForeseeLayers))
	for i := range s.iota {
		s.iota[i] = int32(i)
	}
	mem.overlay(
		func() { s.divideExperts(mem, m, f) },
		func() { s.dense = mem.beside(T, c.DenseWidth, f.dense) })
	s.divideForeseen(mem, c, f.in)
	s.logits = mem.floats(m.opt.LogitRows * m.Vocab())
	s.predict.divide(mem, m)
	s.workers = make([]workerScratch, m.opt.Threads)
	for i := range s.workers {
		s.workers[i].divide(mem, m, f)
	}
}

func (s *space) beside(tokens, cols int, f kernels.Form) beside {
	if cols == 0 {
		return beside{}
	}
	return beside{s.acts(tokens, cols, f), s.panel(tokens, cols, f)}
}

func (s *scratch) divideExperts(mem *space, m *Model, f inputs) {
	c, T := m.Config, m.opt.UBatch
	rows := T * c.Used
	s.scores, s.choice = mem.floats(T*c.Experts), mem.floats(T*c.Experts)
	s.ids, s.weights, s.rowOf = mem.ints(rows), mem.floats(rows), mem.ints(rows)
	s.count, s.base, s.union = mem.ints(c.Experts), mem.ints(c.Experts), mem.ints(c.Experts)
	s.cols = mem.ints(rows)
	s.hidden, s.out = mem.acts(rows, c.ExpertWidth, f.hidden), mem.floats(rows*c.Width)
	s.jobPanels, s.jobHiddens = nil, nil
	for range max(groupExperts, c.Used) {
		n := T
		if len(s.jobPanels) >= groupExperts {
			n = 1 // only a single token's experts come more than groupExperts at a time
		}
		s.jobPanels = append(s.jobPanels, mem.panel(n, c.Width, f.in))
		s.jobHiddens = append(s.jobHiddens, mem.panel(n, c.ExpertWidth, f.hidden))
	}
	s.sharedIn = mem.floats(T)
	s.shared = mem.beside(T, c.SharedWidth, f.shared)
}

func (s *scratch) divideAttention(mem *space, m *Model, f inputs) {
	if m.state.caches == 0 {
		return
	}
	c, T := m.Config, m.opt.UBatch
	t, outs := T, c.Heads*c.ValueDim
	if c.Latent.Rank > 0 {
		t, outs = min(T, m.sliceOf()), c.Heads*c.Latent.Head
		s.divideLatent(mem, m, f)
	} else {
		raw := T * c.Heads * c.KeyDim
		if m.spec.has(GatedAttention) {
			raw *= 2
		}
		s.qRaw, s.v = mem.floats(raw), mem.floats(T*c.KVHeads*c.ValueDim)
	}
	s.k = mem.floats(T * c.KVHeads * c.KeyDim)
	s.q, s.o = mem.floats(t*c.Heads*c.KeyDim), mem.floats(t*c.Heads*c.ValueDim)
	s.oActs, s.oPanel = mem.acts(T, outs, f.o), mem.panel(T, outs, f.o)
	s.parts = mem.floats(min(T, m.opt.Sequences) * c.Heads * m.segments(m.opt.Context) * (c.ValueDim + 2))
}

func (s *scratch) divideLatent(mem *space, m *Model, f inputs) {
	c, T, n := m.Config, m.opt.UBatch, m.Config.Latent
	columns := min(T, m.sliceOf()) * c.Heads
	s.qRaw, s.gate = mem.floats(T*c.Heads*(n.Nope+c.Rope.Dim)), mem.floats(T*c.Heads)
	s.oHeads = mem.floats(T * c.Heads * n.Head)
	s.nope, s.latent = mem.acts(columns, n.Nope, f.nope), mem.acts(columns, n.Rank, f.latent)
	if n.QueryRank > 0 {
		s.qRank = mem.floats(T * n.QueryRank)
		s.qRankActs, s.qRankPanel = mem.acts(T, n.QueryRank, f.qRank), mem.panel(T, n.QueryRank, f.qRank)
	}
}

func (s *scratch) divideDelta(mem *space, m *Model, f kernels.Form) {
	if m.state.recurrents == 0 {
		return
	}
	c, T := m.Config, m.opt.UBatch
	inner := c.StateDim * c.ValueHeads
	s.qkv, s.z, s.y = mem.floats(T*c.convChannels()), mem.floats(T*inner), mem.floats(T*inner)
	s.alpha, s.beta = mem.floats(T*m.decays()), mem.floats(T*c.ValueHeads)
	s.yActs, s.yPanel = mem.acts(T, inner, f), mem.panel(T, inner, f)
}

func (w *workerScratch) divide(mem *space, m *Model, f inputs) {
	c, T := m.Config, m.opt.UBatch
	w.gate, w.up = mem.floats(T*partRows), mem.floats(T*partRows)
	w.groups, w.best = mem.floats(c.Groups), mem.ints(c.GroupsUsed)
	if m.state.caches == 0 {
		return
	}
	n := m.tokensPerWalk() * m.headsPerWalk()
	w.q = mem.floats(n * c.KeyDim)
	w.limits = mem.ints(n)
	w.parts = mem.floats(n * m.segments(m.opt.Context) * (c.ValueDim + 2))
	if t := min(T, m.sliceOf()); c.Latent.Rank > 0 {
		w.cols = mem.ints(t)
		w.nope, w.latents = mem.panel(t, c.Latent.Nope, f.nope), mem.panel(t, c.Latent.Rank, f.latent)
	}
}

// segments is the number of attention segments that n positions touch.
func (m *Model) segments(n int) int { return (n + kernels.Segment - 1) / kernels.Segment }

// headsPerWalk is how many query heads share one walk over the cache: as many as read one KV head, at most walkHeads.
func (m *Model) headsPerWalk() int {
	n := m.Config.Heads / m.Config.KVHeads
	for d := min(n, walkHeads); ; d-- {
		if n%d == 0 {
			return d
		}
	}
}

// tokensPerWalk is how many tokens of a prompt share one walk over the cache.
func (m *Model) tokensPerWalk() int {
	perToken := m.headsPerWalk() * m.segments(m.opt.Context) * (m.Config.ValueDim + 2)
	return max(1, min(16, partFloats/perToken, m.opt.UBatch))
}

// sliceOf is the number of tokens of a slice: the decoding tokens of all sequences fit one.
func (m *Model) sliceOf() int { return max(sliceTokens, m.opt.Sequences) }
