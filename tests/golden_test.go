package tests

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/kernels"
)

// goldenCase is a stored case: an independent engine's logits and routes for a small model.
type goldenCase struct {
	Name, Model string
	Tokens      []int32
	Rows        []int
	Vocab       int `json:"n_vocab"`
	Routes      [][][]int32
	Layers      []int // block of each entry of Routes
	Gaps        [][]float64
	Tolerance   struct {
		Routes  string
		MaxAbs  float64 `json:"max_abs"`
		NMSE    float64 `json:"nmse"`
		RowNMSE float64 `json:"row_nmse"`
		Gap     float64
	}
	Greedy *struct {
		Prompt    string
		PromptIDs []int32 `json:"prompt_ids"`
		IDs       []int32
	}
	forced bool
	want   []float32
}

func loadGolden(t *testing.T, name string) *goldenCase {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "golden", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	c := &goldenCase{Name: name}
	if err := json.Unmarshal(b, c); err != nil {
		t.Fatal(err)
	}
	c.forced = strings.Contains(c.Tolerance.Routes, "forced")
	b, err = os.ReadFile(filepath.Join("testdata", "golden", name+".logits.f32"))
	if err != nil {
		t.Fatal(err)
	}
	c.want = make([]float32, len(b)/4)
	for i := range c.want {
		c.want[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return c
}

func (c *goldenCase) path() string {
	return filepath.Join("testdata", "golden", filepath.Base(c.Model))
}

// options are those the golden cases ask for: the KV cache in float32.
func (c *goldenCase) options() engine.Options {
	return engine.Options{Model: c.path(), RAM: "min", Context: 512, UBatch: 300, CacheTypeK: "f32", CacheTypeV: "f32", NoTokenizer: true}
}

// rows computes all logits and the engine's own routes, with the case's routes forced where it asks for it.
func (c *goldenCase) rows(t *testing.T, o engine.Options, batch int) (logits []float32, routes [][][]int32) {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	routes = make([][][]int32, e.MoELayers())
	seen := func(layer, _ int, ids []int32) { routes[layer] = append(routes[layer], slices.Clone(ids)) }
	var force func(layer, _ int) []int32
	if c.forced {
		force = func(layer, _ int) []int32 { return c.Routes[layer][len(routes[layer])-1] }
	}
	if err := e.Observe(seen, force); err != nil {
		t.Fatal(err)
	}
	err = e.Rows(context.Background(), c.Tokens, batch, func(_ int, row []float32) error {
		logits = append(logits, row...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits, routes
}

// compare holds logits against the golden rows.
func (c *goldenCase) compare(t *testing.T, logits []float32) {
	t.Helper()
	var num, den, worstRow, worst float64
	for i, r := range c.Rows {
		var n, d float64
		for v := range c.Vocab {
			got, want := float64(logits[r*c.Vocab+v]), float64(c.want[i*c.Vocab+v])
			n += (got - want) * (got - want)
			d += want * want
			worst = max(worst, math.Abs(got-want))
		}
		num, den, worstRow = num+n, den+d, max(worstRow, n/d)
	}
	nmse := num / den
	t.Logf("%s: max_abs %.3g, nmse %.3g, worst row %.3g", c.Name, worst, nmse, worstRow)
	tol := c.Tolerance
	if !(tol.NMSE > 0 || tol.MaxAbs > 0) {
		t.Fatal("the case states no tolerance")
	}
	if tol.MaxAbs > 0 && !(worst <= tol.MaxAbs) {
		t.Errorf("max_abs %g, allowed %g", worst, tol.MaxAbs)
	}
	if tol.NMSE > 0 && !(nmse <= tol.NMSE) {
		t.Errorf("nmse %g, allowed %g", nmse, tol.NMSE)
	}
	if tol.RowNMSE > 0 && !(worstRow <= tol.RowNMSE) {
		t.Errorf("row nmse %g, allowed %g", worstRow, tol.RowNMSE)
	}
}

// compareRoutes wants the engine's own choice wherever it was not a near tie.
func (c *goldenCase) compareRoutes(t *testing.T, got [][][]int32) {
	t.Helper()
	for l := range c.Routes {
		for i, want := range c.Routes[l] {
			if c.Gaps[l][i] <= c.Tolerance.Gap {
				continue
			}
			w, g := slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got[l][i]))
			if !slices.Equal(w, g) {
				t.Errorf("layer %d, token %d: routes %v, want %v (gap %g)", l, i, g, w, c.Gaps[l][i])
			}
		}
	}
}

var goldenNames = []string{
	"micro-qwen3moe", "micro-qwen35moe", "micro-qwen35moe-300", "tiny-qwen3moe-q8", "tiny-qwen35moe-q4k",
	"micro-bailingmoe3", "micro-bailingmoe3-300", "tiny-bailingmoe3-q4k", "tiny-bailingmoe3-qlora-q4k",
	"micro-deepseek2-lite", "micro-deepseek2", "micro-deepseek2-glm", "micro-gpt-oss-f32", "micro-gpt-oss",
}

// Experts are paged through the smallest arena; every kernel set this CPU has is tried, token by token and in batches.
func TestGolden(t *testing.T) {
	for _, name := range goldenNames {
		c := loadGolden(t, name)
		for _, set := range kernels.All() {
			for _, batch := range []int{300, 1} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, set.Name, batch), func(t *testing.T) {
					o := c.options()
					o.Kernels = set.Name
					logits, routes := c.rows(t, o, batch)
					c.compare(t, logits)
					c.compareRoutes(t, routes)
				})
			}
		}
	}
}

