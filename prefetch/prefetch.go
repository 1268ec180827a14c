// Package prefetch guesses which routed experts the next layers will use and says which of them to read ahead. It knows
// routes, scores and times; nothing of weights, slots or disks.
//
//	Begin(layer, ids)   the truth about earlier guesses: recall, calibration, what follows what
//	Guess(layer, ...)   predictor -> ranked experts -> calibrated probabilities -> planner -> []expert.Guess for the pager
//	Union(layer, ...)   the same for the many experts of a batch of tokens
//	Token(...)          the governor compares what waiting costs with and without
//
// A Prefetcher belongs to one goroutine, the one that runs the model. After New it allocates nothing.
package prefetch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/expert"
)

// Kinds of errors; match with errors.Is.
var (
	// ErrMode: there is no such mode.
	ErrMode = errors.New("unknown mode of prefetch")
	// ErrOptions: something that the mode needs is missing or does not fit the model.
	ErrOptions = errors.New("bad option")
)

// Modes that Options.Mode knows. Auto is On with a governor that turns it down where it does not pay; Oracle knows the
// future from a recorded run, which bounds what any predictor can gain.
const (
	Auto    = "auto"
	On      = "on"
	Off     = "off"
	Router  = "router"
	History = "history"
	Hybrid  = "hybrid"
	Oracle  = "oracle"
)

// Modes returns the names of all modes.
func Modes() []string { return []string{Auto, On, Off, Router, History, Hybrid, Oracle} }

// bestFixed is the predictor of On and Auto, and its depth: docs/prefetch.md has the measurements.
const (
	bestFixed   = Hybrid
	fixedLayers = 1
)

// MaxAhead is the largest number of layers that a guess looks ahead.
const MaxAhead = 2

// Score fills scores[i], for i = 0, 1, .., with what the router of MoE layer first+i would select by if it were given the
// normed hidden state (one token's): larger is chosen first, -Inf never.
type Score func(first int, hidden []float32, scores [][]float32)

// Arena tells what need not be read.
type Arena interface {
	Has(k expert.Key) bool // in memory, or on its way
}

// Use is one use of a recorded run.
type Use struct {
	Layer int32
	IDs   []int32
}

// Options of a Prefetcher.
type Options struct {
	Mode  string // one of Modes but Off
	Score Score  // for Auto, On, Router and Hybrid
	Arena Arena
	// History is the memory of what follows what, HistoryWords long, as an earlier run left it or zero; for Auto, On,
	// History and Hybrid.
	History []uint32
	Future  []Use // of Oracle: the uses of the run to come, in order
	Now     func() time.Time
}

// Prefetcher guesses. See the package's comment for the order of calls.
type Prefetcher struct {
	cat   *expert.Catalog
	opt   Options
	by    predictor
	learn *history // nil: the mode learns nothing
	gov   *Governor
	depth int

	lists   [][kinds]list // per layer: what was named for its next use
	calib   *calibration
	budget  budget
	offers  []Candidate
	guesses []expert.Guess
	used    marks
	union   union

	stats  Stats
	layers []LayerStats
	spent  time.Duration // guessing, of this token
}

// New makes a Prefetcher for the model of cat. errors.Is finds ErrMode and ErrOptions.
func New(cat *expert.Catalog, opt Options) (*Prefetcher, error) {
	most, used := 0, 0
	for _, l := range cat.Layers {
		most, used = max(most, l.Experts), max(used, l.Used)
	}
	name := opt.Mode
	if name == Auto || name == On {
		name = bestFixed
	}
	p := &Prefetcher{
		cat: cat, opt: opt, depth: fixedLayers, lists: make([][kinds]list, len(cat.Layers)), calib: newCalibration(len(cat.Layers)),
		layers: make([]LayerStats, len(cat.Layers)), used: newMarks(most), union: newUnion(most, used),
		offers: make([]Candidate, 0, kinds*2*used), guesses: make([]expert.Guess, 0, kinds*2*used),
	}
	if p.opt.Now == nil {
		p.opt.Now = time.Now
	}
	if name == History || name == Hybrid {
		if len(opt.History) != HistoryWords(cat) {
			return nil, fmt.Errorf("prefetch: %s: %d words of history, the model needs %d: %w", opt.Mode, len(opt.History), HistoryWords(cat), ErrOptions)
		}
		p.learn = newHistory(cat, opt.History)
	}
	if (name == Router || name == Hybrid) && opt.Score == nil {
		return nil, fmt.Errorf("prefetch: %s: no function that scores experts: %w", opt.Mode, ErrOptions)
	}
	switch name {
	case Router:
		p.by = newRouter(opt.Score, most, nil)
	case Hybrid:
		p.by = newRouter(opt.Score, most, p.learn)
	case History:
		p.by = p.learn
	case Oracle:
		if len(opt.Future) == 0 {
			return nil, fmt.Errorf("prefetch: %s: no recorded uses: %w", opt.Mode, ErrOptions)
		}
		p.by, p.depth = &oracle{future: opt.Future}, MaxAhead
	default:
		return nil, fmt.Errorf("prefetch: %w %q: known are %s", ErrMode, opt.Mode, strings.Join(Modes(), ", "))
	}
	if opt.Mode == Auto {
		p.gov = NewGovernor(MaxAhead)
		p.depth = p.gov.Depth()
	}
	for l := range p.lists {
		for k := range p.lists[l] {
			p.lists[l][k] = newList(2*cat.Layers[l].Used, cat.Layers[l].Experts)
		}
	}
	p.budget = newBudget(len(cat.Layers))
	p.stats.Mode, p.stats.Predictor = opt.Mode, name
	return p, nil
}

