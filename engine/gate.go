package engine

import "time"

// Drafting guesses the tokens that come next and verifies them in one pass: each row more costs less than a pass of its
// own, and a guess that was right saves one. Whether that pays depends on the model, on how much of it is in memory and on
// the text; pace, belief and gate measure it.

// pace is what decode passes have taken, by the number of sequences decoding side by side.
type pace struct {
	passes [paceSequences + 1]struct {
		plain average // seconds of a pass without drafts
		row   average // seconds that each drafted row added
	}
	step  average // seconds of drafting one token with the model's own block
	since int     // drafted passes since the last plain one
}

const (
	paceSequences = 16 // more count as so many
	// paceMemory is how many passes an average remembers: enough to smooth single misses of the arena, few enough to follow
	// a context that grows.
	paceMemory = 16
	// paceKnown is how many passes make an average that decisions rest on.
	paceKnown = 4
	// pacePlain is how many times the average a pass may take and still count in full.
	pacePlain = 3
	// rowShare is what a drafted row is taken to cost before one was measured, as a share of a sequence's part of a pass.
	rowShare = 0.5
)

// average is a mean of the last values.
type average struct {
	value float64
	n     int
}

func (a *average) add(v float64) {
	a.n = min(a.n+1, paceMemory)
	a.value += (v - a.value) / float64(a.n)
}

func sequences(n int) int { return min(n, paceSequences) }

// plain returns the seconds of a pass over n sequences without drafts, 0 while they are not known.
func (p *pace) plain(n int) float64 {
	if a := p.passes[sequences(n)].plain; a.n >= paceKnown {
		return a.value
	}
	return 0
}

// row returns the seconds that a drafted row adds to such a pass, and whether that was measured.
func (p *pace) row(n int) (seconds float64, measured bool) {
	if a := p.passes[sequences(n)].row; a.n > 0 {
		return a.value, true
	}
	return rowShare * p.plain(n) / float64(n), false
}

// pass takes down a pass over n sequences that verified so many drafted tokens. What took longer than that can is
// somebody else's doing.
func (p *pace) pass(n, drafted int, took time.Duration) {
	a, base := &p.passes[sequences(n)], p.plain(n)
	if drafted == 0 {
		p.since = 0
		if base > 0 {
			took = min(took, time.Duration(pacePlain*base*float64(time.Second)))
		}
		a.plain.add(took.Seconds())
		return
	}
	p.since++
	if base > 0 {
		a.row.add(p.extra(n, drafted, took) / float64(drafted))
	}
}

// extra is what a pass with drafted tokens took more than one without, in seconds: at most a pass for each, since a row
// never costs more than a pass of its own.
func (p *pace) extra(n, drafted int, took time.Duration) float64 {
	base := p.plain(n)
	return min(took.Seconds()-base, float64(drafted)*base)
}

// belief is how often guesses of one kind were right.
type belief struct{ right, all float64 }

const (
	beliefWeight = 4 // guesses that what was known before a request weighs
	beliefMemory = 64
)

// p is the probability that the next guess is right, given what it was taken to be before any was tried.
func (b *belief) p(before float64) float64 {
	return (b.right + beliefWeight*before) / (b.all + beliefWeight)
}

func (b *belief) add(right bool) {
	if b.all >= beliefMemory {
		b.right, b.all = b.right*(beliefMemory-1)/beliefMemory, b.all*(beliefMemory-1)/beliefMemory
	}
	b.all++
	if right {
		b.right++
	}
}

// gate decides for one request how many drafted tokens a pass shall verify. It keeps an account, in seconds: plain passes
// pay a small share of their time in, a draft pays what it gains in or takes out what it loses against plain passes. With
// nothing in the account nothing is drafted, so that a request is never slower than 0.97 of what it would be without, but
// for the first draft of a short answer.
type gate struct {
	pace   *pace
	credit float64
	opened bool
	waited int // plain passes since the last drafted one
}

const (
	gateShare   = 0.02 // of the time of plain passes that may be lost to tries
	gateOpening = 0.5  // of a plain pass: what the account begins with
	gateSavings = 2.0  // plain passes: the most the account holds
	gateMargin  = 1.03 // by which drafts must be faster to be worth it
	gateProbe   = 16   // drafted passes after which a plain one is measured again
	gateRetry   = 64   // plain passes after which a draft that seems not to pay is tried if the account allows
)

// choose returns how many of at most len(right) drafted tokens are worth verifying in a pass over n sequences: the number
// with the most tokens per second expected, and that rate relative to a plain pass. right[i] is the probability that
// token i is right if those before are; step is what drafting each takes, in seconds.
//
//	rate(k) = (n + sum_{i<=k} right_1 .. right_i) / (plain + k (row + step))
func (g *gate) choose(n int, right []float64, step float64) (k int, rate float64) {
	base := g.pace.plain(n)
	if base == 0 || len(right) == 0 {
		return 0, 1
	}
	if !g.opened {
		g.opened, g.credit = true, gateOpening*base
	}
	if g.credit <= 0 || g.pace.since >= gateProbe {
		return 0, 1
	}
	row, measured := g.pace.row(n)
	if !measured {
		right = right[:1]
	}
	tokens, all, seq := float64(n), 1.0, float64(n)
	rate = gateMargin
	for i, p := range right {
		all *= p
		tokens += all
		if r := tokens / seq * base / (base + float64(i+1)*(row+step)); r > rate {
			k, rate = i+1, r
		}
	}
	if k == 0 {
		rate = 1
		if g.waited >= gateRetry && g.credit >= row+step {
			k = 1
		}
	}
	return k, rate
}

// settle books a pass over n sequences that took so long, in which this request verified so many of all drafted tokens,
// accepted some, and whose drafting took step.
func (g *gate) settle(n, drafted, all, accepted int, took, step time.Duration) {
	base := g.pace.plain(n)
	if base == 0 {
		return
	}
	part := base / float64(n)
	g.credit -= step.Seconds()
	if drafted == 0 {
		g.waited++
		g.credit += gateShare * part
	} else {
		g.waited = 0
		g.credit += float64(accepted)*part - g.pace.extra(n, all, took)*float64(drafted)/float64(all)
	}
	g.credit = min(g.credit, gateSavings*base)
}
