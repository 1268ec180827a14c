package pager

import "fmt"

// Check goes through all slots and tables and says what contradicts what: every slot is in exactly one place, the tables
// name ready and reading slots only, counts sum up. It costs time in proportion to the model; nil when all is well.
func (p *Pager) Check() error {
	var counts [states]int
	pending, bytes := 0, 0
	for n := range p.slots {
		s := &p.slots[n]
		counts[s.state]++
		pending += int(s.pending)
		if err := p.checkSlot(int32(n)); err != nil {
			return fmt.Errorf("pager: slot %d (%v, %+v): %w", n, s.state, s.key, err)
		}
		for i := range int(s.parts) {
			if (s.state == reading || s.state == draining) && s.submitted>>i&1 == 1 && s.got>>i&1 == 0 {
				bytes += p.cat.Piece(s.key, i).ReadLength
			}
		}
	}
	switch {
	case counts != p.counts:
		return fmt.Errorf("pager: slots per state %v, counted as %v", counts, p.counts)
	case pending != p.pending:
		return fmt.Errorf("pager: %d reads outstanding, counted as %d", pending, p.pending)
	case counts[draining] == 0 && bytes != p.pendingBytes:
		return fmt.Errorf("pager: %d bytes outstanding, counted as %d", bytes, p.pendingBytes)
	}
	if err := p.checkGuesses(); err != nil {
		return err
	}
	if err := p.checkFree(counts[free]); err != nil {
		return err
	}
	return p.checkTables(counts[ready], counts[reading])
}

func (p *Pager) checkSlot(n int32) error {
	s := &p.slots[n]
	if leaving := p.leaving[n]; leaving >= 0 != (s.state == ready && s.pins == 0) || leaving >= 0 && leaving != s.index {
		return fmt.Errorf("may leave as expert %d, with %d pins", leaving, s.pins)
	}
	if !p.running && s.pins != 0 {
		return fmt.Errorf("%d pins while nothing runs", s.pins)
	}
	if (s.state == free || s.state == ready) && s.pending != 0 {
		return fmt.Errorf("%d reads outstanding", s.pending)
	}
	if s.state == free {
		return nil
	}
	if int(s.index) != p.cat.Index(s.key) {
		return fmt.Errorf("index %d", s.index)
	}
	if class := p.cat.Layers[s.key.Layer].Class; class != p.classOf(n) {
		return fmt.Errorf("an expert of class %d in a slot of class %d", class, p.classOf(n))
	}
	if (s.state == ready) != (p.table[s.index] == n) || (s.state == reading) != (p.inflight[s.index] == n) {
		return fmt.Errorf("the tables name slots %d (ready) and %d (reading)", p.table[s.index], p.inflight[s.index])
	}
	if s.state == ready && s.got != s.full() {
		return fmt.Errorf("parts %b of %b", s.got, s.full())
	}
	return nil
}

// checkGuesses: every guess that was issued is accounted for.
func (p *Pager) checkGuesses() error {
	held := make([]int64, len(p.layers))
	for n := range p.slots {
		if p.slots[n].guess {
			held[p.slots[n].key.Layer]++
		}
	}
	for layer, g := range p.layers {
		if g.Held != held[layer] || g.Issued != g.Useful+g.Late+g.Wasted+g.Cancelled+g.Held {
			return fmt.Errorf("pager: layer %d: %d slots hold a guess, counted %+v", layer, held[layer], g)
		}
	}
	return nil
}

func (p *Pager) checkFree(count int) error {
	total := 0
	for class, list := range p.free {
		total += len(list)
		for _, n := range list {
			if p.slots[n].state != free || p.classOf(n) != class {
				return fmt.Errorf("pager: slot %d of class %d is %v, but free in class %d", n, p.classOf(n), p.slots[n].state, class)
			}
		}
	}
	if total != count {
		return fmt.Errorf("pager: %d slots are free, %d in the lists", count, total)
	}
	return nil
}

func (p *Pager) checkTables(nReady, nReading int) error {
	for i := range p.table {
		if p.table[i] >= 0 {
			nReady--
		}
		if p.inflight[i] >= 0 {
			nReading--
		}
	}
	if nReady != 0 || nReading != 0 {
		return fmt.Errorf("pager: the tables lack %d ready and %d reading experts", nReady, nReading)
	}
	return nil
}
