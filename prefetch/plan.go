package prefetch

import (
	"slices"
	"time"

	"github.com/epq-uring/epq-uring/expert"
)

// Candidate is a guess with what the planner must know of its expert, which is neither in memory nor on its way.
type Candidate struct {
	expert.Guess
	Class int   // of slots
	Bytes int64 // to read
	Ahead int   // layers ahead, from 1
}

// Limits bound a plan.
type Limits struct {
	// Bytes[a-1] is what the disk can still read, without any demand waiting for it, until a layer a ahead begins.
	Bytes [MaxAhead]int64
	Waste int64 // expected bytes for nothing: the sum of Bytes x (1 - P)
	Slots []int // per class
	MinP  float32
}

// Plan appends the guesses to read, in the order in which their layers come, the more probable first. It is a pure
// function of its arguments; candidates are put in order in place.
func Plan(to []expert.Guess, candidates []Candidate, l *Limits) []expert.Guess {
	slices.SortStableFunc(candidates, compare)
	bytes, waste := int64(0), int64(0)
	var taken [8]int // per class; further classes share the last
	for i := range candidates {
		c := &candidates[i]
		loss := int64(float32(c.Bytes) * (1 - c.P))
		class := min(c.Class, len(taken)-1)
		if c.P < l.MinP || bytes+c.Bytes > l.Bytes[c.Ahead-1] || waste+loss > l.Waste || taken[class] >= l.Slots[c.Class] {
			continue
		}
		bytes, waste, taken[class] = bytes+c.Bytes, waste+loss, taken[class]+1
		to = append(to, c.Guess)
	}
	return to
}

func compare(a, b Candidate) int {
	switch {
	case a.Ahead != b.Ahead:
		return a.Ahead - b.Ahead
	case a.P > b.P:
		return -1
	case a.P < b.P:
		return 1
	}
	return 0
}

// A guess must have at least minChance; the more of the allowance for waste is used up, the nearer to fullChance, so that
// what there is goes to the better guesses.
const (
	minChance  = 0.4
	fullChance = 0.9
)

// wasteShare is the expected waste that guesses may add up to, of all bytes read: 15 % with room for what the calibration
// does not know yet (docs/prefetch.md).
const wasteShare = 0.12

// wasteCap bounds what can be saved up of it, in experts.
const wasteCap = 16

// budget measures how much the disk can read in the gaps: the time between the last demand of one use and the next use,
// times the speed at which it served demands. It is a bucket per layer: what is not spent is lost but for one expert.
type budget struct {
	gaps  []time.Duration // after each layer; the last: after the embedding. Averages
	layer int             // whose gap runs: -1 the embedding's, none
	since time.Time

	waitTime  float64 // s, fading
	waitBytes float64
	seen      State // at the last observe
	carry     int64
	waste     float64
	lim       Limits
}

const none = -2

func newBudget(layers int) budget { return budget{gaps: make([]time.Duration, layers+1), layer: none} }

func (b *budget) gap(layer int) *time.Duration {
	if layer < 0 {
		layer = len(b.gaps) - 1
	}
	return &b.gaps[layer]
}

// reached ends the gap that runs and begins the one of layer.
func (b *budget) reached(layer int, single bool, now, waited time.Time) {
	if b.layer != none && single {
		from := b.since
		if waited.After(from) {
			from = waited
		}
		g := b.gap(b.layer)
		if d := now.Sub(from); *g == 0 {
			*g = d
		} else {
			*g += (d - *g) / gapMemory
		}
	}
	b.layer, b.since = layer, now
	if !single {
		b.layer = none
	}
}

const (
	gapMemory  = 8    // tokens that a gap is averaged over
	waitMemory = 0.98 // what is left after each use of earlier waits
)

// observe learns the disk's speed from what arrived while somebody waited for it.
func (b *budget) observe(s *State) {
	b.waitTime = b.waitTime*waitMemory + (s.WaitTime - b.seen.WaitTime).Seconds()
	b.waitBytes = b.waitBytes*waitMemory + float64(s.WaitBytes-b.seen.WaitBytes)
	b.waste += wasteShare * float64(s.BytesRead-b.seen.BytesRead)
	b.seen = *s
}

// speed is in bytes per second; 0: nobody waited yet.
func (b *budget) speed() float64 {
	if b.waitTime <= 0 {
		return 0
	}
	return b.waitBytes / b.waitTime
}

// reading is how long the disk takes for so many bytes.
func (b *budget) reading(bytes int64) time.Duration {
	if s := b.speed(); s > 0 {
		return time.Duration(float64(bytes) / s * float64(time.Second))
	}
	return 0
}

// limits says what may be read from layer on, where an expert takes so many bytes.
func (b *budget) limits(layer int, expert int64, s *State) *Limits {
	b.waste = min(b.waste, wasteCap*float64(expert))
	left := float32(max(b.waste, 0) / (wasteCap * float64(expert)))
	b.lim.MinP, b.lim.Slots, b.lim.Waste = fullChance-left*(fullChance-minChance), s.Room, int64(b.waste)
	gap, at := time.Duration(0), layer
	for a := range b.lim.Bytes {
		gap += *b.gap(at)
		if at++; at == len(b.gaps)-1 { // the next token's embedding comes before its first layer
			gap, at = gap+*b.gap(-1), 0
		}
		b.lim.Bytes[a] = int64(b.speed()*gap.Seconds()) - s.OnTheirWay + b.carry
	}
	return &b.lim
}

// spend takes what was planned out of the bucket; as much as one expert can be saved up.
func (b *budget) spend(guesses []expert.Guess, expert int64) {
	left := b.lim.Bytes[0] - int64(len(guesses))*expert
	b.carry = min(max(left, 0), expert)
	for _, g := range guesses {
		b.waste -= float64(1-g.P) * float64(expert)
	}
}
