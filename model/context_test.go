package model

import (
	"fmt"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

// decodeAt runs one token at a position; what the caches hold before it does not change what it costs.
func decodeAt(t testing.TB, m *Model, pos int) {
	t.Helper()
	b := &Batch{Tokens: []int32{1}, Seqs: []int32{0}, Pos: []int32{int32(pos)}, Rows: []int32{0}, Emit: func(int32, []float32) error { return nil }}
	if err := m.Forward(b); err != nil {
		t.Fatal(err)
	}
}

// A decoding token's attention is one unit per kv head and segment of the context; recurrent layers have none.
func TestCostOfContext(t *testing.T) {
	opt := Options{Context: 1 << 16, UBatch: 4, Sequences: 1, TypeK: gguf.F16, TypeV: gguf.F16, Threads: 1}
	m := load(t, "micro-qwen35moe", opt)
	for _, pos := range []int{0, kernels.Segment, 1 << 13, 1<<16 - 1} {
		decodeAt(t, m, pos)
		if got, want := len(m.tasks.walks.walks), m.Config.KVHeads*(pos/kernels.Segment+1); got != want {
			t.Errorf("position %d: %d units of attention a layer, want %d", pos, got, want)
		}
	}
}

// BenchmarkContext is the cost of one token by its position, for attention (linear beyond its projections), the delta
// nets (flat beside a fourth of the layers with attention) and latent attention.
func BenchmarkContext(b *testing.B) {
	for _, name := range []string{"micro-qwen3moe", "micro-qwen35moe", "micro-bailingmoe3"} {
		for _, threads := range []int{1, 2} {
			m := load(b, name, Options{Context: 1 << 16, UBatch: 4, Sequences: 1, TypeK: gguf.F16, TypeV: gguf.F16, Threads: threads})
			for _, pos := range []int{1 << 10, 1 << 12, 1 << 14, 1<<16 - 1} {
				b.Run(fmt.Sprintf("%s/threads=%d/position=%d", name, threads, pos), func(b *testing.B) {
					for b.Loop() {
						decodeAt(b, m, pos)
					}
				})
			}
		}
	}
}
