package model

import (
	"fmt"

	"github.com/epq-uring/epq-uring/kernels"
)

// prediction is a block of multi-token prediction, which guesses the token after the next one. With h_t the state after the
// final norm at position t, and tok_{t+1} the token that was chosen from it:
//
//	x_t = W_eh [ RMS(embedding(tok_{t+1}); enorm) | RMS(h_t; hnorm) ]
//	x_t <- a block as those of the main pass, with keys and values of its own, at position t
//	logits of tok_{t+2} = W RMS(x_t; norm)
//
// A deeper guess goes on from RMS(x_t; norm) in h's place. Keys and values need only the first line and their own
// projections, so Forward fills them for every token it is fed without touching an expert.
type prediction struct {
	layer                       *layer
	embed, output               *kernels.Matrix
	joint                       kernels.Matrix // W_eh
	embedNorm, hiddenNorm, norm []float32
}

// bindPrediction binds what the block has beside other blocks; it is the last of the layers.
func (m *Model) bindPrediction(b *binder, vocab int) {
	n := m.Config.Width
	l := &m.layers[m.Config.Blocks]
	m.layers = m.layers[:m.Config.Blocks]
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", l.block, s) }
	p := &prediction{layer: l, embed: &m.embed, output: &m.output, norm: m.norm}
	if l.mixer.recurrent() {
		b.fail(name("ssm_a"), "makes a drafting block recurrent, which is not supported")
	}
	p.joint = b.matrix(name("nextn.eh_proj.weight"), 2*n, n)
	p.embedNorm, p.hiddenNorm = b.vector(name("nextn.enorm.weight"), n), b.vector(name("nextn.hnorm.weight"), n)
	for _, norm := range []string{"nextn.shared_head_norm.weight", "layer_output_norm.weight"} {
		if _, ok := b.f.Tensor(name(norm)); ok {
			p.norm = b.vector(name(norm), n)
			break
		}
	}
	own := func(s string, shared *kernels.Matrix) *kernels.Matrix {
		if _, ok := b.f.Tensor(name(s)); !ok {
			return shared
		}
		w := b.matrix(name(s), n, vocab)
		return &w
	}
	p.embed, p.output = own("nextn.embed_tokens.weight", p.embed), own("nextn.shared_head_head.weight", p.output)
	m.prediction = p
}

// allLayers are those of the main pass and the one that predicts.
func (m *Model) allLayers() []layer {
	if m.prediction == nil {
		return m.layers
	}
	return m.layers[:len(m.layers)+1]
}

// predictScratch is the memory of predictions.
type predictScratch struct {
	pairs []float32 // [T][2 width] embedding and state, normed
	acts  *kernels.Acts
	panel *kernels.Panel

	kept   []float32 // [sequences][1+Drafts][width] states of the last tokens fed
	rows   []int     // per sequence: how many of them count; the last is the latest
	stride int
	deeper []float32 // [sequences][width] states of the last prediction
	batch  Batch
	from   [][]float32 // state that each token of batch is paired with
}

func (s *predictScratch) divide(mem *space, m *Model) {
	p := m.prediction
	if p == nil {
		return
	}
	T, n := m.opt.UBatch, m.Config.Width
	s.pairs = mem.floats(T * 2 * n)
	s.acts, s.panel = mem.acts(T, 2*n, forms(&p.joint)), mem.panel(T, 2*n, forms(&p.joint))
	s.stride = (1 + m.opt.Drafts) * n
	s.kept, s.deeper = mem.floats(m.opt.Sequences*s.stride), mem.floats(m.opt.Sequences*n)
	s.rows, s.from = make([]int, m.opt.Sequences), make([][]float32, 0, T)
	b := &s.batch
	b.Tokens, b.Seqs, b.Pos = make([]int32, 0, T), make([]int32, 0, T), make([]int32, 0, T)
}

// keepRows forgets all but the first n of a sequence's kept states.
func (s *predictScratch) keepRows(seq int32, n int) {
	if s.rows != nil {
		s.rows[seq] = n
	}
}

// last is the state after the last token fed; nil if there is none.
func (s *predictScratch) last(seq int32, width int) []float32 {
	if s.rows[seq] == 0 {
		return nil
	}
	return s.kept[int(seq)*s.stride+(s.rows[seq]-1)*width:][:width]
}

// clear begins a batch of pairs.
func (s *predictScratch) clear() {
	b := &s.batch
	b.Tokens, b.Seqs, b.Pos, s.from = b.Tokens[:0], b.Seqs[:0], b.Pos[:0], s.from[:0]
}

// add pairs a token with the state at the position before it.
func (s *predictScratch) add(token, seq, pos int32, state []float32) {
	b := &s.batch
	b.Tokens, b.Seqs, b.Pos, s.from = append(b.Tokens, token), append(b.Seqs, seq), append(b.Pos, pos-1), append(s.from, state)
}

