package prefetch

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// noisy runs a governor over tokens whose waiting per expert depends on the depth and varies by a third.
func noisy(seed uint64, tokens int, unit [MaxAhead + 1]float64) (g *Governor, at [MaxAhead + 1]int) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	g = NewGovernor(MaxAhead)
	for range tokens {
		d := g.Depth()
		at[d]++
		needed := 5 + rnd.IntN(15)
		cost := float64(needed) * unit[d] * math.Exp(0.33*rnd.NormFloat64())
		g.Token(time.Duration(3*cost*float64(time.Millisecond)), time.Duration(cost*float64(time.Millisecond)), needed)
	}
	return g, at
}

// TestGovernorOnNoise: what pays is found, what does not is turned off, nothing is taken for a gain.
func TestGovernorOnNoise(t *testing.T) {
	const runs = 100
	for _, c := range []struct {
		name  string
		unit  [MaxAhead + 1]float64 // of waiting, by depth
		right func(depth int) bool
		least int // of 100 runs
	}{
		{"one layer pays", [...]float64{1, 0.85, 0.9}, func(d int) bool { return d == 1 }, 85},
		{"two layers pay", [...]float64{1, 0.8, 0.6}, func(d int) bool { return d == 2 }, 90},
		{"it costs", [...]float64{1, 1.15, 1.2}, func(d int) bool { return d == 0 }, 95},
		{"no difference", [...]float64{1, 1, 1}, func(d int) bool { return d == 0 }, 85},
	} {
		right := 0
		for seed := range uint64(runs) {
			g, _ := noisy(seed, 2000, c.unit)
			if d, _ := g.Verdict(); c.right(d) {
				right++
			}
		}
		t.Logf("%s: right in %d of %d", c.name, right, runs)
		if right < c.least {
			t.Errorf("%s: right in %d of %d runs, wanted %d", c.name, right, runs, c.least)
		}
	}
}

// Trials take few tokens once things are settled, and none where hardly anybody waits.
func TestGovernorRests(t *testing.T) {
	_, at := noisy(1, 20000, [...]float64{1, 1.2, 1.2})
	if at[1]+at[2] > 1500 {
		t.Errorf("tokens by depth %v, 0 is best", at)
	}
	g := NewGovernor(MaxAhead)
	for range 500 {
		g.Token(time.Second, time.Millisecond, 3)
	}
	if d, why := g.Verdict(); d != 0 || g.Depth() != 0 || why != "only 0.1 % of the time goes to waiting" {
		t.Errorf("depth %d: %s", d, why)
	}
	for range 500 { // the arena is too small now
		g.Token(time.Second, time.Duration(800-300*g.Depth())*time.Millisecond, 3)
	}
	if d, why := g.Verdict(); d != MaxAhead {
		t.Errorf("depth %d: %s", d, why)
	}
}

// Batches of several tokens between fall out of the comparison.
func TestGovernorInterrupted(t *testing.T) {
	g := NewGovernor(MaxAhead)
	for i := range 3000 {
		if i%5 == 4 {
			g.Interrupt()
			continue
		}
		g.Token(time.Second, time.Duration(600-200*g.Depth())*time.Millisecond, 3)
	}
	if d, why := g.Verdict(); d != MaxAhead {
		t.Errorf("depth %d: %s", d, why)
	}
}

// Where guessing takes longer than the reads that it could hide, it ends at once; it comes back when there is more to read.
func TestGovernorBound(t *testing.T) {
	g := NewGovernor(MaxAhead)
	token := func(disk, ask time.Duration) {
		if g.Depth() == 0 {
			ask = 0
		}
		g.Bound(disk, ask)
		g.Token(100*time.Millisecond, disk+ask, 3)
	}
	for range boundTokens {
		token(2*time.Millisecond, 4*time.Millisecond)
	}
	if d, why := g.Verdict(); d != 0 || g.Depth() != 0 || !strings.Contains(why, "2.00 ms") {
		t.Fatalf("depth %d, %s", d, why)
	}
	for range 3 * restTokens {
		token(2*time.Millisecond, 4*time.Millisecond)
		if g.Depth() != 0 {
			t.Fatal("a trial of what cannot pay")
		}
	}
	for range 2 * restTokens {
		if token(60*time.Millisecond, 4*time.Millisecond); g.Depth() > 0 {
			return
		}
	}
	t.Error("no trial although the disk is busy now")
}
