package pager

import (
	"errors"
	"fmt"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring"
)

// ref names one read that is wanted: a part of the expert that lives in a slot. It is stale when the slot's life is over,
// the slot no longer reads, or the part was handed in: a ref is not taken out of the middle of a queue, and a retry is
// another ref.
type ref struct {
	slot int32
	gen  uint32
	part int32
	try  uint8
}

// queue holds refs in order. Its memory is made once; stale refs are dropped when it is full.
type queue struct {
	refs []ref
	head int
}

func (q *queue) empty() bool { return q.head == len(q.refs) }

func (p *Pager) stale(r ref) bool {
	s := &p.slots[r.slot]
	return s.gen != r.gen || s.state != reading || s.submitted>>r.part&1 == 1 || s.tries[r.part] != r.try
}

// push makes room by dropping what is done or stale; live refs never exceed the parts of all slots.
func (p *Pager) push(q *queue, r ref) {
	if len(q.refs) == cap(q.refs) {
		kept := q.refs[:0]
		for _, old := range q.refs[q.head:] {
			if !p.stale(old) {
				kept = append(kept, old)
			}
		}
		q.refs, q.head = kept, 0
	}
	q.refs = append(q.refs, r)
}

// skip moves the head over stale refs.
func (p *Pager) skip(q *queue) {
	for !q.empty() && p.stale(q.refs[q.head]) {
		q.head++
	}
	if q.empty() {
		q.refs, q.head = q.refs[:0], 0
	}
}

// tags carry slot, part and the low bits of the generation.
func tag(n int32, part int32, gen uint32) uint64 {
	return uint64(gen)<<32 | uint64(part)<<30 | uint64(n)
}

func untag(t uint64) (n int32, part int32, gen uint32) {
	return int32(t & (1<<30 - 1)), int32(t >> 30 & 3), uint32(t >> 32)
}

// maxSlots is what fits in a tag.
const maxSlots = 1 << 30

// reason is why an expert is read.
type reason uint8

const (
	demanded reason = iota // a Use waits for it
	foreseen               // a guess of Prefetch
	warmed                 // it was hot in earlier runs
)

// start gives a free slot to expert k and queues its reads.
func (p *Pager) start(n int32, k expert.Key, why reason) {
	s := &p.slots[n]
	parts := p.cat.Layers[k.Layer].Parts
	*s = slot{index: int32(p.cat.Index(k)), gen: s.gen, key: k, item: -1, parts: uint8(len(parts)), demand: why == demanded, guess: why == foreseen}
	p.move(n, reading)
	for i := range parts {
		piece := p.cat.Piece(k, i)
		s.at[i], s.size[i] = int32(piece.SlotOffset+piece.Shift), int32(piece.Size)
		p.enqueue(n, int32(i))
	}
}

// enqueue wants a part of a reading slot.
func (p *Pager) enqueue(n, part int32) {
	q := &p.prefetch
	if p.slots[n].demand {
		q = &p.demand
	}
	p.push(q, ref{slot: n, gen: p.slots[n].gen, part: part, try: p.slots[n].tries[part]})
}

// join turns a guess that is on its way into a demand: what was not handed in yet overtakes other guesses.
func (p *Pager) join(n int32) {
	s := &p.slots[n]
	if s.demand {
		return
	}
	s.demand = true
	for i := range int32(s.parts) {
		if s.submitted>>i&1 == 0 {
			p.enqueue(n, i)
		}
	}
}

// flush hands reads to the device as far as it takes them: demands, then guesses into the gaps, then what was hot.
func (p *Pager) flush() error {
	for p.dead == nil {
		p.batch, p.refs = p.batch[:0], p.refs[:0]
		p.gather(&p.demand, uring.Demand)
		if len(p.batch) == 0 && p.pendingBytes < p.guessBytes {
			if p.prefetch.empty() {
				p.startWarm()
			}
			p.gather(&p.prefetch, uring.Prefetch)
		}
		if len(p.batch) == 0 {
			return nil
		}
		n, err := p.dev.Submit(p.batch)
		if err != nil {
			return p.die(err)
		}
		for i, r := range p.refs[:n] {
			s := &p.slots[r.slot]
			s.submitted |= 1 << r.part
			s.pending++
			p.pending++
			p.pendingBytes += p.batch[i].Length
		}
		if n < len(p.refs) {
			return nil
		}
	}
	return p.dead
}

// gather fills the batch from a queue without taking the refs out: what was handed in becomes stale.
func (p *Pager) gather(q *queue, class uring.Class) {
	p.skip(q)
	bytes := p.pendingBytes
	for _, r := range q.refs[q.head:] {
		if len(p.batch) == cap(p.batch) || class == uring.Prefetch && bytes >= p.guessBytes {
			return
		}
		if p.stale(r) {
			continue
		}
		piece := p.cat.Piece(p.slots[r.slot].key, int(r.part))
		at := &p.arena.places[r.slot]
		p.batch = append(p.batch, uring.Read{
			File: uring.FileID(piece.Shard), Offset: piece.ReadOffset, Region: int(at.region), RegionOffset: int64(at.offset + piece.SlotOffset),
			Length: piece.ReadLength, Need: piece.Need(), Tag: tag(r.slot, r.part, r.gen), Class: class,
		})
		p.refs = append(p.refs, r)
		bytes += piece.ReadLength
	}
}

