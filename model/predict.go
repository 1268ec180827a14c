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
// projections and no expert. Forward stores those of a prompt with each batch; of tokens that come few at a time it keeps the
// states, and many are stored at once, when a guess is wanted or no more can be kept: next to nothing where none is.
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

	kept   []keptTokens // of every sequence
	deeper []float32    // [sequences][width] states of the last prediction
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
	s.kept, s.deeper = make([]keptTokens, m.opt.Sequences), mem.floats(m.opt.Sequences*n)
	for i := range s.kept {
		s.kept[i].divide(mem, min(1+followTokens+m.opt.Drafts, 1+T), n)
	}
	s.from = make([][]float32, 0, T)
	b := &s.batch
	b.Tokens, b.Seqs, b.Pos = make([]int32, 0, T), make([]int32, 0, T), make([]int32, 0, T)
}

// followTokens is how many tokens that came one by one are stored together: enough for the weights to be read once for
// many, few enough that the states of a sequence stay below a MiB.
const followTokens = 32

// keptTokens are the last tokens fed of a sequence, and the states after them.
type keptTokens struct {
	first  int       // position of the first
	tokens []int32   // its capacity is the number that can be kept
	states []float32 // [capacity][width]
	width  int
	stored int // pairs of a state and the token after it whose keys and values are stored, from the first on
}

func (k *keptTokens) divide(mem *space, rows, width int) {
	*k = keptTokens{tokens: make([]int32, 0, rows), states: mem.floats(rows * width), width: width}
}

// fits says whether so many more tokens can be kept.
func (k *keptTokens) fits(n int) bool { return len(k.tokens)+n <= cap(k.tokens) }

func (k *keptTokens) state(i int) []float32 { return k.states[i*k.width : (i+1)*k.width] }

// before is the state after the token before a position, which must be the last one fed; nil if that is not kept.
func (k *keptTokens) before(pos int32) []float32 {
	n := len(k.tokens)
	if n == 0 || k.first+n != int(pos) {
		return nil
	}
	return k.state(n - 1)
}

// cut forgets the tokens from a position on.
func (k *keptTokens) cut(pos int) {
	n := min(max(pos-k.first, 0), len(k.tokens))
	k.tokens, k.stored = k.tokens[:n], min(k.stored, max(n-1, 0))
}

// drop forgets the last n tokens.
func (k *keptTokens) drop(n int) { k.cut(k.first + len(k.tokens) - n) }

// add keeps the token of the next position and the state after it.
func (k *keptTokens) add(token int32, pos int, state []float32) {
	n := len(k.tokens)
	if n == 0 {
		k.first = pos
	}
	k.tokens = append(k.tokens, token)
	copy(k.state(n), state)
}

// keepLast forgets all but the last token.
func (k *keptTokens) keepLast() {
	n := len(k.tokens)
	copy(k.state(0), k.state(n-1))
	k.tokens[0] = k.tokens[n-1]
	k.first, k.tokens, k.stored = k.first+n-1, k.tokens[:1], 0
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

// makeRoom stores what must be stored before a batch of the main pass can be followed. The residual stream must be free.
func (m *Model) makeRoom(b *Batch) {
	b.sequences(func(first, count int) {
		k := &m.s.predict.kept[b.Seqs[first]]
		k.cut(int(b.Pos[first]))
		if !k.fits(count) {
			m.catchUp(b.Seqs[first])
		}
	})
}

// catchUp stores the block's keys and values for all tokens of a sequence. It takes the residual stream.
func (m *Model) catchUp(seq int32) {
	s := &m.s.predict
	k := &s.kept[seq]
	s.clear()
	for i := k.stored; i+1 < len(k.tokens); i++ {
		s.add(k.tokens[i+1], seq, int32(k.first+i+1), k.state(i))
	}
	if len(s.batch.Tokens) > 0 {
		m.pair()
		k.keepLast()
		m.storePairs()
	}
}

// follow keeps the tokens of a batch that the main pass is done with and the states after them, or, of more than can be
// kept, stores the block's keys and values at once. It takes the residual stream of that pass.
func (m *Model) follow(b *Batch) {
	s, width := &m.s.predict, m.Config.Width
	m.tasks.final.norm = m.norm
	m.pool.Run(&m.tasks.final, len(b.Tokens))
	state := func(i int) []float32 { return m.s.x[i*width : (i+1)*width] }
	s.clear()
	b.sequences(func(first, count int) {
		k := &s.kept[b.Seqs[first]]
		if k.fits(count) {
			return
		}
		before := k.before(b.Pos[first])
		for i := first; i < first+count; i++ {
			if before != nil {
				s.add(b.Tokens[i], b.Seqs[i], b.Pos[i], before)
			}
			before = state(i)
		}
	})
	m.pair()
	b.sequences(func(first, count int) {
		k, from := &s.kept[b.Seqs[first]], first
		if !k.fits(count) {
			k.cut(0)
			from = first + count - 1
		}
		for i := from; i < first+count; i++ {
			k.add(b.Tokens[i], int(b.Pos[i]), state(i))
		}
	})
	m.storePairs()
}

// storePairs stores the block's keys and values for the batch of pairs, which are normed and quantised.
func (m *Model) storePairs() {
	b := &m.s.predict.batch
	if len(b.Tokens) == 0 {
		return
	}
	m.joinPairs()
	m.tasks.norm = normTask{m: m, weight: m.prediction.layer.attnNorm}
	m.pool.Run(&m.tasks.norm, len(b.Tokens))
	m.storeKeys(m.prediction.layer, b)
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
	if !deeper {
		for _, seq := range b.Seqs {
			m.catchUp(seq)
		}
	}
	s.clear()
	for i, token := range b.Tokens {
		seq := b.Seqs[i]
		state := s.kept[seq].before(b.Pos[i])
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
	m.tasks.moe.last = nil
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
