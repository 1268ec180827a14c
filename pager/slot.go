package pager

import (
	"fmt"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/invariants"
)

// state is where a slot is in its life.
//
//	free     -> reading    reserved for an expert; only the in-flight table knows it
//	reading  -> ready      every part has arrived in full length (and passed Verify): published, findable from now on
//	reading  -> draining   failed or cancelled: not findable, waits for its outstanding reads and for the Use that holds it
//	reading  -> free       a guess dropped before any of its reads was handed in
//	draining -> free       the last outstanding read is back and no Use holds it
//	ready    -> free       evicted; only with no pins
//
// The generation rises at every arrow into free, so that a completion or a lease of an earlier life is recognised.
type state uint8

const (
	free state = iota
	reading
	ready
	draining
	states int = iota
)

func (s state) String() string {
	return [...]string{"free", "reading", "ready", "draining"}[s]
}

// moves[from][to] are the arrows above.
var moves = [states][states]bool{
	free:     {reading: true},
	reading:  {ready: true, draining: true, free: true},
	ready:    {free: true},
	draining: {free: true},
}

// slot is one place of the arena that holds one expert.
type slot struct {
	index     int32 // dense number of its expert; meaningless when free
	gen       uint32
	key       expert.Key
	item      int32 // position in the running Use that waits for it, -1 if none
	pins      int32 // uses that read its bytes or wait for them
	at        [expert.MaxParts]int32
	size      [expert.MaxParts]int32
	tries     [expert.MaxParts]uint8 // reads that failed, per part
	parts     uint8                  // how many parts the expert has
	submitted uint8                  // bit per part: handed to the device
	got       uint8                  // bit per part: arrived
	pending   uint8                  // reads at the device
	state     state
	demand    bool  // somebody waits for it
	guess     bool  // read on a guess of Prefetch and not used yet
	err       error // why it is draining
}

// full is the mask of all parts.
func (s *slot) full() uint8 { return 1<<s.parts - 1 }

// usable says whether all parts before the last, gate and up, are there. An expert of one part is usable when whole.
func (s *slot) usable() bool {
	want := s.full() >> 1
	if s.parts == 1 {
		want = 1
	}
	return s.got&want == want
}

// move is the only place where a slot changes its state, together with everything that follows from the state.
func (p *Pager) move(n int32, to state) {
	s := &p.slots[n]
	from := s.state
	if !moves[from][to] || from == ready && s.pins > 0 || to == free && s.pending > 0 || to == ready && s.got != s.full() {
		panic(fmt.Sprintf("pager: slot %d of %+v: %v -> %v with %d pins, %d reads outstanding, parts %b of %b", n, s.key, from, to, s.pins, s.pending, s.got, s.full()))
	}
	switch from {
	case reading:
		p.inflight[s.index] = -1
	case ready:
		p.table[s.index] = -1
	}
	s.state = to
	p.counts[from]--
	p.counts[to]++
	switch to {
	case reading:
		p.inflight[s.index] = n
	case ready:
		p.table[s.index] = n
	case free:
		s.gen++
		s.err = nil
		p.free[p.classOf(n)] = append(p.free[p.classOf(n)], n)
		if invariants.Enabled {
			invariants.Poison(p.arena.slot(n))
		}
	}
	p.setLeaving(n)
}

// setLeaving keeps the list of those who may leave true.
func (p *Pager) setLeaving(n int32) {
	p.leaving[n] = -1
	if s := &p.slots[n]; s.state == ready && s.pins == 0 {
		p.leaving[n] = s.index
	}
}

// freeDrained frees a draining slot that nothing holds any more.
func (p *Pager) freeDrained(n int32) {
	if s := &p.slots[n]; s.state == draining && s.pending == 0 && s.pins == 0 {
		p.move(n, free)
	}
}

func (p *Pager) pin(n int32) {
	p.slots[n].pins++
	p.leaving[n] = -1
}

func (p *Pager) unpin(n int32) {
	s := &p.slots[n]
	s.pins--
	s.item = -1
	p.setLeaving(n)
	p.freeDrained(n)
}

func (p *Pager) classOf(n int32) int { return int(p.arena.places[n].class) }

// lease lends a slot's bytes to one call of a Use's function. There is one per slot, made once.
type lease struct {
	p    *Pager
	slot int32
}

func (l *lease) part(i int) []byte {
	s := &l.p.slots[l.slot]
	if invariants.Enabled {
		invariants.Assert(s.pins > 0 && s.got>>i&1 == 1, "pager: slot %d lends part %d with %d pins, parts %b", l.slot, i, s.pins, s.got)
	}
	b := l.p.arena.slot(l.slot)
	return b[s.at[i] : s.at[i]+s.size[i] : s.at[i]+s.size[i]]
}

// GateUp implements expert.Weights.
func (l *lease) GateUp() (gate, up []byte) {
	s := &l.p.slots[l.slot]
	if l.p.cat.Layers[s.key.Layer].Merged {
		both := l.part(0)
		return both[: len(both)/2 : len(both)/2], both[len(both)/2:]
	}
	return l.part(0), l.part(1)
}

// Down implements expert.Weights. It waits for the last part in the goroutine that called Use.
func (l *lease) Down() ([]byte, error) {
	s := &l.p.slots[l.slot]
	last := int(s.parts) - 1
	for s.got>>last&1 == 0 {
		if s.state == draining {
			return nil, s.err
		}
		if err := l.p.wait(); err != nil {
			return nil, err
		}
	}
	return l.part(last), nil
}
