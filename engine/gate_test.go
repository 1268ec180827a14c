package engine

import (
	"math"
	"testing"
	"time"
)

// paceOf is a pace that was measured: a pass of one sequence without drafts, and what a row more takes.
func paceOf(plain, row time.Duration) *pace {
	p := &pace{}
	for range paceMemory {
		p.pass(1, 0, plain)
	}
	if row > 0 {
		p.pass(1, 1, plain+row)
		p.pass(1, 0, plain)
	}
	return p
}

func TestGateChoosesTheFastest(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name       string
		plain, row time.Duration
		right      []float64
		step       float64
		k          int
		rate       float64
	}{
		{"nothing known", 0, 0, []float64{1}, 0, 0, 1},
		{"nothing drafted", 100 * ms, 50 * ms, nil, 0, 0, 1},
		{"sure", 100 * ms, 50 * ms, []float64{1, 1, 1}, 0, 3, 4 / 2.5},
		{"never right", 100 * ms, 50 * ms, []float64{0, 0, 0}, 0, 0, 1},
		{"even odds", 100 * ms, 50 * ms, []float64{0.5, 0.5}, 0, 0, 1},
		{"just below the margin", 100 * ms, 50 * ms, []float64{0.54}, 0, 0, 1},
		{"just above", 100 * ms, 50 * ms, []float64{0.55}, 0, 1, 1.55 / 1.5},
		{"the second does not pay", 100 * ms, 50 * ms, []float64{0.8, 0.5}, 0, 1, 1.8 / 1.5},
		{"the second makes it pay", 100 * ms, 50 * ms, []float64{0.54, 1, 1}, 0, 3, (1 + 3*0.54) / 2.5},
		{"rows as dear as passes", 100 * ms, 100 * ms, []float64{0.99, 0.99}, 0, 0, 1},
		{"drafting takes time too", 100 * ms, 50 * ms, []float64{0.8}, 0.030, 0, 1},
		{"and may still pay", 100 * ms, 50 * ms, []float64{0.8}, 0.020, 1, 1.8 / 1.7},
		{"no row measured yet: one, for half a pass", 100 * ms, 0, []float64{0.9, 0.9}, 0, 1, 1.9 / 1.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &pace{}
			if c.plain > 0 {
				p = paceOf(c.plain, c.row)
			}
			g := gate{pace: p}
			k, rate := g.choose(1, c.right, c.step)
			if k != c.k || math.Abs(rate-c.rate) > 1e-9 {
				t.Errorf("%d tokens, rate %g; want %d, %g", k, rate, c.k, c.rate)
			}
		})
	}
}

// With several sequences in the batch a row more delays them all.
func TestGateBesideOthers(t *testing.T) {
	p := &pace{}
	for range paceKnown {
		p.pass(4, 0, 200*time.Millisecond)
	}
	p.pass(4, 2, 280*time.Millisecond) // 40 ms a row, where a sequence's part of a pass is 50 ms
	g := gate{pace: p}
	if k, _ := g.choose(4, []float64{0.8}, 0); k != 0 {
		t.Errorf("4.8 tokens in 240 ms were chosen over 4 in 200 ms: %d", k)
	}
	if k, rate := g.choose(4, []float64{1}, 0); k != 1 || math.Abs(rate-1.25/1.2) > 1e-9 {
		t.Errorf("%d tokens, rate %g; want 1, %g", k, rate, 1.25/1.2)
	}
	if k, _ := g.choose(1, []float64{1}, 0); k != 0 {
		t.Error("drafted for one sequence by what four took")
	}
}

