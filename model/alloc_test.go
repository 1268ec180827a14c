//go:build cgo

package model

import "testing"

// After the first tokens a forward pass allocates nothing.
func TestForwardAllocatesNothing(t *testing.T) {
	for _, name := range []string{"micro-qwen3moe", "tiny-qwen35moe-q4k", "tiny-bailingmoe3-qlora-q4k-00001-of-00002", "micro-gpt-oss"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, name, testOptions())
			b := &Batch{Tokens: []int32{1, 2}, Seqs: []int32{0, 1}, Pos: []int32{0, 0}, Rows: []int32{1}}
			b.Emit = func(int32, []float32) error { return nil }
			step := func() {
				if err := m.Forward(b); err != nil {
					t.Fatal(err)
				}
				b.Pos[0]++
				b.Pos[1]++
			}
			step()
			if n := testing.AllocsPerRun(20, step); n > 0 {
				t.Errorf("%v allocations per token", n)
			}
		})
	}
}
