package tests

import (
	"context"
	"path/filepath"
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
			p, err := engine.Plan(engine.Options{Model: r.Files[0], RAM: ram, Resident: resident, NoTokenizer: true})
			if err != nil {
				t.Fatal(err)
			}
			slots, experts := 0, 0
			for _, c := range p.Classes {
				slots, experts = slots+c.Slots, experts+c.Experts
			}
			if slots < least || experts != 40*512 || len(p.Classes) != 2 {
				t.Errorf("%s, %s: %d slots in %d classes for %d experts, want at least %d", ram, resident, slots, len(p.Classes), experts, least)
			}
			if kv := p.Terms[1]; kv.Name != "kv cache" || kv.Bytes != 8192*7*576*2 {
				t.Errorf("%s of %d bytes, want 7.9 KiB per token", kv.Name, kv.Bytes)
			}
		}
	}
}
