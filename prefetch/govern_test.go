package prefetch

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// load is what tokens cost, by depth: a token needs 12 experts at a mean and waits unit milliseconds for each, give or take a
// third, and computes for the rest, give or take a twentieth.
type load struct {
	unit, compute [MaxAhead + 1]float64 // ms
}

// noisy runs a governor over tokens of a load.
func noisy(seed uint64, tokens int, l load) (g *Governor, at [MaxAhead + 1]int) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	g = NewGovernor(MaxAhead)
	for range tokens {
		d := g.Depth()
		at[d]++
		needed := 5 + rnd.IntN(15)
		cost := float64(needed) * l.unit[d] * math.Exp(0.33*rnd.NormFloat64())
		took := cost + l.compute[d]*math.Exp(0.05*rnd.NormFloat64())
		g.Token(time.Duration(took*float64(time.Millisecond)), time.Duration(cost*float64(time.Millisecond)), needed)
	}
	return g, at
}

// TestGovernorOnNoise: what pays is found, what does not is turned off, nothing is taken for a gain.
func TestGovernorOnNoise(t *testing.T) {
	const runs = 100
	steady := [...]float64{12, 12, 12}
	for _, c := range []struct {
		name  string
		load  load
		right func(depth int) bool
		least int // of 100 runs
	}{
		{"one layer pays", load{[...]float64{1, 0.7, 0.8}, steady}, func(d int) bool { return d == 1 }, 85},
		{"two layers pay", load{[...]float64{1, 0.7, 0.4}, steady}, func(d int) bool { return d == 2 }, 90},
		{"it costs", load{[...]float64{1, 1.3, 1.4}, steady}, func(d int) bool { return d == 0 }, 95},
		{"no difference", load{[...]float64{1, 1, 1}, steady}, func(d int) bool { return d == 0 }, 85},
		{"what is not waited is computed", load{[...]float64{1, 0.5, 0.3}, [...]float64{12, 18, 20.4}}, func(d int) bool { return d == 0 }, 85},
		{"waiting moves into slower computing", load{[...]float64{1, 0.5, 0.3}, [...]float64{12, 21, 25}}, func(d int) bool { return d == 0 }, 95},
	} {
		right := 0
		for seed := range uint64(runs) {
			g, _ := noisy(seed, 2000, c.load)
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
	_, at := noisy(1, 20000, load{[...]float64{1, 1.4, 1.4}, [...]float64{12, 12, 12}})
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
		wait := time.Duration(800-300*g.Depth()) * time.Millisecond
		g.Token(time.Second/5+wait, wait, 3)
	}
	if d, why := g.Verdict(); d != MaxAhead {
		t.Errorf("depth %d: %s", d, why)
	}
}

// Where guessing takes a tenth of the time more than it saves, short answers hardly notice that it is tried.
func TestGovernorTriesShortly(t *testing.T) {
	const runs, tokens = 100, 128
	tried := 0
	for seed := range uint64(runs) {
		_, at := noisy(seed, tokens, load{[...]float64{1, 0.7, 0.6}, [...]float64{22, 29, 31}})
		tried += at[1] + at[2]
	}
	if share := float64(tried) / (runs * tokens); share > 0.2 || share == 0 {
		t.Errorf("%.2f of the tokens were tried with guesses", share)
	} else {
		t.Logf("%.2f of the tokens", share)
	}
}

// Where most of the time is waiting, short answers have nearly all that guessing gains; where it does not gain, it ends.
func TestGovernorHopes(t *testing.T) {
	const runs = 100
	guessed, right := 0, 0
	for seed := range uint64(runs) {
		_, at := noisy(seed, firstTokens+hopeTokens, load{[...]float64{1, 0.8, 0.8}, [...]float64{8, 8, 8}})
		guessed += at[1]
		if g, _ := noisy(seed, 600, load{[...]float64{1, 1, 1}, [...]float64{8, 9, 10}}); g.depth == 0 {
			right++
		}
	}
	if guessed < runs*hopeTokens*9/10 || right < 90 {
		t.Errorf("%d of %d tokens guessed where it gains; ended in %d of %d runs where it costs", guessed, runs*(firstTokens+hopeTokens), right, runs)
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
		wait := time.Duration(600-200*g.Depth()) * time.Millisecond
		g.Token(time.Second/5+wait, wait, 3)
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
	for range firstTokens + 2*windowTokens { // to the end of the first window that guesses
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
