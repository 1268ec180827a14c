package tests

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
)

// Every golden model's layers agree with the float64 reference; a router that chooses otherwise is seen.
func TestCheckLayers(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.gguf")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden models", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) { checkLayers(t, f) })
	}
}

func checkLayers(t *testing.T, file string) {
	e, err := engine.Open(t.Context(), engine.Options{Model: file, RAM: "min", Context: 64, UBatch: 1, NoTokenizer: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for l := range e.MoELayers() {
		r, err := e.CheckLayer(context.Background(), l, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !r.SameRoute || r.Whole.Correlation < 0.999 {
			t.Errorf("layer %d: same route %v, correlation %g, error %g", r.Block, r.SameRoute, r.Whole.Correlation, r.Whole.MaxError)
		}
		for i, o := range r.Outputs {
			if o.Correlation < 0.999 {
				t.Errorf("layer %d, rank %d: correlation %g, error %g", r.Block, i, o.Correlation, o.MaxError)
			}
		}
	}
	if e.Experts() == e.Used() {
		return
	}
	wrong := make([]int32, e.Used())
	if err := e.Observe(func(_, _ int, ids []int32) {
		copy(wrong, ids)
		wrong[0] = unchosen(ids)
	}, func(int, int) []int32 { return wrong }); err != nil {
		t.Fatal(err)
	}
	if r, err := e.CheckLayer(context.Background(), 0, 1); err != nil || r.SameRoute {
		t.Errorf("a wrong choice passes: %v, same route %v", err, r.SameRoute)
	}
}

// unchosen is an expert that is not among ids.
func unchosen(ids []int32) int32 {
	e := int32(0)
	for slices.Contains(ids, e) {
		e++
	}
	return e
}
