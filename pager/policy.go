package pager

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// DefaultPolicy is what an empty Options.Policy means.
const DefaultPolicy = "auto"

// DefaultStaleTokens is what 0 in Options.StaleTokens means.
const DefaultStaleTokens = 2

// ErrPolicy: no eviction policy has that name.
var ErrPolicy = errors.New("unknown eviction policy")

// policy says who leaves first. It is a pure function of an expert's history; the pager looks only at slots that may
// leave (ready, not pinned), and takes the one with the lowest rank.
type policy interface {
	rank(h *history, i int32) float64
}

// lru evicts what was used longest ago. A guess counts as used now until its layer has passed.
type lru struct{}

func (lru) rank(h *history, i int32) float64 {
	if h.guess[i] > 0 {
		return float64(h.uses + 1)
	}
	return float64(h.last[i])
}

// leastStale evicts stale experts, not used for more than a few tokens, oldest first. When there are none it evicts
// the fresh expert whose layer comes up last: layers are visited in a fixed cycle, so least recently used would be just
// what is needed next (SpecMD, arXiv 2602.03921).
type leastStale struct{ tokens int32 }

func (p leastStale) rank(h *history, i int32) float64 {
	if h.guess[i] == 0 && h.token-h.when[i] > p.tokens {
		return float64(h.last[i])
	}
	const round = 1 << 44 // above every count of touches
	return float64(round)*float64(1+h.layers-h.ahead(i)) + lru{}.rank(h, i)
}

// lfu evicts what is used most rarely, by an average that forgets (longTokens); the older use loses a tie.
type lfu struct{}

func (lfu) rank(h *history, i int32) float64 {
	rate := max(h.long[i]*longDecay.at(h.token-h.when[i]), h.guess[i])
	return float64(rate) + tie(h, i)
}

// soonest evicts the expert whose next use is worth least: its layer comes up in ahead/layers tokens, each visit uses it with
// probability rate, and a use counts fade less for every token that it is later, because a slot keeps an expert for only
// so long. That is the sum of a geometric series. In an arena that keeps experts for many tokens the order is that of the
// expected time, ahead/layers + 1/rate - 1; in one below a token's working set only the next visit counts. This joins recency
// (the short average), frequency (the long one) and the cycle of the layers.
type soonest struct{}

func (soonest) rank(h *history, i int32) float64 {
	rate := max(float64(h.rate(i)), 1e-6)
	return rate*h.fades[h.ahead(i)]/(1-(1-rate)*h.fade) + tie(h, i)
}

// tie orders equal ranks by last use; it is below every difference of averages that matters.
func tie(h *history, i int32) float64 { return float64(h.last[i]) / float64(h.uses+1) * 1e-9 }

var policyNames = []string{"auto", "lru", "least_stale", "lfu"}

// Policies returns the names that Options.Policy knows.
func Policies() []string { return slices.Clone(policyNames) }

func newPolicy(name string, staleTokens int) (policy, error) {
	switch name {
	case "", DefaultPolicy:
		return soonest{}, nil
	case "lru":
		return lru{}, nil
	case "least_stale":
		return leastStale{tokens: int32(staleTokens)}, nil
	case "lfu":
		return lfu{}, nil
	}
	return nil, fmt.Errorf("pager: %w %q: known are %s", ErrPolicy, name, strings.Join(policyNames, ", "))
}

// coldest are slots of a class that may leave, coldest first, as one scan over the class found them. They stay valid as
// long as nobody uses them, so that a scan serves many victims, of several layers.
type coldest struct {
	uses int64 // History's count at the scan: what was used later is not cold any more
	n    int
	list [64]candidate
}

type candidate struct {
	rank float64
	slot int32
	gen  uint32
}

// insert keeps the list sorted and drops the warmest when it is full.
func (c *coldest) insert(x candidate) {
	if c.n == len(c.list) {
		if x.rank >= c.list[c.n-1].rank {
			return
		}
		c.n--
	}
	i := c.n
	for ; i > 0 && c.list[i-1].rank > x.rank; i-- {
		c.list[i] = c.list[i-1]
	}
	c.list[i] = x
	c.n++
}

func (c *coldest) drop() {
	c.n--
	copy(c.list[:], c.list[1:1+c.n])
}

// scanShare bounds the cost of scans: a list over n slots is used for at least n/scanShare touches. A slot takes 10 to 25
// ns to rank (BenchmarkMiss), so a touched expert pays at most 0.2 us.
const scanShare = 8

// victim returns the slot of a class that leaves next, or -1 when none may. It stays there.
func (p *Pager) victim(class int) int32 {
	c, h := &p.cold[class], p.history
	if slots := p.arena.first[class+1] - p.arena.first[class]; h.uses-c.uses > int64(slots/scanShare) {
		c.n = 0
	}
	for c.n > 0 {
		x := c.list[0]
		if i := p.leaving[x.slot]; i >= 0 && p.slots[x.slot].gen == x.gen && h.last[i] <= c.uses {
			return x.slot
		}
		c.drop()
	}
	c.uses = h.uses
	for n := p.arena.first[class]; n < p.arena.first[class+1]; n++ {
		if i := p.leaving[n]; i >= 0 {
			c.insert(candidate{rank: p.policy.rank(h, i), slot: n, gen: p.slots[n].gen})
		}
	}
	if c.n == 0 {
		return -1
	}
	return c.list[0].slot
}

// first makes slot n, if it may leave, the next victim of its class.
func (p *Pager) first(n int32) {
	if p.leaving[n] >= 0 {
		p.cold[p.classOf(n)].insert(candidate{rank: math.Inf(-1), slot: n, gen: p.slots[n].gen})
	}
}
