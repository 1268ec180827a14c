package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

const goldenDir = "../tests/testdata/golden"

// inMemory lends experts and resident weights from the file's bytes: the reference run, without pager and ring.
type inMemory struct {
	f      *gguf.File
	data   [][]byte         // of each shard
	layers [][3]gguf.Tensor // gate, up, down
	ready  []expert.Ready
	parts  []parts
}

type parts struct{ gate, up, down []byte }

func (p *parts) GateUp() (gate, up []byte) { return p.gate, p.up }
func (p *parts) Down() ([]byte, error)     { return p.down, nil }

func newInMemory(t testing.TB, f *gguf.File) *inMemory {
	t.Helper()
	m := &inMemory{f: f}
	for _, shard := range f.Shards {
		data, err := os.ReadFile(shard.Path)
		if err != nil {
			t.Fatal(err)
		}
		m.data = append(m.data, data)
	}
	for i := range 16 { // those that predict come last, as in a catalog
		var l [3]gguf.Tensor
		routed := false
		for j, part := range []string{"gate", "up", "down"} {
			l[j], routed = f.Tensor(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", i, part))
		}
		if routed {
			m.layers = append(m.layers, l)
		}
	}
	return m
}

func (m *inMemory) at(e gguf.Extent) []byte { return m.data[e.Shard][e.Offset : e.Offset+e.Size] }

func (m *inMemory) Bytes(t gguf.Tensor) ([]byte, error) { return m.at(t.Extent), nil }

func (m *inMemory) Use(layer int, ids []int32, group int, fn func([]expert.Ready) error) error {
	for from := 0; from < len(ids); from += group {
		m.ready, m.parts = m.ready[:0], slices.Grow(m.parts[:0], group)
		for i := from; i < min(from+group, len(ids)); i++ {
			l, e := m.layers[layer], int(ids[i])
			m.parts = append(m.parts, parts{m.at(l[0].Slice(e)), m.at(l[1].Slice(e)), m.at(l[2].Slice(e))})
			m.ready = append(m.ready, expert.Ready{Index: i, Weights: &m.parts[len(m.parts)-1]})
		}
		if err := fn(m.ready); err != nil {
			return err
		}
	}
	return nil
}

func (*inMemory) Hint(int, []float32) {}

// load makes a model of a golden file with everything in memory.
func load(t testing.TB, name string, opt Options) *Model {
	t.Helper()
	f, err := gguf.Open(filepath.Join(goldenDir, name+".gguf"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(f, c, opt)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kernels.NewPool(opt.Threads, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := m.Sizes()
	mem := Memory{KV: aligned(s.KV), Recurrent: aligned(s.Recurrent), Drafts: aligned(s.Drafts), Scratch: aligned(s.Scratch), Vectors: aligned(s.Vectors)}
	src := newInMemory(t, f)
	if err := m.Bind(src, mem, kernels.Best(), pool, src); err != nil {
		t.Fatal(err)
	}
	return m
}

// aligned is memory as Memory asks.
func aligned(n int64) []byte {
	b := make([]byte, n+cacheLine)
	at := 0
	if n > 0 {
		at = int(-uintptr(unsafe.Pointer(&b[0])) & (cacheLine - 1))
	}
	return b[at : at+int(n)]
}

func testOptions() Options {
	return Options{Context: 128, UBatch: 64, Sequences: 2, TypeK: gguf.F32, TypeV: gguf.F32, Threads: 2}
}

// The forward pass without any paging reproduces an independent engine's logits.
func TestForwardInMemory(t *testing.T) {
	for _, name := range []string{"micro-qwen3moe", "micro-qwen35moe", "micro-bailingmoe3", "micro-deepseek2", "micro-gpt-oss-f32"} {
		t.Run(name, func(t *testing.T) {
			m := load(t, name, testOptions())
			var golden struct{ Tokens []int32 }
			b, err := os.ReadFile(filepath.Join(goldenDir, name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &golden); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(goldenDir, name+".logits.f32"))
			if err != nil {
				t.Fatal(err)
			}
			batch := &Batch{}
			worst := 0.0
			batch.Emit = func(row int32, logits []float32) error {
				for i, v := range logits {
					bits := want[4*(int(row)*len(logits)+i):]
					w := math.Float32frombits(uint32(bits[0]) | uint32(bits[1])<<8 | uint32(bits[2])<<16 | uint32(bits[3])<<24)
					worst = max(worst, math.Abs(float64(v-w)))
				}
				return nil
			}
			for i, id := range golden.Tokens {
				batch.Tokens, batch.Seqs = append(batch.Tokens, id), append(batch.Seqs, 1)
				batch.Pos, batch.Rows = append(batch.Pos, int32(i)), append(batch.Rows, int32(i))
			}
			if err := m.Forward(batch); err != nil {
				t.Fatal(err)
			}
			if !(worst < 1e-3) {
				t.Errorf("logits differ by %g", worst)
			}
		})
	}
}

// A batch that cannot be is refused before anything is touched.
func TestForwardChecksTheBatch(t *testing.T) {
	m := load(t, "micro-qwen3moe", testOptions())
	for name, b := range map[string]Batch{
		"empty":           {},
		"unequal lengths": {Tokens: []int32{1, 2}, Seqs: []int32{0}, Pos: []int32{0, 1}},
		"token":           {Tokens: []int32{int32(m.Vocab())}, Seqs: []int32{0}, Pos: []int32{0}},
		"negative token":  {Tokens: []int32{-1}, Seqs: []int32{0}, Pos: []int32{0}},
		"sequence":        {Tokens: []int32{1}, Seqs: []int32{2}, Pos: []int32{0}},
		"position":        {Tokens: []int32{1}, Seqs: []int32{0}, Pos: []int32{128}},
		"too many":        {Tokens: make([]int32, 65), Seqs: make([]int32, 65), Pos: make([]int32, 65)},
	} {
		if err := m.Forward(&b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Impossible hyper-parameters are refused by key, value and range.
func TestHyperparameters(t *testing.T) {
	for file, say := range map[string]string{
		"b08_heads_0":       "qwen3moe.attention.head_count is 0, allowed is 1 to 4096",
		"b08_layers_0":      "qwen3moe.block_count is 0, allowed is 1 to 4096",
		"b08_layers_huge":   "qwen3moe.block_count is 4294967295, allowed is 1 to 4096",
		"b08_used_gt_count": "qwen3moe.expert_used_count is 5, allowed is 1 to 4",
		"b08_used_0":        "qwen3moe.expert_used_count is 0, allowed is 1 to 4",
		"b08_count_str":     "qwen3moe.expert_count is not a whole number",
		"b08_no_experts":    "qwen3moe.expert_count is missing, a number from 1 to 65536",
		"b08_ctx_neg":       "qwen3moe.context_length is -1, allowed is 1 to 1073741824",
	} {
		f, err := gguf.Open(filepath.Join("testdata", file+".gguf"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ReadConfig(f)
		if !errors.Is(err, ErrHyperparameter) || !strings.Contains(err.Error(), file+".gguf: "+say) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// routerCase is a selection with its answer; scores may be the words nan, inf and -inf.
type routerCase struct {
	Name, Score string
	Logits      []json.RawMessage
	K           int
	Scale       float64
	Bias        []float32
	Groups      int
	GroupsUsed  int `json:"groups_used"`
	Want        struct {
		Error   string
		IDs     []int32
		Weights []float64
	}
}

func TestRouter(t *testing.T) {
	b, err := os.ReadFile("testdata/b36_router.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Cases []routerCase }
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Cases {
		t.Run(c.Name, func(t *testing.T) { c.check(t) })
	}
	if len(all.Cases) < 15 {
		t.Fatalf("only %d cases", len(all.Cases))
	}
}

func (c *routerCase) check(t *testing.T) {
	scores := make([]float32, len(c.Logits))
	for i, raw := range c.Logits {
		scores[i] = score(t, string(raw))
	}
	config := &Config{Experts: len(scores), Used: c.K, Gating: Softmax, Normalise: true, Groups: max(c.Groups, 1), GroupsUsed: max(c.GroupsUsed, 1),
		ExpertWeightScale: float32(cmp.Or(c.Scale, 1))}
	if c.Score == "sigmoid" {
		config.Gating = Sigmoid
	}
	w := &workerScratch{groups: make([]float32, config.Groups), best: make([]int32, config.GroupsUsed)}
	ids, weights, choice := make([]int32, c.K), make([]float32, c.K), make([]float32, len(scores))
	if ok := config.choose(kernels.Best(), ids, scores, choice, c.Bias, w); ok != (c.Want.Error == "") {
		t.Fatalf("accepted %v, want error %q", ok, c.Want.Error)
	} else if !ok {
		return
	}
	config.weigh(ids, weights, scores)
	if !slices.Equal(ids, c.Want.IDs) {
		t.Fatalf("ids %v, want %v", ids, c.Want.IDs)
	}
	for r, w := range c.Want.Weights {
		if math.Abs(float64(weights[r])-w) > 2e-6*math.Abs(w) {
			t.Errorf("weight %d is %g, want %g", r, weights[r], w)
		}
	}
}

func score(t *testing.T, s string) float32 {
	switch strings.Trim(s, `"`) {
	case "nan":
		return float32(math.NaN())
	case "inf", "+inf":
		return float32(math.Inf(1))
	case "-inf":
		return float32(math.Inf(-1))
	}
	var v float32
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Pairs of a multi-axis rope that belong to no axis stay where they are in text; the others are plain rope.
func TestRopeSections(t *testing.T) {
	r := Rope{Dim: 16, Base: 10000, Sections: []int{2, 2, 1, 1}, Size: 1}
	r.freeze()
	turns := make([]bool, r.Dim/2)
	cos, sin := make([]float32, len(turns)), make([]float32, len(turns))
	r.table(cos, sin, 3)
	for i := range turns {
		turns[i] = sin[i] != 0 || cos[i] != 1
	}
	// i mod 6 is 0, 3: axis t (below 6); 1, 4: axis h (below 6); 2: axis w (below 3); 5 belongs to none.
	if want := []bool{true, true, true, true, true, false, true, true}; !slices.Equal(turns, want) {
		t.Errorf("pairs that turn: %v, want %v", turns, want)
	}
}

// A cache that cannot hold the model's heads is refused.
func TestCacheTypes(t *testing.T) {
	for name, ok := range map[string]bool{"micro-qwen3moe": false, "tiny-qwen35moe-q4k": true, "tiny-bailingmoe3-q4k": true} {
		f, err := gguf.Open(filepath.Join(goldenDir, name+".gguf"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig(f)
		if err != nil {
			t.Fatal(err)
		}
		o := testOptions()
		o.TypeK, o.TypeV = gguf.Q8_0, gguf.Q8_0
		if _, err := New(f, c, o); (err == nil) != ok || !ok && !errors.Is(err, kernels.ErrCacheType) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
