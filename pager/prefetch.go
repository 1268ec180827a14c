package pager

import (
	"time"

	"github.com/epq-uring/epq-uring/expert"
)

// restTokens protects what was used lately: a guess takes no slot whose expert was used in this token or the one before.
const restTokens = 2

// colder is how much less probable than the guess an expert must be to lose its slot to it: guesses are wrong more often
// than their probability says about experts that others need as well.
const colder = 0.5

// guessShare: guesses that wait for their layer hold at most one in so many slots of a class.
const guessShare = 8

// guessed is what is known about the guess in a slot.
type guessed struct {
	bytes int64
	ready time.Time
}

// Prefetch begins to read experts that may be needed, best first, and returns how many it accepted. It never waits, and
// takes only free slots and those of experts that are clearly less probable than the guess and were not used in this or
// the last token. What is there or on its way is not accepted again. Guesses are read in the gaps that demands leave; one
// that its layer passed by without using is the first to leave.
func (p *Pager) Prefetch(guesses []expert.Guess) (accepted int) {
	if p.dead != nil || p.nextMiss < len(p.missing) {
		return 0 // a running Use waits for slots itself
	}
	for _, g := range guesses {
		if p.accept(g) {
			accepted++
		}
	}
	if accepted > 0 && p.flush() != nil {
		return 0
	}
	return accepted
}

func (p *Pager) accept(g expert.Guess) bool {
	if !p.cat.Valid(g.Key) || !(g.P > 0) || len(p.guesses) == cap(p.guesses) || p.Has(g.Key) {
		return false
	}
	class := p.cat.Layers[g.Key.Layer].Class
	if len(p.free[class]) == 0 && !p.displace(class, min(g.P, 1)) {
		return false
	}
	p.guess(p.pop(class), g.Key, min(g.P, 1))
	return true
}

// guess begins to read an expert into a free slot.
func (p *Pager) guess(n int32, k expert.Key, chance float32) {
	i := int32(p.cat.Index(k))
	p.guessed[n] = guessed{}
	p.start(n, k, foreseen)
	p.history.guess[i] = chance
	p.guesses = append(p.guesses, i)
	p.layers[k.Layer].Issued++
	p.layers[k.Layer].Held++
}

// displace evicts the coldest expert of a class that is cold enough for a guess of probability chance and has rested. It may
// not be the very coldest: a policy may rank what was used just now for the first time below what it has known for long.
func (p *Pager) displace(class int, chance float32) bool {
	if p.victim(class) < 0 {
		return false
	}
	h, c := p.history, &p.cold[class]
	for _, x := range c.list[:c.n] {
		i := p.leaving[x.slot]
		if i < 0 || p.slots[x.slot].gen != x.gen || h.last[i] > c.uses || h.rate(i) > colder*chance {
			continue
		}
		if h.last[i] > 0 {
			if h.token-h.when[i] < restTokens {
				continue
			}
			p.stats.Displaced++
			p.left[i] = 1 + h.token
		}
		p.evict(x.slot)
		return true
	}
	return false
}

// missed notices a miss of what a guess displaced not long ago.
func (p *Pager) missed(i int32) {
	if p.left[i] > 0 && p.history.token-p.left[i] < longTokens {
		p.stats.AskedAgain++
	}
	p.left[i] = 0
}

// endGuess takes the guess out of a slot and returns the counters of its layer; nil if there was none.
func (p *Pager) endGuess(n int32) *GuessStats {
	s := &p.slots[n]
	if !s.guess {
		return nil
	}
	s.guess = false
	g := &p.layers[s.key.Layer]
	g.Held--
	return g
}

// guessUsed books a guess that turned out right.
func (p *Pager) guessUsed(n int32) {
	s, g := &p.slots[n], p.endGuess(n)
	if g == nil {
		return
	}
	if s.state == reading {
		g.Late++
		return
	}
	g.Useful++
	g.Lead += p.now().Sub(p.guessed[n].ready)
}

// guessGone books a guess that leaves unused.
func (p *Pager) guessGone(n int32) {
	s, g := &p.slots[n], p.endGuess(n)
	if g == nil {
		return
	}
	g.WastedBytes += p.guessed[n].bytes
	if s.state == ready {
		g.Wasted++
	} else {
		g.Cancelled++
	}
}

// passed ends the protection of guesses for a layer that was just used: the wrong ones leave first, and those not wholly
// handed in are dropped.
func (p *Pager) passed(layer int32) {
	kept := p.guesses[:0]
	for _, i := range p.guesses {
		if p.history.layerOf[i] != layer {
			kept = append(kept, i)
			continue
		}
		if p.history.guess[i] == 0 {
			continue // it was right
		}
		p.history.guess[i] = 0
		if n := p.table[i]; n >= 0 {
			p.first(n)
		} else if n := p.inflight[i]; n >= 0 && !p.slots[n].demand && p.slots[n].submitted != p.slots[n].full() {
			p.drop(n, nil)
		}
	}
	p.guesses = kept
}

// cancelGuesses gives up all guesses that are still on their way and that nobody has joined, and ends Warm.
func (p *Pager) cancelGuesses() {
	p.warm = nil
	for _, i := range p.guesses {
		p.history.guess[i] = 0
		if n := p.inflight[i]; n >= 0 && !p.slots[n].demand {
			p.drop(n, nil)
		}
	}
	p.guesses = p.guesses[:0]
}

// quiet drops guesses and waits until nothing is in flight.
func (p *Pager) quiet() error {
	p.cancelGuesses()
	for p.dead == nil && (p.pending > 0 || p.counts[reading] > 0) {
		if err := p.wait(); err != nil {
			return err
		}
	}
	return nil
}

// Has says whether an expert is in the arena or on its way.
func (p *Pager) Has(k expert.Key) bool {
	i := p.cat.Index(k)
	return p.table[i] >= 0 || p.inflight[i] >= 0
}

// Outlook says what more can be guessed: the bytes of guesses that are still on their way, and into room, per class, how
// many more experts may be held on a guess.
func (p *Pager) Outlook(room []int) (onTheirWay int64) {
	for class := range room {
		room[class] = max(1, int(p.arena.first[class+1]-p.arena.first[class])/guessShare)
	}
	for _, i := range p.guesses {
		if p.history.guess[i] == 0 {
			continue
		}
		k := p.cat.KeyAt(int(i))
		room[p.cat.Layers[k.Layer].Class]--
		if n := p.inflight[i]; n >= 0 && !p.slots[n].demand {
			onTheirWay += p.cat.ExpertBytes(int(k.Layer))
		}
	}
	return onTheirWay
}

// Load says what the device was asked and how long it took.
type Load struct {
	Waited    time.Time     // the last wait ended then: the demands before were served
	WaitTime  time.Duration // all waits
	WaitBytes int64         // arrived in them
	BytesRead int64         // arrived in all
}

// Load returns the counts so far.
func (p *Pager) Load() Load {
	return Load{Waited: p.waited, WaitTime: p.stats.WaitTime, WaitBytes: p.waitBytes, BytesRead: p.stats.BytesRead}
}

// Pending says whether reads are at the device, whose ends only Poll and waiting notice.
func (p *Pager) Pending() bool { return p.pending > 0 }

// GuessStats appends the counters of every layer.
func (p *Pager) GuessStats(to []GuessStats) []GuessStats { return append(to, p.layers...) }
