package tests

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/synth"
)

// The whole of Ling-3.0-flash is planned from its header alone, and the arena gets no fewer slots than these, even where the
// weights outside the experts are held in memory.
func TestPlanOfLing(t *testing.T) {
	r, err := synth.Write(context.Background(), "ling-3.0-flash", filepath.Join(t.TempDir(), "ling.gguf"), synth.Options{HeaderOnly: true, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	for ram, least := range map[string]int{"4GiB": 397, "8GiB": 1340, "16GiB": 3757, "32GiB": 8592} {
		for _, resident := range []string{"mmap", "copy"} {
			planLing(t, engine.Options{Model: r.Files[0], RAM: ram, Resident: resident, NoTokenizer: true, MTP: "off"}, least, 40, 7)
		}
	}
	// With its own block of prediction, a 41st layer of experts and an eighth latent cache, where there is room for it.
	planLing(t, engine.Options{Model: r.Files[0], RAM: "16GiB", Resident: "copy", NoTokenizer: true}, 3757, 41, 8)
}

// planLing checks slots and experts, and a cache of 576 numbers of 2 bytes per token and latent layer.
func planLing(t *testing.T, o engine.Options, least, layers, latent int) {
	t.Helper()
	p, err := engine.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	slots, experts := 0, 0
	for _, c := range p.Classes {
		slots, experts = slots+c.Slots, experts+c.Experts
	}
	if slots < least || experts != layers*512 || len(p.Classes) != 2 {
		t.Errorf("%s, %s: %d slots in %d classes for %d experts, want at least %d for %d", o.RAM, o.Resident, slots, len(p.Classes), experts, least, layers*512)
	}
	if kv := p.Terms[1]; kv.Name != "kv cache" || kv.Bytes != int64(8192*latent*576*2) {
		t.Errorf("%s, %s: %s of %d bytes for %d latent layers", o.RAM, o.Resident, kv.Name, kv.Bytes, latent)
	}
}

// Nothing takes it for granted that there are at most 256 experts.
func TestManyExperts(t *testing.T) {
	r, err := synth.Write(context.Background(), "tiny-gpt-oss", filepath.Join(t.TempDir(), "many.gguf"), synth.Options{Experts: 600, Used: 9})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]int32, 40)
	for i := range tokens {
		tokens[i] = int32(i * 7 % 384)
	}
	o := engine.Options{Model: r.Files[0], RAM: "1GiB", Context: 64, UBatch: 64, Kernels: "scalar", Backend: "pread", NoTokenizer: true}
	want := bits(t, o, tokens, 0)
	o.RAM, o.Kernels, o.Backend = "min", "", "auto"
	if !slices.Equal(bits(t, o, tokens, 3), want) {
		t.Error("paged through the smallest arena: other bits")
	}
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	high := 0
	seen := func(_, _ int, ids []int32) {
		for _, id := range ids {
			if id > 255 {
				high++
			}
		}
	}
	if err := e.Observe(seen, nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Rows(context.Background(), tokens, 0, func(int, []float32) error { return nil }); err != nil || high < 300 {
		t.Errorf("%d choices above 255, %v", high, err)
	}
}
