package model

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var predicting = []string{"micro-qwen35moe-mtp", "micro-bailingmoe3", "micro-deepseek2-glm"}

// golden reads the tokens of a case and the logits of its block of multi-token prediction.
func goldenPrediction(t *testing.T, name string) (tokens []int32, want [][]float32) {
	t.Helper()
	base := filepath.Join(goldenDir, name)
	if name == "micro-qwen35moe-mtp" {
		base = filepath.Join(goldenDir, "micro-qwen35moe") // the same model but for the block
	}
	var golden struct {
		Tokens []int32
		Vocab  int `json:"n_vocab"`
	}
	b, err := os.ReadFile(base + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(base + ".mtp.f32"); err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 {
		row := make([]float32, golden.Vocab)
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		want, b = append(want, row), b[4*len(row):]
	}
	return golden.Tokens, want
}

// predict returns the logits that the block guesses from after a token.
func predict(t *testing.T, m *Model, seq, token int32, pos int, deeper bool) (logits []float32) {
	t.Helper()
	b := &Batch{Tokens: []int32{token}, Seqs: []int32{seq}, Pos: []int32{int32(pos)}, Rows: []int32{0}}
	b.Emit = func(_ int32, row []float32) error {
		logits = slices.Clone(row)
		return nil
	}
	if err := m.Predict(b, deeper); err != nil {
		t.Fatal(err)
	}
	return logits
}

// The block's logits are those of an independent engine, whatever batches the tokens came in, after drafts that were taken
// back and predictions that were wrong; and they are the same bits each time.
func TestPredict(t *testing.T) {
	for _, name := range predicting {
		t.Run(name, func(t *testing.T) {
			tokens, want := goldenPrediction(t, name)
			o := testOptions()
			o.Predict, o.Drafts = true, 3
			m := load(t, name, o)
			if m.prediction == nil || len(want) != len(tokens)-1 {
				t.Fatalf("predicts %v, %d rows for %d tokens", m.prediction != nil, len(want), len(tokens))
			}
			plain := o
			plain.Predict = false
			main := rows(t, load(t, name, plain), 0, 0, tokens, false)

			seen := map[int][]float32{}
			for _, batch := range []int{1, 2, 7, 1} {
				m.Reset(0)
				late := len(seen) > 0 && batch == 1 // the first guess comes after more tokens than are kept
				worst := 0.0
				for pos := 0; pos < len(tokens)-1; {
					n := min(batch, len(tokens)-1-pos)
					got := rows(t, m, 0, pos, tokens[pos:pos+n], false)
					for i := range got {
						if !slices.Equal(got[i], main[pos+i]) {
							t.Fatalf("position %d: the main pass has other bits with the block", pos+i)
						}
					}
					pos += n
					if pos%3 == 0 && pos+3 < len(tokens) { // a draft that is taken back, but for one token
						rows(t, m, 0, pos, []int32{tokens[pos], 5, 6, 7}, true)
						m.Rewind(0, 1)
						pos++
					}
					if late && pos < 1+followTokens+o.Drafts+8 {
						continue
					}
					logits := predict(t, m, 0, tokens[pos], pos, false)
					for i, v := range logits {
						worst = max(worst, math.Abs(float64(v-want[pos-1][i])))
					}
					if before := seen[pos]; before != nil && !slices.Equal(before, logits) {
						t.Errorf("position %d: other bits in batches of %d", pos, batch)
					}
					seen[pos] = logits
					predict(t, m, 0, 9, pos+1, true) // as if it had been the next
				}
				t.Logf("batches of %d: max_abs %.3g", batch, worst)
				if worst > 1e-3 {
					t.Errorf("batches of %d: max_abs %g, allowed 1e-3", batch, worst)
				}
			}
		})
	}
}

// Nothing can be predicted before anything was fed, nor by a model without the block.
func TestPredictNothing(t *testing.T) {
	o := testOptions()
	o.Predict = true
	m := load(t, "micro-deepseek2-glm", o)
	if err := m.Predict(&Batch{Tokens: []int32{1}, Seqs: []int32{0}, Pos: []int32{0}}, false); err == nil {
		t.Error("predicted from nothing")
	}
	if load(t, "micro-qwen3moe", o).prediction != nil {
		t.Error("a model without the block predicts")
	}
}
