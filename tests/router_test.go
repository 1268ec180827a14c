package tests

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/model"
)

// withRouter is a golden model whose router of block 3 is full of a number, with no bias.
func withRouter(t *testing.T, name string, x float64) engine.Options {
	t.Helper()
	c := loadGolden(t, name)
	o := c.options()
	o.Model = rebuilt(t, c.path(), same, func(b *gguf.Builder, tensor gguf.Tensor, v []float32) {
		if strings.HasPrefix(tensor.Name, "blk.3.ffn_gate_inp.") || tensor.Name == "blk.3.exp_probs_b.bias" {
			fill := float32(x)
			if strings.HasSuffix(tensor.Name, ".bias") {
				fill = 0
			}
			v = slices.Repeat([]float32{fill}, len(v))
		}
		keep(b, tensor, v)
	})
	return o
}

// dense is how many layers without experts the model begins with.
func (c *goldenCase) dense() int {
	if len(c.Layers) > 0 {
		return c.Layers[0]
	}
	return 0
}

// Scores that are not finite end the request with layer and position, whatever the router's kind, and not the engine; scores
// that are all equal choose the lower experts, of the lower groups.
func TestBrokenRouters(t *testing.T) {
	for _, name := range []string{"micro-qwen35moe", "micro-bailingmoe3", "micro-gpt-oss-f32"} {
		for _, x := range []float64{math.NaN(), math.Inf(1), 0} {
			e, err := engine.Open(context.Background(), withRouter(t, name, x))
			if err != nil {
				t.Fatal(err)
			}
			var chosen []int32
			dense := loadGolden(t, name).dense()
			seen := func(layer, _ int, ids []int32) {
				if layer+dense == 3 {
					chosen = append(chosen[:0], ids...)
				}
			}
			if err := e.Observe(seen, nil); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second request finds the engine alive
				err := e.Rows(context.Background(), []int32{5, 6, 7}, 2, func(int, []float32) error { return nil })
				if x != 0 && (!errors.Is(err, model.ErrNotFinite) || !strings.Contains(err.Error(), "layer 3") || strings.Contains(err.Error(), "\n")) {
					t.Errorf("%s, router of %g: %v", name, x, err)
				}
				if x == 0 && (err != nil || !slices.IsSorted(chosen) || chosen[0] != 0 || int(chosen[len(chosen)-1]) != len(chosen)-1) {
					t.Errorf("%s, router of zeros: experts %v, %v", name, chosen, err)
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
