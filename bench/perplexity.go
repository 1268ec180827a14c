package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Rows computes the logits of every token of a sequence and calls each with them in order.
type Rows func(ctx context.Context, tokens []int32, each func(pos int, logits []float32) error) error

// Text is what Perplexity reads.
type Text struct {
	Tokens []int32
	Window int       // tokens of a sequence
	First  int32     // stands at the front of each sequence in place of the token there; -1: nothing does
	Ref    io.Reader // float32 logits, a row for each token of each sequence; nil: none
	RefLen int64     // bytes of Ref, so that a wrong file is found at once; 0: not known
	Save   io.Writer // takes our logits in that form; nil: not kept
}

// Quality says how well logits predict a text, and how near they are to others.
type Quality struct {
	Tokens     int     `json:"tokens"` // of the text that were read
	Scored     int     `json:"scored"` // that were predicted
	Perplexity float64 `json:"perplexity"`
	Error      float64 `json:"perplexity_stderr"`
	// Against reference logits, over the same tokens.
	Divergence *Divergence `json:"reference,omitempty"`
}

// Divergence compares two distributions over all scored tokens.
type Divergence struct {
	Perplexity float64 `json:"perplexity"`     // of the reference
	MeanKL     float64 `json:"kl_mean"`        // Kullback-Leibler divergence of ours from the reference, in nats
	MaxKL      float64 `json:"kl_max"`         // the largest of a token
	SameTop    float64 `json:"top1_agreement"` // share of tokens for which both find the same one best
}

// MinWindow is the shortest window of which the second half predicts anything.
const MinWindow = 4

// Perplexity is exp of the mean negative log-likelihood of the tokens of a text. As in llama.cpp's tool of that name the
// text is cut into windows that start afresh, what is left at the end is dropped, and only the second half of a window is
// scored, so that every scored token has a context; a text shorter than a window is scored whole. Errors: an ErrReference
// for too few or too many reference logits.
func Perplexity(ctx context.Context, rows Rows, t Text) (Quality, error) {
	if len(t.Tokens) < 2 || t.Window < MinWindow {
		return Quality{}, fmt.Errorf("bench: perplexity of %d tokens in windows of %d: %w: 2 in windows of %d are needed", len(t.Tokens), t.Window, ErrInput, MinWindow)
	}
	s := &scorer{ref: t.Ref, save: t.Save, first: t.Window/2 + 1}
	if s.ref != nil {
		s.ref = bufio.NewReaderSize(t.Ref, 1<<20)
	}
	if len(t.Tokens) < t.Window {
		t.Window, s.first = len(t.Tokens), 1
	}
	s.rowsWanted, s.refLen = len(t.Tokens)/t.Window*t.Window, t.RefLen
	q := Quality{}
	for from := 0; from+t.Window <= len(t.Tokens); from += t.Window {
		seq := append([]int32(nil), t.Tokens[from:from+t.Window]...)
		if t.First >= 0 {
			seq[0] = t.First
		}
		s.seq = seq
		if err := rows(ctx, seq, s.row); err != nil {
			return q, err
		}
		q.Tokens += len(seq)
	}
	if s.ref != nil {
		if _, err := s.ref.Read(s.buf[:1]); !errors.Is(err, io.EOF) {
			return q, fmt.Errorf("bench: %w: more than the %d rows of %d logits that the text has", ErrReference, q.Tokens, len(s.buf)/4)
		}
	}
	return s.quality(q), nil
}

// scorer adds up what rows say of a sequence.
type scorer struct {
	seq   []int32
	first int // position of the first token scored
	ref   io.Reader
	save  io.Writer
	buf   []byte
	other []float32
	rows  int

	rowsWanted int
	refLen     int64

	n                 int
	nll, squares      float64
	refNLL, kl, maxKL float64
	agree             int
}

func (s *scorer) row(pos int, ours []float32) error {
	if s.buf == nil {
		s.buf, s.other = make([]byte, 4*len(ours)), make([]float32, len(ours))
		if want := int64(s.rowsWanted) * int64(len(s.buf)); s.refLen > 0 && s.refLen != want {
			return fmt.Errorf("bench: %w: %d bytes, %d rows of %d logits are %d: make it from the same text with the same --window and vocabulary", ErrReference, s.refLen, s.rowsWanted, len(ours), want)
		}
	}
	if s.save != nil {
		for i, v := range ours {
			binary.LittleEndian.PutUint32(s.buf[4*i:], math.Float32bits(v))
		}
		if _, err := s.save.Write(s.buf); err != nil {
			return fmt.Errorf("bench: saving logits: %w", err)
		}
	}
	if s.ref != nil {
		if _, err := io.ReadFull(s.ref, s.buf); err != nil {
			return fmt.Errorf("bench: %w: row %d of %d logits: %w: it must hold a row for every token of the text", ErrReference, s.rows, len(ours), err)
		}
		for i := range s.other {
			s.other[i] = math.Float32frombits(binary.LittleEndian.Uint32(s.buf[4*i:]))
		}
	}
	s.rows++
	if next := pos + 1; next >= s.first && next < len(s.seq) {
		return s.score(s.seq[next], ours)
	}
	return nil
}

// score counts one prediction.
func (s *scorer) score(token int32, ours []float32) error {
	norm, best := logSum(ours)
	nll := norm - float64(ours[token])
	s.n++
	s.nll += nll
	s.squares += nll * nll
	if s.ref == nil {
		return nil
	}
	refNorm, refBest := logSum(s.other)
	if math.IsNaN(refNorm) || math.IsInf(refNorm, 0) {
		return fmt.Errorf("bench: %w: row %d holds logits that are NaN or infinite", ErrReference, s.rows-1)
	}
	s.refNLL += refNorm - float64(s.other[token])
	kl := 0.0
	for i, v := range s.other {
		log := float64(v) - refNorm
		if p := math.Exp(log); p > 0 {
			kl += p * (log - (float64(ours[i]) - norm))
		}
	}
	s.kl += kl
	s.maxKL = max(s.maxKL, kl)
	if best == refBest {
		s.agree++
	}
	return nil
}

// logSum returns the logarithm of the sum of exponentials, and the index of the largest.
func logSum(x []float32) (norm float64, best int) {
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	top, sum := float64(x[best]), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum), best
}

func (s *scorer) quality(q Quality) Quality {
	n := float64(s.n)
	mean := s.nll / n
	q.Scored, q.Perplexity = s.n, math.Exp(mean)
	if s.n > 1 {
		variance := max(0, s.squares/n-mean*mean)
		q.Error = q.Perplexity * math.Sqrt(variance/(n-1))
	}
	if s.ref != nil {
		q.Divergence = &Divergence{Perplexity: math.Exp(s.refNLL / n), MeanKL: s.kl / n, MaxKL: s.maxKL, SameTop: float64(s.agree) / n}
	}
	return q
}
