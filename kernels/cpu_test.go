package kernels

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestMissing(t *testing.T) {
	var cases struct {
		Flags []struct {
			Name                             string
			AVX2, FMA, F16C, AVX512, OSXSAVE bool
			XCR0                             uint64
			Best                             string
		}
	}
	slurpJSON(t, "b65_cpu.json", &cases)
	if len(cases.Flags) == 0 {
		t.Fatal("no cases")
	}
	all := []*Set{{Name: "scalar"}, {Name: "avx2"}, {Name: "avxvnni"}, {Name: "avx512"}}
	for _, k := range cases.Flags {
		f := features{avx2: k.AVX2, fma: k.FMA, f16c: k.F16C, avx512: k.AVX512, osxsave: k.OSXSAVE, xcr0: k.XCR0}
		got := explain(all, f)
		best, why, _ := strings.Cut(got, "; ")
		if best != k.Best {
			t.Errorf("%s: chose %q, want %s", k.Name, got, k.Best)
		}
		if (why == "") != (k.Best == "avx512") {
			t.Errorf("%s: %q does not say why not the next", k.Name, got)
		}
	}
}

func TestByName(t *testing.T) {
	for _, s := range All() {
		if got, err := ByName(s.Name); err != nil || got != s {
			t.Errorf("%s: %v, %v", s.Name, got, err)
		}
	}
	_, err := ByName("nosuch")
	if !errors.Is(err, ErrUnknownSet) || !strings.Contains(err.Error(), "scalar") {
		t.Errorf("an unknown set: %v", err)
	}
	if all := All(); all[len(all)-1] != Best() || !strings.HasPrefix(Explain(), Best().Name) {
		t.Errorf("best is %s, explained as %q", Best().Name, Explain())
	}
}

// TestRequiredSet lets a machine that is known to have a set insist on it: without, a set that is never chosen would
// pass unseen.
func TestRequiredSet(t *testing.T) {
	name := os.Getenv("EPQ_REQUIRE_KERNEL")
	if name == "" {
		t.Skip("EPQ_REQUIRE_KERNEL is not set")
	}
	if _, err := ByName(name); err != nil {
		t.Error(err)
	}
}
