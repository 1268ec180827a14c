package engine

import (
	"testing"

	"github.com/epq-uring/epq-uring/expert"
)

// Under two limits at once a plan must keep within both, also in how it holds the resident weights: what a group counts
// either way may be too much for RLIMIT_DATA when it is copied.
func TestPlanKeepsWithinEveryLimit(t *testing.T) {
	e, err := prepare(Options{Model: "../cmd/epq-uring/tiny-moe.gguf", RAM: "1GiB"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.release()
	e.opt.Resident = "auto"
	n, err := e.needsOf(512)
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for bytes := int64(90 << 20); bytes < 160<<20; bytes += 1 << 20 {
		bs := []budget{{bytes: bytes, boundBy: "group", physical: true}, {bytes: bytes, boundBy: "rlimit"}}
		p, err := e.divide(n, bs)
		if err != nil {
			continue // below the minimum
		}
		if p.Resident == "copy" {
			copies++
		}
		for _, b := range bs {
			held := p.ArenaBytes
			for _, term := range e.terms(n, b.physical, p.Resident, p.ArenaBytes) {
				if term.Counted && term.Name != expert.ArenaTerm {
					held += term.Bytes
				}
			}
			if held > bytes {
				t.Errorf("%s of %d bytes: the plan (%s) holds %d", b.boundBy, bytes, p.Resident, held)
			}
		}
	}
	if copies == 0 || copies == 70 {
		t.Errorf("%d of 70 budgets copied: the test sees one way only", copies)
	}
}