// die remembers that the device is of no more use.
func (p *Pager) die(err error) error {
	p.dead = fmt.Errorf("pager: %w: %w", ErrDevice, err)
	return p.dead
}

// reap takes what the device has finished, at least min reads, and refills its queue.
func (p *Pager) reap(min int) error {
	if p.dead != nil {
		return p.dead
	}
	n, err := p.dev.Wait(min, p.done)
	if err != nil {
		return p.die(err)
	}
	for _, d := range p.done[:n] {
		p.complete(d)
	}
	if n < min && p.dead == nil {
		return p.die(fmt.Errorf("asked for %d finished reads of %d in flight, it gave %d", min, p.pending+n, n))
	}
	return p.flush()
}

// wait blocks until something arrives.
func (p *Pager) wait() error {
	if err := p.flush(); err != nil {
		return err
	}
	if p.pending == 0 {
		return p.die(errors.New("it takes no reads although none is in flight"))
	}
	from, bytes := p.now(), p.stats.BytesRead
	err := p.reap(1)
	p.waited = p.now()
	p.stats.WaitTime += p.waited.Sub(from)
	p.waitBytes += p.stats.BytesRead - bytes
	return err
}

// complete takes note of one finished read.
func (p *Pager) complete(d uring.Done) {
	n, part, gen := untag(d.Tag)
	if int(n) >= len(p.slots) || p.slots[n].gen != gen || p.slots[n].pending == 0 {
		// A slot is never freed before all of its reads are back, so this one was reported twice: its bytes are not looked at.
		return
	}
	s := &p.slots[n]
	piece := p.cat.Piece(s.key, int(part))
	s.pending--
	p.pending--
	p.pendingBytes -= piece.ReadLength
	p.stats.Reads++
	p.stats.BytesRead += int64(d.N)
	if s.guess {
		p.guessed[n].bytes += int64(d.N)
	}
	if s.state == draining {
		if !s.demand {
			p.layers[s.key.Layer].WastedBytes += int64(d.N)
		}
		p.freeDrained(n)
		return
	}
	if err := p.check(n, int(part), piece, d); err != nil {
		p.failed(n, part, piece, d, err)
		return
	}
	before := s.usable()
	s.got |= 1 << part
	if s.item >= 0 && !before && s.usable() {
		p.arrived = append(p.arrived, s.item)
	}
	if s.got == s.full() {
		p.move(n, ready)
		if s.guess {
			p.guessed[n].ready = p.now()
		}
	}
}

// check says what is wrong with a finished read.
func (p *Pager) check(n int32, part int, piece expert.Piece, d uring.Done) error {
	switch {
	case d.Err != nil:
		return d.Err
	case d.N < piece.Need():
		return uring.ErrShort
	case p.verify != nil:
		s := &p.slots[n]
		if err := p.verify(s.key, part, p.arena.slot(n)[s.at[part]:s.at[part]+s.size[part]]); err != nil {
			return fmt.Errorf("%w: %w", ErrVerify, err)
		}
	}
	return nil
}

// failed tries a part again or gives its expert up. What was cancelled is not tried again.
func (p *Pager) failed(n, part int32, piece expert.Piece, d uring.Done, err error) {
	s := &p.slots[n]
	s.tries[part]++
	s.submitted &^= 1 << part
	if int(s.tries[part]) <= p.retries && !errors.Is(err, uring.ErrCanceled) {
		p.stats.Retries++
		p.enqueue(n, part)
		return
	}
	p.stats.Failures++
	p.drop(n, &ReadError{Part: p.cat.Describe(s.key, int(part)), Wanted: piece.Need(), Got: d.N, Tries: int(s.tries[part]), Err: err})
}

// drop ends the life of an expert that is being read: it cannot be found from now on, and its slot is free when the last
// of its reads is back. err goes to the Use that waits for it, if one does.
func (p *Pager) drop(n int32, err error) {
	s := &p.slots[n]
	p.guessGone(n)
	if s.item >= 0 && p.useErr == nil {
		p.useErr = err
	}
	if s.submitted == 0 && s.pins == 0 {
		p.move(n, free)
		return
	}
	p.move(n, draining)
	s.err = err
	for i := range int32(s.parts) {
		if s.submitted>>i&1 == 1 && s.got>>i&1 == 0 {
			p.dev.Cancel(tag(n, i, s.gen))
		}
	}
	p.freeDrained(n)
}
