package model

import "fmt"

// rewind takes recurrent states back behind rejected drafts. Keys and values need nothing of the kind: positions are
// written before they are read. Of every sequence a batch marks as drafted it keeps, per recurrent layer, the state before
// the batch and what the layer's recurrence was fed with: from both the state after any of the batch's tokens is computed
// again, bit for bit, at the cost of the recurrence alone.
type rewind struct {
	tokens []int            // per sequence: of the last batch that can be taken back; 0: none
	kept   []recurrentLayer // [sequence*recurrents+recurrent]
	layers []*layer         // with a recurrent state
	batch  Batch
}

// recurrentLayer is what one layer keeps of one sequence.
type recurrentLayer struct {
	matrix, taps     []float32 // the state before the batch
	qkv, alpha, beta []float32 // [1+Drafts] rows, as projected
}

// decays is how many decay factors a recurrent layer has per token.
func (m *Model) decays() int {
	if m.spec.has(KDA) {
		return m.Config.StateDim * m.Config.ValueHeads
	}
	return m.Config.ValueHeads
}

// divide cuts the memory, or counts it.
func (r *rewind) divide(mem *space, m *Model) {
	*r = rewind{tokens: make([]int, m.opt.Sequences)}
	if m.opt.Drafts == 0 {
		return
	}
	c, rows := m.Config, 1+m.opt.Drafts
	for i := range m.layers {
		if m.layers[i].mixer.recurrent() {
			r.layers = append(r.layers, &m.layers[i])
		}
	}
	for range m.opt.Sequences * len(r.layers) {
		r.kept = append(r.kept, recurrentLayer{
			matrix: mem.floats(c.ValueHeads * c.StateDim * c.StateDim),
			taps:   mem.floats((c.ConvTaps - 1) * c.convChannels()),
			qkv:    mem.floats(rows * c.convChannels()),
			alpha:  mem.floats(rows * m.decays()),
			beta:   mem.floats(rows * c.ValueHeads),
		})
	}
	r.batch.Tokens, r.batch.Seqs = make([]int32, 0, rows), make([]int32, 0, rows)
}

// mark takes down which sequences of a batch are drafted.
func (r *rewind) mark(m *Model, b *Batch) error {
	clear(r.tokens)
	for _, seq := range b.Drafted {
		n := 0
		for _, s := range b.Seqs {
			if s == seq {
				n++
			}
		}
		if n == 0 || n > 1+m.opt.Drafts {
			return fmt.Errorf("model: sequence %d has %d tokens of a batch to verify, allowed are 1 to %d", seq, n, 1+m.opt.Drafts)
		}
		r.tokens[seq] = n
	}
	return nil
}

// keep saves the inputs of a recurrent layer, and the part of its states that all heads share.
func (r *rewind) keep(m *Model, l *layer, b *Batch) {
	if len(b.Drafted) == 0 {
		return
	}
	s, channels, decays, heads := &m.s, m.Config.convChannels(), m.decays(), m.Config.ValueHeads
	b.sequences(func(first, n int) {
		seq := int(b.Seqs[first])
		if r.tokens[seq] == 0 {
			return
		}
		at := seq*m.state.recurrents + l.recurrent
		k := &r.kept[at]
		copy(k.taps, m.state.taps[at])
		copy(k.qkv, s.qkv[first*channels:(first+n)*channels])
		copy(k.alpha, s.alpha[first*decays:(first+n)*decays])
		copy(k.beta, s.beta[first*heads:(first+n)*heads])
	})
}

// keepMatrix saves the state of one head, which begins at float from of its layer's; workers call it for their heads.
func (r *rewind) keepMatrix(seq int32, at, from int, state []float32) {
	if r.tokens[seq] > 0 {
		copy(r.kept[at].matrix[from:], state)
	}
}

// Rewind takes a sequence that the last batch marked as drafted back to where it was after the first keep of its tokens
// there. The next token fed has the position after those.
func (m *Model) Rewind(seq int32, keep int) {
	r, s := &m.rewind, &m.s
	n := r.tokens[seq]
	r.tokens[seq] = 0
	if keep < n && m.prediction != nil {
		m.s.predict.kept[seq].drop(n - keep)
	}
	if keep >= n || m.state.recurrents == 0 {
		return
	}
	b := &r.batch
	b.Tokens, b.Seqs = b.Tokens[:keep], b.Seqs[:0]
	for range keep {
		b.Seqs = append(b.Seqs, seq)
	}
	for _, l := range r.layers {
		at := int(seq)*m.state.recurrents + l.recurrent
		k := &r.kept[at]
		m.state.matrices[at], k.matrix = k.matrix, m.state.matrices[at]
		m.state.taps[at], k.taps = k.taps, m.state.taps[at]
		copy(s.qkv, k.qkv[:keep*m.Config.convChannels()])
		copy(s.alpha, k.alpha[:keep*m.decays()])
		copy(s.beta, k.beta[:keep*m.Config.ValueHeads])
		m.runHeads(l, b)
	}
}
