package prefetch

import (
	"fmt"
	"math"
	"time"
)

// Governor finds out while a model runs how many layers ahead guessing pays. It compares the depth in force with a
// neighbour in pairs of short windows, in the order A B B A, so that what drifts falls on both. What it compares is the
// whole time a token takes, because reads in the background slow computing down: less waiting alone is no gain. Tokens that
// happen to need more experts from the disk count no more than others: both windows' waiting is that for as many. A depth wins
// when the interval of the mean difference lies on its side of 0; at the end of a trial that shows nothing the smaller one
// stays, and a larger one that is not ahead soon is not tried to the end: where guessing costs, trials cost as well.
type Governor struct {
	most    int
	depth   int // in force between trials
	other   int // of the running trial; == depth: none runs
	rest    int // tokens until the next trial
	pause   int // tokens between trials: longer each time nothing changed
	upNext  bool
	begun   bool // the first decision has been taken
	verdict string

	window [2]arm // [0]: depth, [1]: other
	tokens int    // in the running window
	phase  int    // windows of the running pair of pairs that are over: A B B A
	pairs  series
	empty  int // pairs without a need

	took, cost float64 // seconds, fading: is there anything to gain?
	disk, ask  mean    // seconds a token: what reading takes, and what guessing takes where it is done
}

// mean is an average that forgets.
type mean struct {
	v float64
	n int
}

func (m *mean) add(x float64) {
	m.n++
	m.v += (x - m.v) / float64(min(m.n, meanTokens))
}

// arm is one window's sum.
type arm struct {
	took, cost float64 // s
	needed     int
}

// time is what the window would have taken with that many experts needed from the disk.
func (a *arm) time(needed float64) float64 {
	return a.took - a.cost + a.cost/float64(a.needed)*needed
}

// Figures of a trial, from TestGovernorOnNoise: with waits that differ from token to token by a third, 15 % of the time more or
// less is found in every one of 100 runs of 2000 tokens, and nothing is taken for a gain in 6.
const (
	windowTokens = 3
	minPairs     = 6
	maxPairs     = 40
	soonPairs    = 3   // after which a larger depth must be ahead
	interval     = 2.6 // standard errors
	restTokens   = 96
	restLongest  = 1536
	leastShare   = 0.01 // of the time: less waiting is not worth a trial
	shareMemory  = 0.98
	meanTokens   = 16
	boundTokens  = 4 // before reading is compared with guessing
)

// firstTokens go by before the first decision: those after a prompt find an arena that it has filled.
const firstTokens = 8

// Where more than hopeShare of the time goes to waiting, guessing begins and the first trial, against none, comes hopeTokens
// later: a short answer is over before a trial has shown anything. Where more than half was waiting depth 1 gained 13 to 25 %, at
// 45 % about nothing, below less than nothing (docs/benchmarks.md, docs/prefetch.md).
const (
	hopeShare  = 0.45
	hopeTokens = 128
)

// NewGovernor begins with no guesses: a short answer shall not pay for finding out that they do not.
func NewGovernor(most int) *Governor {
	return &Governor{most: most, pause: restTokens, rest: firstTokens}
}

// Depth is how many layers to look ahead for the next token.
func (g *Governor) Depth() int {
	if g.other != g.depth && g.onOther() {
		return g.other
	}
	return g.depth
}

// onOther says whether the running window is the other depth's: the second and third of four.
func (g *Governor) onOther() bool { return g.phase == 1 || g.phase == 2 }

// Verdict is the depth in force, whatever a trial does just now, and why it is.
func (g *Governor) Verdict() (depth int, why string) {
	if g.verdict == "" {
		return g.depth, "no trial has ended yet"
	}
	return g.depth, g.verdict
}

// Token tells what a token took in all, what of it was waiting and guessing, and how many experts it needed from the disk.
func (g *Governor) Token(took, cost time.Duration, needed int) {
	g.took = g.took*shareMemory + took.Seconds()
	g.cost = g.cost*shareMemory + cost.Seconds()
	if g.other == g.depth {
		g.idle()
		return
	}
	a := g.running()
	a.took += took.Seconds()
	a.cost += cost.Seconds()
	a.needed += needed
	if g.tokens++; g.tokens < windowTokens {
		return
	}
	g.tokens = 0
	if g.phase++; g.phase == 2 || g.phase == 4 {
		g.pair()
	}
	g.phase %= 4
}

