package model

import (
	"slices"
	"testing"

	"github.com/epq-uring/epq-uring/expert"
)

// foreseer asks for the routes of a layer and the next ones at every Hint, and compares them with those that are taken.
type foreseer struct {
	*inMemory
	t      *testing.T
	m      *Model
	named  [ForeseeLayers + 1][][]int32 // by distance and layer: the first 2 x Used
	scores [][]float32
	own    int
	recall [ForeseeLayers + 1][3]int // routed, among the first Used, among 2 x Used
}

func (f *foreseer) Hint(layer int, hidden []float32) {
	for distance := range f.named {
		n := min(ForeseeLayers, f.m.MoELayers()-layer-distance)
		if layer < 0 && distance == 0 || n <= 0 {
			continue
		}
		f.m.Foresee(layer+distance, hidden, f.scores[:n])
		f.named[distance][layer+distance] = bestFirst(f.scores[0], 2*f.m.Config.Used)
	}
}

func (f *foreseer) Use(layer int, ids []int32, group int, fn func([]expert.Ready) error) error {
	used := len(ids)
	if got := f.named[0][layer]; !slices.Equal(got[:used], ids) {
		f.t.Errorf("layer %d: its own router on its own input selects %v, foreseen %v", layer, ids, got[:used])
	}
	f.own++
	for d := range f.named {
		r := &f.recall[d]
		for i, id := range f.named[d][layer] {
			if slices.Contains(ids, id) {
				r[2]++
				if i < used {
					r[1]++
				}
			}
		}
		if f.named[d][layer] != nil {
			r[0] += used
		}
	}
	return f.inMemory.Use(layer, ids, group, fn)
}

func bestFirst(scores []float32, n int) []int32 {
	ids := make([]int32, len(scores))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	return ids[:min(n, len(ids))]
}

// The control of every predictor: a layer's own router on its own input names exactly what the layer uses, in its order,
// whatever the router selects by (groups, biases, sigmoid). And foreseeing changes no logit.
func TestForesee(t *testing.T) {
	for _, name := range []string{
		"micro-qwen3moe", "micro-qwen35moe", "micro-bailingmoe3", "micro-deepseek2", "micro-deepseek2-glm", "micro-gpt-oss",
		"tiny-qwen35moe-q4k", "tiny-bailingmoe3-qlora-q4k-00001-of-00002",
	} {
		t.Run(name, func(t *testing.T) {
			run := func(foreseeing bool) (logits []float32, f *foreseer) {
				m := load(t, name, testOptions())
				if foreseeing {
					f = &foreseer{inMemory: m.experts.(*inMemory), t: t, m: m}
					for range ForeseeLayers {
						f.scores = append(f.scores, make([]float32, m.Config.Experts))
					}
					for d := range f.named {
						f.named[d] = make([][]int32, m.MoELayers())
					}
					m.experts = f
				}
				b := &Batch{Tokens: []int32{0}, Seqs: []int32{0}, Pos: []int32{0}, Rows: []int32{0}}
				b.Emit = func(_ int32, row []float32) error {
					logits = append(logits, row...)
					return nil
				}
				for pos := range 40 {
					b.Tokens[0], b.Pos[0] = int32(pos*7%50), int32(pos)
					if err := m.Forward(b); err != nil {
						t.Fatal(err)
					}
				}
				return logits, f
			}
			want, _ := run(false)
			got, f := run(true)
			if !slices.Equal(got, want) {
				t.Error("other logits")
			}
			if f.own != 40*f.m.MoELayers() {
				t.Errorf("%d uses of %d layers", f.own, f.m.MoELayers())
			}
			for d, r := range f.recall {
				t.Logf("%d layers ahead: %d of %d named, %d among twice as many", d, r[1], r[0], r[2])
			}
		})
	}
}

// Foresee allocates nothing.
func TestForeseeAllocatesNothing(t *testing.T) {
	m := load(t, "micro-bailingmoe3", testOptions())
	hidden := make([]float32, m.Config.Width)
	for i := range hidden {
		hidden[i] = float32(i%7) - 3
	}
	scores := [][]float32{make([]float32, m.Config.Experts), make([]float32, m.Config.Experts)}
	if n := testing.AllocsPerRun(20, func() { m.Foresee(0, hidden, scores) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
