package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// rows feeds tokens of a sequence from a position on, drafted or not, and returns the logits of each.
func rows(t *testing.T, m *Model, seq int32, pos int, tokens []int32, drafted bool) [][]float32 {
	t.Helper()
	b, out := &Batch{}, [][]float32{}
	b.Emit = func(_ int32, logits []float32) error {
		out = append(out, slices.Clone(logits))
		return nil
	}
	if drafted {
		b.Drafted = []int32{seq}
	}
	for i, id := range tokens {
		b.Tokens, b.Seqs, b.Pos, b.Rows = append(b.Tokens, id), append(b.Seqs, seq), append(b.Pos, int32(pos+i)), append(b.Rows, int32(i))
	}
	if err := m.Forward(b); err != nil {
		t.Fatal(err)
	}
	return out
}

// After any part of a drafted batch was taken back, a sequence goes on as if that part had never been fed, bit for bit.
func TestRewind(t *testing.T) {
	for _, name := range []string{"micro-qwen35moe", "micro-bailingmoe3", "tiny-bailingmoe3-q4k", "micro-qwen3moe", "micro-deepseek2-glm"} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.Drafts = 4
			rnd := rand.New(rand.NewPCG(1, 1))
			m := load(t, name, o)
			tokens := make([]int32, 40)
			for i := range tokens {
				tokens[i] = rnd.Int32N(int32(m.Vocab()))
			}
			want := rows(t, m, 0, 0, tokens, false)
			if name == "micro-qwen35moe" && m.Sizes().Drafts == 0 {
				t.Fatal("no memory to take states back with")
			}
			m.Reset(0)
			got := rows(t, m, 0, 0, tokens[:5], false)
			for pos := 5; pos < len(tokens); {
				n := min(1+rnd.IntN(1+o.Drafts), len(tokens)-pos)
				keep := 1 + rnd.IntN(n)
				batch := slices.Clone(tokens[pos : pos+n])
				for i := keep; i < n; i++ {
					batch[i] = rnd.Int32N(int32(m.Vocab()))
				}
				got = append(got, rows(t, m, 0, pos, batch, true)[:keep]...)
				m.Rewind(0, keep)
				pos += keep
			}
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("position %d: other bits", i)
				}
			}
		})
	}
}

// A batch that wants to take back more than there is room for is refused.
func TestDraftedBatchTooLarge(t *testing.T) {
	o := testOptions()
	o.Drafts = 2
	m := load(t, "micro-qwen35moe", o)
	for n, fine := range map[int]bool{1: true, 3: true, 4: false} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			b := &Batch{Drafted: []int32{1}}
			for i := range n {
				b.Tokens, b.Seqs, b.Pos = append(b.Tokens, 1), append(b.Seqs, 1), append(b.Pos, int32(i))
			}
			if err := m.Forward(b); (err == nil) != fine {
				t.Errorf("%d tokens: %v", n, err)
			}
			m.Reset(1)
		})
	}
}