// Bound tells before Token what reading the experts a token needed takes the disk, which is the most that guessing can
// save, and what guessing took. Where guessing takes longer it ends without a trial.
func (g *Governor) Bound(disk, ask time.Duration) {
	g.disk.add(disk.Seconds())
	if ask > 0 {
		g.ask.add(ask.Seconds())
	}
	if g.Depth() > 0 && g.disk.n >= boundTokens && g.disk.v < g.ask.v {
		g.stop()
	}
}

// stop guesses nothing until reading takes longer again.
func (g *Governor) stop() {
	g.depth, g.other, g.rest = 0, 0, restTokens
	g.tokens, g.phase = 0, 0
	g.verdict = fmt.Sprintf("a token's reads take %.2f ms at most, guessing %.2f", 1e3*g.disk.v, 1e3*g.ask.v)
}

// Interrupt begins the running window anew.
func (g *Governor) Interrupt() {
	*g.running(), g.tokens = arm{}, 0
}

// running is the sum of the running window.
func (g *Governor) running() *arm {
	if g.onOther() {
		return &g.window[1]
	}
	return &g.window[0]
}

// idle counts down to the next trial.
func (g *Governor) idle() {
	if g.rest--; g.rest > 0 {
		return
	}
	if g.ask.n > 0 && g.disk.v < g.ask.v {
		g.stop()
		return
	}
	if g.cost < leastShare*g.took {
		g.rest = restTokens
		g.verdict = fmt.Sprintf("only %.1f %% of the time goes to waiting", 100*g.cost/max(g.took, 1e-12))
		g.depth = 0
		g.other = 0
		return
	}
	if !g.begun {
		g.begun = true
		if share := g.cost / g.took; share > hopeShare {
			g.depth, g.other, g.rest = 1, 1, hopeTokens
			g.verdict = fmt.Sprintf("%.0f %% of the time goes to waiting: guessing before it is measured", 100*share)
			return
		}
	}
	up := g.depth < g.most && (g.upNext || g.depth == 0)
	g.upNext = !g.upNext
	g.other = g.depth - 1
	if up {
		g.other = g.depth + 1
	}
	g.window, g.tokens, g.phase, g.pairs, g.empty = [2]arm{}, 0, 0, series{}, 0
}

// pair compares two windows.
func (g *Governor) pair() {
	a, b := g.window[0], g.window[1]
	g.window = [2]arm{}
	if a.needed == 0 || b.needed == 0 {
		if g.empty++; g.empty >= maxPairs {
			g.end(false, "hardly any expert is read")
		}
		return
	}
	needed := float64(a.needed+b.needed) / 2
	x, y := a.time(needed), b.time(needed)
	g.pairs.add((x - y) / ((x + y) / 2)) // positive: the other is faster
	soon := g.pairs.n >= soonPairs && g.other > g.depth && g.pairs.mean <= 0
	if g.pairs.n < minPairs && !soon {
		return
	}
	mean, reach := g.pairs.mean, interval*g.pairs.standardError()
	said := fmt.Sprintf("depth %d against %d: %+.1f %% time per token, within %.1f, %d pairs of windows",
		g.other, g.depth, -100*mean, 100*reach, g.pairs.n)
	switch {
	case soon:
		g.end(false, said)
	case mean > reach:
		g.end(true, said)
	case mean < -reach:
		g.end(false, said)
	case g.pairs.n >= maxPairs:
		g.end(g.other < g.depth, said+": no difference")
	}
}

// end ends a trial.
func (g *Governor) end(change bool, why string) {
	g.verdict = why
	if change {
		g.upNext = g.other > g.depth // what helped may help more
		g.depth = g.other
		g.pause, g.rest = restTokens, windowTokens
		return
	}
	g.other = g.depth
	g.rest, g.pause = g.pause, min(2*g.pause, restLongest)
}

// series is a running mean and variance (Welford 1962).
type series struct {
	n        int
	mean, m2 float64
}

func (s *series) add(x float64) {
	s.n++
	d := x - s.mean
	s.mean += d / float64(s.n)
	s.m2 += d * (x - s.mean)
}

func (s *series) standardError() float64 {
	if s.n < 2 {
		return math.Inf(1)
	}
	return math.Sqrt(s.m2 / float64(s.n-1) / float64(s.n))
}