// The micro models carry a vocabulary; their greedy continuation of a text is stored.
func TestGreedy(t *testing.T) {
	for _, name := range []string{"micro-qwen3moe", "micro-qwen35moe"} {
		t.Run(name, func(t *testing.T) {
			c := loadGolden(t, name)
			o := c.options()
			o.NoTokenizer = false
			e, err := engine.Open(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			ids := e.Tokenizer().Encode(c.Greedy.Prompt, false)
			if !slices.Equal(ids, c.Greedy.PromptIDs) {
				t.Fatalf("prompt ids %v, want %v", ids, c.Greedy.PromptIDs)
			}
			want := c.Greedy.IDs
			if i := slices.IndexFunc(want, e.Tokenizer().IsEnd); i >= 0 {
				want = want[:i+1] // the stored text goes on after an end token
			}
			r, err := e.Generate(context.Background(), engine.Request{Tokens: ids, MaxTokens: len(c.Greedy.IDs)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(want) < 16 || !slices.Equal(r.Tokens, want) {
				t.Errorf("tokens %v, want %v", r.Tokens, want)
			}
		})
	}
}

// demoCase is what an independent engine answers with the demo model, greedily.
type demoCase struct {
	Name, Prompt string
	IgnoreEOS    bool    `json:"ignore_eos"`
	PromptIDs    []int32 `json:"prompt_ids"`
	OutputIDs    []int32 `json:"output_ids"`
	Sure         int     `json:"sure_tokens"`
	SureText     string  `json:"sure_text"`
}

const demoModel = "../cmd/epq-uring/tiny-moe.gguf"

// The demo model answers as expected, paged through the smallest arena, one session after the other in one engine.
func TestDemoAnswers(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "demo-expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var expected struct{ Cases []demoCase }
	if err := json.Unmarshal(b, &expected); err != nil {
		t.Fatal(err)
	}
	e, err := engine.Open(context.Background(), engine.Options{Model: demoModel, RAM: "min", Context: 1024, UBatch: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, c := range expected.Cases {
		t.Run(c.Name, func(t *testing.T) {
			ids := e.Tokenizer().Encode(c.Prompt, true)
			if !slices.Equal(ids, c.PromptIDs) {
				t.Fatalf("prompt ids %v, want %v", ids, c.PromptIDs)
			}
			r, err := e.Generate(context.Background(), engine.Request{Tokens: ids, MaxTokens: len(c.OutputIDs), IgnoreEOS: c.IgnoreEOS}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Tokens) < c.Sure || !slices.Equal(r.Tokens[:c.Sure], c.OutputIDs[:c.Sure]) {
				t.Errorf("tokens %v, want %v to begin with (%q, got %q)", r.Tokens, c.OutputIDs[:c.Sure], c.SureText, r.Text)
			}
			if !strings.HasPrefix(r.Text, c.SureText) {
				t.Errorf("text %q, want %q", r.Text, c.SureText)
			}
		})
	}
	if s, err := e.Stats(); err != nil || s.Pager.Evictions == 0 {
		t.Errorf("nothing was evicted (%v): the arena was not small", err)
	}
}

// encode turns text into a prompt that fits.
func encode(t *testing.T, e *engine.Engine, text string) []int32 {
	t.Helper()
	ids, err := e.EncodeText(text)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}
