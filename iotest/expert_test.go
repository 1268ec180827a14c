package iotest

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/synth"
)

// tiny writes a small model.
func tiny(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if _, err := synth.Write(context.Background(), "micro-qwen35moe", path, synth.Options{Seed: 1}); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunExperts(t *testing.T) {
	opt := ExpertOptions{Engine: engine.Options{Model: tiny(t), RAM: "min", Backend: "pread", NoTokenizer: true, Threads: 1}, Runtime: 20 * time.Millisecond}
	for range 2 {
		opt.Batches = append(opt.Batches, Batch{Tokens: 2, Uses: []Use{{0, []int32{0, 1, 2}}, {1, []int32{3}}}}, Batch{Tokens: 1, Uses: []Use{{0, []int32{3, 1}}, {1, []int32{3, 0}}}})
	}
	r, err := RunExperts(context.Background(), opt, nil)
	if err != nil {
		t.Fatal(err)
	}
	v := r.Expert
	if v == nil || v.Replay == nil || v.Replay.Tokens != 2 || v.Replay.TokS <= 0 || v.Compute <= 0 || len(v.At) != 6 {
		t.Fatalf("%+v", v)
	}
	for _, a := range v.At {
		if a.TokS <= 0 || a.TokS > 1.01/v.Compute {
			t.Errorf("faster than computing alone, %v s: %+v", v.Compute, a)
		}
	}
	var s strings.Builder
	if err := r.WriteText(&s); err != nil || !strings.Contains(s.String(), "with the recorded routes in an arena of") || !strings.Contains(s.String(), "fio knows no whole experts") {
		t.Error(err, s.String())
	}
	opt.Batches = opt.Batches[:1]
	if _, err := RunExperts(context.Background(), opt, nil); !errors.Is(err, ErrOption) {
		t.Error("a trace without a decoded token:", err)
	}
	opt.Bursts = []int{100}
	if _, err := RunExperts(context.Background(), opt, nil); !errors.Is(err, ErrOption) {
		t.Error("a burst of 100:", err)
	}
}

// With bursts of 1 ms per expert and 0.5 ms of computing each, what a token takes can be said by hand.
func TestExpectedRate(t *testing.T) {
	x := &expertRun{cost: cost{layer: time.Millisecond, expert: 500 * time.Microsecond, slower: 1, share: 1, layers: 10, used: 4}}
	for _, n := range []int{1, 4} {
		b := &burst{missing: n}
		for range 3 {
			b.tally.clat.add(int64(n) * 1e6)
			b.tally.elapsed += time.Duration(n) * time.Millisecond
		}
		x.bursts = append(x.bursts, b)
	}
	for _, c := range []struct{ hits, seconds float64 }{
		{1, 10 * (1 + 4*0.5) / 1e3}, // nothing read
		{0, 10 * (1 + 4 + 0.5) / 1e3},
		// m of 4 missing with probabilities 1, 4, 6, 4, 1 of 16: 2 ms; else max(m, 1.5) ms and 0.5 more
		{0.5, 10 * (1 + (1*2.0+4*2.0+6*2.5+4*3.5+1*4.5)/16) / 1e3},
	} {
		if got := 1 / x.at(c.hits).TokS; math.Abs(got/c.seconds-1) > 1e-9 {
			t.Errorf("hit rate %v: %v s, want %v", c.hits, got, c.seconds)
		}
	}
	x.cost.slower = 2
	for _, c := range []struct{ hits, seconds float64 }{
		{1, 10 * (1 + 4*0.5) / 1e3},
		{0, 10 * (1 + 4 + 0.5) / 1e3}, // 1.5 ms of computing hide behind 4 of reading even at half the speed
		{0.5, 10 * (1 + (1*2.0+4*(1+1.0+0.5)+6*(2+0.5+0.5)+4*3.5+1*4.5)/16) / 1e3},
	} {
		if got := 1 / x.at(c.hits).TokS; math.Abs(got/c.seconds-1) > 1e-9 {
			t.Errorf("computing at half the speed, hit rate %v: %v s, want %v", c.hits, got, c.seconds)
		}
	}
	x.cost.share = 0.8 // of 4 ms of reading 2.4 are done in the 3 ms that computing takes; of 1 ms all in 1.25, and 0.625 of computing
	for _, c := range []struct{ reading, computing, want float64 }{{4, 1.5, 3 + 1.6}, {1, 1.5, 1.25 + 0.875}, {0, 2, 2}, {2, 0, 2}} {
		if got := x.cost.overlapped(c.reading, c.computing); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("reading %v beside computing %v: %v, want %v", c.reading, c.computing, got, c.want)
		}
	}
	if got := x.burstTime(3); math.Abs(got-3e-3) > 1e-9 {
		t.Error("interpolated:", got)
	}
	if got := x.burstTime(8); math.Abs(got-8e-3) > 1e-9 {
		t.Error("beyond:", got)
	}
}

// A thread that gets the CPU only every 3 ms has passed 9 ms after nine times 1 ms, not 27.
func TestSpinner(t *testing.T) {
	start := time.Unix(0, 0)
	clock := start
	busy := false
	s := spinner{now: func() time.Time { clock = clock.Add(3 * time.Millisecond / 2); return clock }, busy: func() bool { return busy }, slower: 2}
	for range 9 {
		s.pass(time.Millisecond)
	}
	// Each call that has to wait looks twice; the time between its end and the next one's begin is not its own.
	if passed := s.over + 9*time.Millisecond; passed < 9*time.Millisecond || passed > 12*time.Millisecond {
		t.Errorf("%v passed", passed)
	}
	busy, s.over = true, 0
	before := clock
	s.pass(9 * time.Millisecond)
	if took := clock.Sub(before); took < 18*time.Millisecond || took > 21*time.Millisecond {
		t.Errorf("beside reads that make it half as fast 9 ms took %v", took)
	}
}
