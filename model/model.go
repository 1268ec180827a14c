// Package model computes a forward pass. An architecture is data: a Spec literal and the blocks it names; weights are
// bound once; all memory is sized before it is asked for and divided once.
//
// A model works on a batch of tokens of one or several sequences. For one kernel set the logits of a token depend on its
// own sequence alone, bit for bit: not on the batch it came in, its neighbours, the number of threads or where its
// experts were read from.
package model

import (
	"fmt"
	"math"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

// Options size a model.
type Options struct {
	Context   int       // positions per sequence
	UBatch    int       // most tokens of one Forward
	Sequences int       // sequences side by side
	Drafts    int       // most drafted tokens of a sequence that one batch verifies; 0: none
	Predict   bool      // drafts with the file's block of multi-token prediction (Predict)
	LogitRows int       // most rows of logits kept at a time; 0: one per sequence, and the drafts of one
	TypeK     gguf.Type // of the KV cache: F16, F32 or Q8_0
	TypeV     gguf.Type
	Threads   int // workers that will run it
}

// Model is a loaded model. It is not safe for concurrent use.
type Model struct {
	Config Config

	opt    Options
	spec   Spec
	f      *gguf.File
	layers []layer
	embed  kernels.Matrix
	output kernels.Matrix
	norm   []float32
	state  *state
	rewind rewind

	prediction *prediction // nil: none

	set     *kernels.Set
	pool    *kernels.Pool
	experts Experts

	s     scratch
	tasks tasks

	// Observer sees every route the model chooses; Force replaces the selection (not the weights). Both may be nil.
	Observer func(layer int, token int, ids []int32)
	Force    func(layer int, token int) []int32
}

// Sizes are the bytes a model needs besides its resident weights, each one block.
type Sizes struct {
	KV        int64 // keys and values
	Recurrent int64 // matrices and convolution states
	Drafts    int64 // what takes recurrent states back to before a rejected draft
	Scratch   int64 // compute buffers
	Vectors   int64 // norms and other small vectors, copied out of the file
}

// Memory is what Sizes asked for. Blocks start at multiples of 64 and are zero.
type Memory struct {
	KV, Recurrent, Drafts, Scratch, Vectors []byte
}

// New checks a file's hyper-parameters, tensors and shapes. It allocates nothing large.
func New(f *gguf.File, c Config, opt Options) (*Model, error) {
	spec, err := specOf(f)
	if err != nil {
		return nil, err
	}
	opt.Predict = opt.Predict && c.Predict > 0
	opt.Drafts = min(opt.Drafts, opt.UBatch-1)
	if opt.LogitRows == 0 {
		opt.LogitRows = opt.Sequences + opt.Drafts
	}
	m := &Model{Config: c, opt: opt, spec: spec, f: f}
	b := &binder{f: f, mem: &space{}}
	m.bind(b)
	if b.err != nil {
		return nil, b.err
	}
	m.state, err = newState(c, m.allLayers(), opt)
	return m, err
}

// Sizes says how much memory Bind will want.
func (m *Model) Sizes() Sizes {
	var kv, recurrent, drafts, vectors, buffers space
	b := &binder{f: m.f, mem: &vectors}
	(&Model{Config: m.Config, spec: m.spec, opt: m.opt}).bind(b)
	st := *m.state
	st.divide(&kv, &recurrent, m.opt.Sequences)
	(&rewind{}).divide(&drafts, m)
	(&scratch{}).divide(&buffers, m)
	return Sizes{
		KV: int64(kv.used), Recurrent: int64(recurrent.used), Drafts: int64(drafts.used), Scratch: int64(buffers.used), Vectors: int64(vectors.used),
	}
}

// Resident returns the tensors outside the experts that a forward pass reads, in the order a token reads them.
func (m *Model) Resident() []gguf.Tensor {
	b := &binder{f: m.f, mem: &space{}}
	(&Model{Config: m.Config, spec: m.spec, opt: m.opt}).bind(b)
	return b.resident
}

// Bind gives the model its weights, memory, kernels, workers and experts. After it nothing is allocated.
func (m *Model) Bind(src Source, mem Memory, set *kernels.Set, pool *kernels.Pool, experts Experts) error {
	b := &binder{f: m.f, src: src, mem: &space{mem: mem.Vectors}}
	m.bind(b)
	if b.err != nil {
		return b.err
	}
	m.set, m.pool, m.experts = set, pool, experts
	m.state.divide(&space{mem: mem.KV}, &space{mem: mem.Recurrent}, m.opt.Sequences)
	m.rewind.divide(&space{mem: mem.Drafts}, m)
	m.s.divide(&space{mem: mem.Scratch}, m)
	m.tasks.bind(m)
	return nil
}

func (m *Model) bind(b *binder) {
	c := m.Config
	vocab := 0
	if t, ok := b.f.Tensor("token_embd.weight"); ok && len(t.Dims) == 2 && t.Dims[1] > 0 && t.Dims[1] <= math.MaxInt32 {
		vocab = int(t.Dims[1])
	}
	m.embed = b.matrix("token_embd.weight", c.Width, vocab)
	m.layers = b.layers(m.spec, c, m.opt.Predict)
	m.norm = b.vector("output_norm.weight", c.Width)
	if _, ok := b.f.Tensor("output.weight"); ok {
		m.output = b.matrix("output.weight", c.Width, vocab)
	} else {
		m.output = m.embed
	}
	if m.opt.Predict && b.err == nil {
		m.bindPrediction(b, vocab)
	}
}

// Vocab is the number of logits in a row.
func (m *Model) Vocab() int { return m.embed.Rows }

// MoELayers is the number of layers with routed experts.
func (m *Model) MoELayers() int {
	n := 0
	for i := range m.layers {
		if m.layers[i].moe >= 0 {
			n++
		}
	}
	return n
}

// Routed lists the blocks with routed experts in the order of Experts.Use: those of the main pass, then the one that
// predicts.
func (m *Model) Routed() []int {
	var blocks []int
	all := m.allLayers()
	for i := range all {
		if all[i].moe >= 0 {
			blocks = append(blocks, all[i].block)
		}
	}
	return blocks
}

// Reset forgets everything of a sequence; its next token has position 0.
func (m *Model) Reset(seq int32) {
	m.state.reset(seq)
	if m.prediction != nil {
		m.s.predict.kept[seq].cut(0)
	}
}

// Recurrent reports whether the model has state that cannot be cut back to an earlier position.
func (m *Model) Recurrent() bool { return m.state.recurrents > 0 }

// Batch is the work of one Forward: tokens of one or several sequences, those of one sequence together and in order.
type Batch struct {
	Tokens  []int32
	Seqs    []int32 // sequence of each token
	Pos     []int32 // position of each token in its sequence
	Rows    []int32 // indices of tokens whose logits are wanted, ascending
	Drafted []int32 // sequences whose last tokens may be taken back (Rewind): at most 1 + Options.Drafts tokens of each
	// Emit gets them one by one; the slice is valid until it returns.
	Emit func(row int32, logits []float32) error
}

// run is the number of tokens from first on that are of one sequence.
func (b *Batch) run(first int) int {
	n := 1
	for first+n < len(b.Tokens) && b.Seqs[first+n] == b.Seqs[first] {
		n++
	}
	return n
}

// sequences calls fn for the tokens [first, first+n) of every sequence.
func (b *Batch) sequences(fn func(first, n int)) {
	for first := 0; first < len(b.Tokens); {
		n := b.run(first)
		fn(first, n)
		first += n
	}
}

func (m *Model) check(b *Batch) error {
	if n := len(b.Tokens); n == 0 || n > m.opt.UBatch || len(b.Seqs) != n || len(b.Pos) != n {
		return fmt.Errorf("model: a batch of %d tokens (%d sequences, %d positions), allowed are 1 to %d", n, len(b.Seqs), len(b.Pos), m.opt.UBatch)
	}
	for i, t := range b.Tokens {
		switch {
		case t < 0 || int(t) >= m.Vocab():
			return fmt.Errorf("model: token %d at position %d is outside the vocabulary of %d", t, b.Pos[i], m.Vocab())
		case b.Seqs[i] < 0 || int(b.Seqs[i]) >= m.opt.Sequences:
			return fmt.Errorf("model: sequence %d of %d", b.Seqs[i], m.opt.Sequences)
		case b.Pos[i] < 0 || int(b.Pos[i]) >= m.opt.Context:
			return fmt.Errorf("model: position %d is outside the context of %d", b.Pos[i], m.opt.Context)
		}
	}
	return m.rewind.mark(m, b)
}