// Begin tells that a use of a layer's experts begins, at waited the last wait for the device having ended. Only uses by a
// single token teach anything.
func (p *Prefetcher) Begin(layer int, ids []int32, single bool, waited time.Time) {
	p.budget.reached(layer, single, p.opt.Now(), waited)
	if o, ok := p.by.(*oracle); ok {
		o.began(layer, ids)
	}
	if single {
		p.judge(layer, ids)
	}
	if p.learn != nil {
		p.learn.began(layer, ids, single)
	}
	for k := range p.lists[layer] {
		p.lists[layer][k].n = 0
	}
}

// judge compares what was named for a layer with what it uses.
func (p *Prefetcher) judge(layer int, ids []int32) {
	p.used.set(ids)
	s, named := &p.layers[layer], false
	for k := range p.lists[layer] {
		l := &p.lists[layer][k]
		if l.n == 0 {
			continue
		}
		first, all := 0, 0
		for i, id := range l.ids[:l.n] {
			hit := p.used.has(id)
			if hit {
				all++
				if i < len(ids) {
					first++
				}
			}
			if !l.there[i] {
				p.calib.learn(layer, k, l.bucket[i], hit)
			}
		}
		s.Recall[k].add(len(ids), first, all)
		if !named { // the nearest list is the predictor's word
			named = true
			s.Routed += int64(len(ids))
			s.Named += int64(first)
		}
	}
}

// State is what a guess depends on besides routes.
type State struct {
	WaitTime   time.Duration // waiting for the device so far
	WaitBytes  int64         // that arrived meanwhile
	BytesRead  int64         // in all
	OnTheirWay int64         // bytes of guesses not yet there
	Room       []int         // per class: experts that may still be held on a guess
}

// Idle says that nothing is guessed for the token at hand.
func (p *Prefetcher) Idle() bool { return p.depth == 0 }

// Guess says what to read ahead while layer (-1: the token's embedding is all there is) is at work on ids; hidden is the
// token's state as it enters the experts. What it returns is valid until the next call.
func (p *Prefetcher) Guess(layer int, ids []int32, hidden []float32, s *State) []expert.Guess {
	p.budget.observe(s)
	if p.depth == 0 {
		return nil
	}
	from := p.opt.Now()
	p.guesses, p.offers = p.guesses[:0], p.offers[:0]
	if layer < 0 {
		p.budget.reached(layer, true, from, time.Time{})
	}
	p.by.name(layer, ids, hidden, p.depth, p.lists)
	p.collect(layer)
	bytes := p.cat.ExpertBytes((layer + 1) % len(p.cat.Layers))
	p.guesses = Plan(p.guesses, p.offers, p.budget.limits(layer, bytes, s))
	p.budget.spend(p.guesses, bytes)
	d := p.opt.Now().Sub(from)
	p.spent += d
	p.stats.Time += d
	return p.guesses
}

// collect offers the planner what was named by this guess and has to be read.
func (p *Prefetcher) collect(layer int) {
	for ahead := 1; ahead <= p.depth; ahead++ {
		target, kind := layer+ahead, ahead-1
		if target >= len(p.lists) {
			if target, kind = target-len(p.lists), beyond; ahead > 1 {
				break
			}
		}
		l := &p.lists[target][kind]
		for i, id := range l.ids[:l.n] {
			k := expert.Key{Layer: int32(target), Expert: id}
			l.there[i] = p.opt.Arena.Has(k)
			if l.there[i] {
				continue
			}
			chance := float32(1)
			if !l.sure {
				chance = p.calib.chance(target, kind, l.bucket[i])
			}
			p.offers = append(p.offers, Candidate{
				Guess: expert.Guess{Key: k, P: chance}, Class: p.cat.Layers[target].Class, Bytes: p.cat.ExpertBytes(target), Ahead: ahead,
			})
		}
	}
}

// Token tells what the last token cost: the time it took in all, the time it waited for the device, and how many experts
// it needed from the disk, read ahead or not.
func (p *Prefetcher) Token(took, waited time.Duration, needed int) {
	if p.gov != nil {
		p.gov.Bound(p.budget.reading(int64(needed)*p.cat.ExpertBytes(0)), p.spent)
		p.gov.Token(took, waited+p.spent, needed)
		p.depth = p.gov.Depth()
	}
	p.spent = 0
}

// Interrupt tells that the last batch was not one token: it is no part of what the governor compares.
func (p *Prefetcher) Interrupt() {
	if p.gov != nil {
		p.gov.Interrupt()
	}
	p.spent = 0
}

// Stats returns what was counted so far; the layers are a copy.
func (p *Prefetcher) Stats() Stats {
	s := p.stats
	s.Depth, s.Layers = p.depth, slices.Clone(p.layers)
	s.Reason = "as asked for"
	if p.gov != nil {
		s.Depth, s.Reason = p.gov.Verdict()
	}
	return s
}
