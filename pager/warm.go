package pager

import "github.com/epq-uring/epq-uring/expert"

// Warm begins to read experts that were hot in earlier runs into free slots, in the order given, whenever neither demands
// nor guesses are queued; their P is where the policies' long average starts. They do not lapse when
// their layer passes, and nothing makes room for them. A later call replaces what was not begun: Warm(nil) ends it. The
// slice is the pager's until then.
func (p *Pager) Warm(hot []expert.Guess) {
	kept := hot[:0]
	for _, g := range hot {
		if !p.cat.Valid(g.Key) || !(g.P > 0) {
			continue
		}
		kept = append(kept, g)
		if i := p.cat.Index(g.Key); p.history.last[i] == 0 {
			p.history.long[i] = min(g.P, 1)
		}
	}
	p.warm = kept
}

// Warming goes on with what Warm began, while nothing else is to be done: it waits for at least one read and says whether
// there is more to come.
func (p *Pager) Warming() (more bool, err error) {
	if len(p.warm) == 0 && p.pending == 0 {
		return false, nil
	}
	if err := p.flush(); err != nil || p.pending == 0 {
		p.warm = nil
		return false, err
	}
	err = p.reap(1)
	return err == nil && (len(p.warm) > 0 || p.pending > 0), err
}

// startWarm queues the next hot expert that is neither there nor on its way and finds a free slot. Where a class has none
// left, its others are passed over.
func (p *Pager) startWarm() {
	if p.running && p.nextMiss < len(p.missing) {
		return // it waits for slots itself
	}
	for len(p.warm) > 0 {
		k := p.warm[0].Key
		p.warm = p.warm[1:]
		i, class := p.cat.Index(k), p.cat.Layers[k.Layer].Class
		if p.table[i] >= 0 || p.inflight[i] >= 0 || len(p.free[class]) == 0 {
			continue
		}
		n := p.pop(class)
		p.start(n, k, warmed)
		p.stats.Warmed++
		return
	}
}

// Counts appends, per expert in the order of expert.Catalog.Index, in how many uses it was named.
func (p *Pager) Counts(to []int32) []int32 { return append(to, p.history.count...) }
