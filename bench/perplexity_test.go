package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// next gives token (t + 1) % 4 the probability p and the others the rest.
func next(p float64) Rows {
	return func(_ context.Context, tokens []int32, each func(int, []float32) error) error {
		for i, t := range tokens {
			row := make([]float32, 4)
			for k := range row {
				row[k] = float32(math.Log((1-p)/3)) + 7 // a constant changes nothing
			}
			row[(t+1)%4] = float32(math.Log(p)) + 7
			if err := each(i, row); err != nil {
				return err
			}
		}
		return nil
	}
}

func counting(n int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(i % 4)
	}
	return t
}

func TestPerplexity(t *testing.T) {
	for _, c := range []struct{ tokens, window, read, scored int }{
		{20, 8, 16, 6}, // two windows of which positions 5, 6, 7 are scored, the rest is dropped
		{5, 8, 5, 4},   // shorter than a window: all
		{8, 8, 8, 3},
	} {
		q, err := Perplexity(t.Context(), next(0.5), Text{Tokens: counting(c.tokens), Window: c.window, First: -1})
		if err != nil || q.Tokens != c.read || q.Scored != c.scored || !near(q.Perplexity, 2) || q.Error > 1e-3 || q.Divergence != nil {
			t.Errorf("%d in %d: %+v, %v", c.tokens, c.window, q, err)
		}
	}
	// One of four tokens is not the expected one: exp of (3 ln 2 + ln 6) / 4, deviation of ln 3 / 2 halves.
	q, err := Perplexity(t.Context(), next(0.5), Text{Tokens: []int32{0, 1, 2, 3, 2}, Window: 8, First: -1})
	want := math.Exp((3*math.Log(2) + math.Log(6)) / 4)
	if err != nil || !near(q.Perplexity, want) || !near(q.Error, want*math.Log(3)*math.Sqrt(3)/4/math.Sqrt(3)) {
		t.Errorf("%+v, %v, want %g", q, err, want)
	}
	var first int32 = -1
	see := func(_ context.Context, tokens []int32, _ func(int, []float32) error) error {
		first = tokens[0]
		return nil
	}
	if _, err := Perplexity(t.Context(), see, Text{Tokens: counting(8), Window: 8, First: 3}); err != nil || first != 3 {
		t.Errorf("begins with token %d, %v", first, err)
	}
	for _, bad := range []Text{{Tokens: counting(1), Window: 8}, {Tokens: counting(9), Window: 3}} {
		if _, err := Perplexity(t.Context(), next(0.5), bad); !errors.Is(err, ErrInput) {
			t.Error(err)
		}
	}
}

func TestDivergence(t *testing.T) {
	text := Text{Tokens: counting(16), Window: 8, First: -1}
	var ref bytes.Buffer
	text.Save = &ref
	if _, err := Perplexity(t.Context(), next(0.5), text); err != nil || ref.Len() != 16*4*4 {
		t.Fatal(ref.Len(), err)
	}
	compare := func(p float64, ref []byte) (Quality, error) {
		text.Ref, text.Save = bytes.NewReader(ref), nil
		return Perplexity(t.Context(), next(p), text)
	}
	q, err := compare(0.5, ref.Bytes())
	if err != nil || q.Divergence.MeanKL > 1e-9 || q.Divergence.SameTop != 1 || !near(q.Divergence.Perplexity, 2) {
		t.Errorf("itself: %+v, %v", q.Divergence, err)
	}
	// 1/2 and 1/6, 1/6, 1/6 from 1/4 each: ln 2 / 2 + ln(2/3) / 2. From 1/10 and 3/10 each: another is best.
	q, err = compare(0.25, ref.Bytes())
	if want := math.Log(2)/2 + math.Log(2./3)/2; err != nil || !near(q.Divergence.MeanKL, want) || !near(q.Divergence.MaxKL, want) || !near(q.Perplexity, 4) {
		t.Errorf("%+v, %v, want %g", q.Divergence, err, want)
	}
	if q, err = compare(0.1, ref.Bytes()); err != nil || q.Divergence.SameTop != 0 {
		t.Errorf("%+v, %v", q.Divergence, err)
	}
	nan := slices.Clone(ref.Bytes())
	binary.LittleEndian.PutUint32(nan[4*4*5:], math.Float32bits(float32(math.NaN())))
	if _, err := compare(0.5, nan); !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), "row 5 ") {
		t.Errorf("a reference that is not a number: %v", err)
	}
	// Where the length is known, a reference of another text or vocabulary is refused before anything is computed with it.
	text.RefLen = int64(ref.Len()) - 16
	if _, err := compare(0.5, ref.Bytes()); !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), "16 rows of 4 logits are 256") {
		t.Errorf("another length: %v", err)
	}
	if text.RefLen = int64(ref.Len()); text.RefLen != 256 {
		t.Fatal(text.RefLen)
	}
	if _, err := compare(0.5, ref.Bytes()); err != nil {
		t.Error(err)
	}
	text.RefLen = 0
	for _, bad := range [][]byte{nil, ref.Bytes()[:100], append(ref.Bytes(), 1)} {
		if _, err := compare(0.5, bad); !errors.Is(err, ErrReference) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}
