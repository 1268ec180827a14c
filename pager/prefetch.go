package pager

// Prefetch begins to read experts that may be needed, best first, and returns how many it accepted. It never waits, and
// takes only free slots and those of experts that are less probable than the guess. What is there or on its way is not
// accepted again. Guesses are read in the gaps that demands leave; one that its layer passed by without using is the
// first to leave.
func (p *Pager) Prefetch(guesses []Guess) (accepted int) {
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

func (p *Pager) accept(g Guess) bool {
	if !p.cat.Valid(g.Key) || !(g.P > 0) || len(p.guesses) == cap(p.guesses) {
		return false
	}
	i := int32(p.cat.Index(g.Key))
	if p.table[i] >= 0 || p.inflight[i] >= 0 {
		return false
	}
	class := p.cat.Layers[g.Key.Layer].Class
	if len(p.free[class]) == 0 {
		n := p.victim(class)
		if n < 0 || p.history.rate(p.slots[n].index) >= g.P {
			return false
		}
		p.evict(n)
	}
	n := p.pop(class)
	p.wastedRead[n] = 0
	p.start(n, g.Key, false)
	p.history.guess[i] = min(g.P, 1)
	p.guesses = append(p.guesses, i)
	p.stats.Guessed++
	return true
}

// passed ends the protection of guesses for a layer that was just used: the wrong ones leave first, and those not even
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
		} else if n := p.inflight[i]; n >= 0 && p.slots[n].submitted == 0 && !p.slots[n].demand {
			p.drop(n, nil)
		}
	}
	p.guesses = kept
}

// CancelGuesses gives up all guesses that are still on their way and that nobody has joined, and ends Warm.
func (p *Pager) CancelGuesses() {
	p.warm = nil
	for _, i := range p.guesses {
		p.history.guess[i] = 0
		if n := p.inflight[i]; n >= 0 && !p.slots[n].demand {
			p.drop(n, nil)
		}
	}
	p.guesses = p.guesses[:0]
}

// Quiet drops guesses and waits until nothing is in flight.
func (p *Pager) Quiet() error {
	p.CancelGuesses()
	for p.dead == nil && (p.pending > 0 || p.counts[reading] > 0) {
		if err := p.wait(); err != nil {
			return err
		}
	}
	return nil
}