// follow stores the block's keys and values for a batch that the main pass is done with, whose residual stream it takes.
func (m *Model) follow(b *Batch) {
	s, n, width := &m.s.predict, len(b.Tokens), m.Config.Width
	m.tasks.final.norm = m.norm
	m.pool.Run(&m.tasks.final, n)
	s.clear()
	for i, token := range b.Tokens {
		var state []float32
		if i > 0 && b.Seqs[i-1] == b.Seqs[i] {
			state = m.s.x[(i-1)*width : i*width]
		} else {
			state = s.last(b.Seqs[i], width)
		}
		if b.Pos[i] > 0 && state != nil {
			s.add(token, b.Seqs[i], b.Pos[i], state)
		}
	}
	m.pair()
	b.sequences(func(first, count int) {
		seq, rows := b.Seqs[first], min(count, s.stride/width)
		copy(s.kept[int(seq)*s.stride:], m.s.x[(first+count-rows)*width:(first+count)*width])
		s.rows[seq] = rows
	})
	if len(s.batch.Tokens) > 0 {
		m.joinPairs()
		m.tasks.norm = normTask{m: m, weight: m.prediction.layer.attnNorm}
		m.pool.Run(&m.tasks.norm, len(s.batch.Tokens))
		m.storeKeys(m.prediction.layer, &s.batch)
	}
}

// pair norms and quantises embeddings and states of the batch of pairs.
func (m *Model) pair() { m.pool.Run(&m.tasks.pair, len(m.s.predict.batch.Tokens)) }

// joinPairs makes of them the residual stream that enters the block.
func (m *Model) joinPairs() {
	s, w, n := &m.s.predict, &m.prediction.joint, len(m.s.predict.batch.Tokens)
	m.gather(s.panel, s.acts, nil, n, forms(w))
	m.multiply(n, product{w: w, in: s.panel, y: m.s.x, ldy: m.Config.Width})
	m.rotations(&s.batch)
}

// storeKeys is the part of a mixer that fills its cache; the input is normed and quantised.
func (m *Model) storeKeys(l *layer, b *Batch) {
	s, t, n := &m.s, &m.tasks, len(b.Tokens)
	if l.mixer == MLA {
		m.gather(s.inPanel, s.in, nil, n, forms(&l.kvA))
		m.multiply(n, product{w: &l.kvA, in: s.inPanel, y: s.k, ldy: l.kvA.Rows})
		t.turn.l, t.turn.b, t.turn.keysOnly = l, b, true
		m.pool.Run(&t.turn, n)
		t.turn.keysOnly = false
		return
	}
	m.gather(s.inPanel, s.in, nil, n, forms(&l.k, &l.v))
	m.multiply(n,
		product{w: &l.k, in: s.inPanel, y: s.k, ldy: l.k.Rows},
		product{w: &l.v, in: s.inPanel, y: s.v, ldy: l.v.Rows})
	t.heads.l, t.heads.b, t.heads.keysOnly = l, b, true
	m.pool.Run(&t.heads, n)
	t.heads.keysOnly = false
}

// Predict emits, for every token of a batch of at most one per sequence, the logits of the token after it as the block of
// multi-token prediction guesses them. Each token has the position after the last one fed; with deeper set, after the one
// of the call before. Nothing that Forward computes depends on it. Wanted rows are all of them.
func (m *Model) Predict(b *Batch, deeper bool) error {
	s, p, width := &m.s.predict, m.prediction, m.Config.Width
	s.clear()
	for i, token := range b.Tokens {
		seq := b.Seqs[i]
		state := s.last(seq, width)
		if deeper {
			state = s.deeper[int(seq)*width:][:width]
		}
		if state == nil || b.Pos[i] < 1 || int(b.Pos[i]) > m.opt.Context || token < 0 || int(token) >= m.Vocab() {
			return fmt.Errorf("model: nothing to predict from: token %d, position %d of sequence %d", token, b.Pos[i], seq)
		}
		s.add(token, seq, b.Pos[i], state)
	}
	m.pair()
	m.joinPairs()
	if err := m.layer(p.layer, &s.batch); err != nil {
		return err
	}
	for i, seq := range b.Seqs {
		m.set.RMSNorm(s.deeper[int(seq)*width:][:width], m.s.x[i*width:(i+1)*width], p.norm, m.Config.Eps)
	}
	return m.head(b, p.norm, p.output)
}

// pairTask norms and quantises one token's embedding and state a unit.
type pairTask struct{ m *Model }

func (t *pairTask) Do(_, i int) {
	m, s, p, n := t.m, &t.m.s.predict, t.m.prediction, t.m.Config.Width
	both := s.pairs[i*2*n : (i+1)*2*n]
	row := p.embed.Data[int(s.batch.Tokens[i])*p.embed.RowBytes:][:p.embed.RowBytes]
	// The type was checked when the tensor was bound.
	_ = m.set.Dequantize(p.embed.Type, both[:n], row)
	m.set.RMSNorm(both[:n], both[:n], p.embedNorm, m.Config.Eps)
	m.set.RMSNorm(both[n:], s.from[i], p.hiddenNorm, m.Config.Eps)
	m.set.Quantize(s.acts, i, both)
}

// finalTask turns one token's residual stream into its state after a final norm, in place.
type finalTask struct {
	m    *Model
	norm []float32
}

func (t *finalTask) Do(_, i int) {
	n := t.m.Config.Width
	x := t.m.s.x[i*n : (i+1)*n]
	t.m.set.RMSNorm(x, x, t.norm, t.m.Config.Eps)
}