// play runs one request of a machine on which passes and rows take fixed times and a draft of at most most tokens is to be had before every
// pass. right says whether a drafted token is right. It returns the time against that without drafts.
func play(tokens, most int, plain, row, step time.Duration, right func() bool) (slower float64, drafted int) {
	p := &pace{}
	g := gate{pace: p}
	b := belief{}
	var spent time.Duration
	made := 0
	for made < tokens {
		chances := make([]float64, most)
		for i := range chances {
			chances[i] = b.p(0.8)
		}
		k, _ := g.choose(1, chances, step.Seconds())
		took, accepted := plain+time.Duration(k)*row, 0
		for i := range k {
			ok := right()
			b.add(ok)
			if !ok {
				break
			}
			accepted = i + 1
		}
		p.pass(1, k, took)
		g.settle(1, k, k, accepted, took, time.Duration(k)*step)
		spent += took + time.Duration(k)*step
		made += 1 + accepted
		drafted += k
	}
	return spent.Seconds() / (time.Duration(made) * plain).Seconds(), drafted
}

// Whatever the text and the machine: with drafts a request of some length takes at most 1/0.97 of the time.
func TestGateNeverLosesMuch(t *testing.T) {
	const ms = time.Millisecond
	turn := 0
	texts := map[string]func() bool{
		"never right":       func() bool { return false },
		"every third":       func() bool { turn++; return turn%3 == 0 },
		"right, then wrong": func() bool { turn++; return turn%400 < 200 },
		"every other":       func() bool { turn++; return turn%2 == 0 },
		"always right":      func() bool { return true },
	}
	for name, right := range texts {
		for _, row := range []time.Duration{0, 10 * ms, 50 * ms, 90 * ms, 100 * ms} {
			for _, step := range []time.Duration{0, 20 * ms} {
				for _, tokens := range []int{100, 1000} {
					turn = 0
					slower, drafted := play(tokens, 8, 100*ms, row, step, right)
					if slower > 1/0.97 {
						t.Errorf("%s, %v a row, %v a draft, %d tokens: %.3f of the time, %d drafted", name, row, step, tokens, slower, drafted)
					}
					if name == "always right" && row+step <= 50*ms && slower > 0.75 {
						t.Errorf("%s, %v a row, %v a draft, %d tokens: %.3f of the time, nothing is won", name, row, step, tokens, slower)
					}
				}
			}
		}
	}
}

// A pass that was held up by others does not end drafting, nor does it make passes without drafts look slow.
func TestGateForgivesNoise(t *testing.T) {
	const ms = time.Millisecond
	p := paceOf(100*ms, 20*ms)
	g := gate{pace: p}
	sure := []float64{1, 1}
	if k, _ := g.choose(1, sure, 0); k != 2 {
		t.Fatalf("%d tokens at first", k)
	}
	p.pass(1, 2, 5000*ms)
	g.settle(1, 2, 2, 2, 5000*ms, 0)
	if k, _ := g.choose(1, sure, 0); k == 0 {
		t.Error("one slow pass ended drafting")
	}
	p.pass(1, 0, 5000*ms)
	if base := p.plain(1); base > 0.12 {
		t.Errorf("one slow pass of 16: %g s", base)
	}
}

// Drafting that takes time and yields nothing, as from a block whose experts cannot be read, ends too.
func TestGateEndsVainDrafting(t *testing.T) {
	const ms = time.Millisecond
	p := paceOf(100*ms, 20*ms)
	g := gate{pace: p}
	tried := 0
	for range 100 {
		if k, _ := g.choose(1, []float64{1}, 0.01); k > 0 {
			tried++
			g.settle(1, 0, 0, 0, 100*ms, 30*ms)
		} else {
			g.settle(1, 0, 0, 0, 100*ms, 0)
		}
	}
	if tried < 1 || tried > 10 {
		t.Errorf("tried %d times in 100 passes", tried)
	}
}

// A belief begins as what was known before, follows what happens, and forgets.
func TestBelief(t *testing.T) {
	var b belief
	if p := b.p(0.7); math.Abs(p-0.7) > 1e-12 {
		t.Errorf("untried: %g", p)
	}
	b.add(true)
	b.add(false)
	if p := b.p(0.7); math.Abs(p-(1+4*0.7)/6) > 1e-12 {
		t.Errorf("one of two right: %g", p)
	}
	for range 1000 {
		b.add(true)
	}
	for range 200 {
		b.add(false)
	}
	if p := b.p(0.7); p > 0.1 {
		t.Errorf("200 wrong ones on end: %g", p)
	}
}
