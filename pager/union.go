package pager

import "github.com/epq-uring/epq-uring/expert"

// ReadUnion begins to read experts of one layer that a batch of tokens will most likely use, best first, as far as there
// are slots that this layer's misses would take themselves: free ones, and those whose expert the policy would give up for
// them, unless that one's layer comes before. It returns how many it accepted. Unlike Prefetch it takes slots of this very
// batch's earlier layers: a batch passes through most experts of the model, so what it used lately is what it needs last.
func (p *Pager) ReadUnion(guesses []expert.Guess) (accepted int) {
	if p.dead != nil || p.nextMiss < len(p.missing) {
		return 0 // a running Use waits for slots itself
	}
	for _, g := range guesses {
		if !p.cat.Valid(g.Key) || !(g.P > 0) || len(p.guesses) == cap(p.guesses) || p.Has(g.Key) {
			continue
		}
		class := p.cat.Layers[g.Key.Layer].Class
		if len(p.free[class]) == 0 {
			n, next := p.victim(class), int32(p.cat.Index(g.Key))
			if n < 0 || p.history.ahead(p.slots[n].index) <= p.history.ahead(next) {
				break
			}
			p.evict(n)
		}
		p.guess(p.pop(class), g.Key, min(g.P, 1))
		accepted++
	}
	if accepted > 0 && p.flush() != nil {
		return 0
	}
	return accepted
}
