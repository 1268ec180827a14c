// Package pager keeps routed experts in a fixed arena of slots and reads the missing ones from disk.
//
//	Use(layer, ids) --in the table--> fn at once
//	                --missing-------> slot: free -> reading -> fn when gate and up are there -> ready, in the table
//
// The page table names a slot only while it is ready, so what is found is always complete; a slot whose read failed or
// was cancelled is free again only after the device gave back every read into it (slot.go has all moves). The bytes lent
// to fn are valid until it returns.
//
// A Pager is single-threaded: one goroutine, the one that owns the device, makes all calls, including Down of the lent
// weights. After the first uses it allocates nothing.
package pager

import (
	"fmt"
	"time"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring"
)

// Options of a Pager; the zero value is the default.
type Options struct {
	Policy      string // one of Policies(); "": DefaultPolicy
	StaleTokens int    // of least_stale: unused for more tokens is stale; 0: DefaultStaleTokens
	Retries     int    // reads tried again per part; 0: 1, negative: none
	GuessBytes  int    // guesses are handed in while fewer bytes are in flight; 0: DefaultGuessBytes
	// Started, if set, is called once in every Use, after its missing reads were handed in and before fn: the moment to
	// call Prefetch, when guesses delay no demand of this Use and its waiting is still to come.
	Started func()
	Now     func() time.Time // clock; nil: the machine's
	// Verify, if set, looks at the wanted bytes of a part before its expert can be used; an error counts as a failed read.
	Verify func(k expert.Key, part int, b []byte) error
}

// DefaultGuessBytes keeps a guess from delaying a demand by much more than a millisecond: the disk is busy with 3 to 4 MB
// in flight, and more only adds waiting (section 1 of the I/O measurements: 0.61 ms at 1.8 MB, 1.16 at 3.6, 2.4 at 7).
const DefaultGuessBytes = uring.DefaultInFlight

func (o Options) withDefaults() (Options, error) {
	if o.StaleTokens < 0 || o.GuessBytes < 0 || o.Retries > 100 {
		return o, fmt.Errorf("pager: stale tokens %d, guess bytes %d, retries %d: the first two must not be negative, the last at most 100: %w",
			o.StaleTokens, o.GuessBytes, o.Retries, ErrOptions)
	}
	if o.StaleTokens == 0 {
		o.StaleTokens = DefaultStaleTokens
	}
	if o.GuessBytes == 0 {
		o.GuessBytes = DefaultGuessBytes
	}
	if o.Retries == 0 {
		o.Retries = 1
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// Pager owns the slots of an arena. The device and the arena outlive it; they belong to the caller.
type Pager struct {
	cat     *expert.Catalog
	arena   *Arena
	dev     uring.Device
	policy  policy
	history *history
	verify  func(k expert.Key, part int, b []byte) error
	started func()
	now     func() time.Time
	retries int
	stats   Stats
	dead    error // the device failed, or Close was called

	table    []int32 // expert -> slot, while ready
	inflight []int32 // expert -> slot, while reading
	slots    []slot
	leases   []lease
	counts   [states]int
	free     [][]int32 // per class, last in first out
	cold     []coldest // per class
	// leaving[n] is the expert in slot n if it may leave (ready, not pinned), else -1. Beside the slots, because scans look
	// at all of them.
	leaving []int32

	layers    []GuessStats // per layer
	guessed   []guessed    // per slot: its guess
	left      []int32      // per expert: 1 + the token in which a guess took its slot; 0: none did
	waitBytes int64        // that arrived in waits
	waited    time.Time    // when the last wait ended

	demand, prefetch queue
	guesses          []int32 // experts read on a guess whose layer has not passed
	guessBytes       int
	hasStarted       bool           // Started was called in this Use
	warm             []expert.Guess // still to be read by Warm
	pending          int            // reads at the device
	pendingBytes     int
	batch            []uring.Read // scratch of flush
	refs             []ref
	done             []uring.Done // scratch of reap

	use // the running one
}

// use is what one call of Use works on; its slices are reused.
type use struct {
	running bool
	layer   int32
	ids     []int32
	slotOf  []int32  // per item, -1: no slot yet, or released
	seen    []uint32 // per expert of a layer: the round that named it
	round   uint32
	hits    []int32 // items in the arena; not given out: from nextHit
	missing []int32 // items without a slot: from nextMiss
	arrived []int32 // items with gate and up: from nextArrived
	ready   []expert.Ready
	given   []bool  // per item: fn is done with it
	order   []int32 // items in the order in which their slots are used again: hits, then what was on its way, then misses
	nextHit, nextMiss,
	nextArrived, nextAgain int
	useErr error
}

// New makes a pager over an arena whose Regions are registered with dev, in that order, and whose files are the shards
// of cat. errors.Is finds ErrPolicy and ErrOptions.
func New(dev uring.Device, cat *expert.Catalog, arena *Arena, opt Options) (*Pager, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	pol, err := newPolicy(opt.Policy, opt.StaleTokens)
	if err != nil {
		return nil, err
	}
	n := len(arena.places)
	if n > maxSlots {
		return nil, fmt.Errorf("pager: %d slots, at most %d: %w", n, maxSlots, ErrSlots)
	}
	p := &Pager{
		cat: cat, arena: arena, dev: dev, policy: pol, history: newHistory(cat), verify: opt.Verify, started: opt.Started, now: opt.Now,
		retries: max(0, opt.Retries), guessBytes: opt.GuessBytes,
		table: none(cat.Experts()), inflight: none(cat.Experts()), slots: make([]slot, n), leases: make([]lease, n),
		free: make([][]int32, len(cat.Classes)), cold: make([]coldest, len(cat.Classes)), leaving: none(n),
		layers: make([]GuessStats, len(cat.Layers)), guessed: make([]guessed, n), left: make([]int32, cat.Experts()),
	}
	p.makeScratch()
	for i := range p.slots {
		p.leases[i] = lease{p: p, slot: int32(i)}
		p.slots[i].item = -1
	}
	for c := range p.free {
		first, end := arena.first[c], arena.first[c+1]
		p.free[c] = make([]int32, 0, end-first)
		for s := end - 1; s >= first; s-- { // so that the lowest is taken first
			p.free[c] = append(p.free[c], s)
		}
	}
	p.counts[free] = n
	return p, nil
}

// batchReads is how many reads are handed in or taken back by one call of the device.
const batchReads = 64

// makeScratch sizes everything that would grow later: nothing does after this.
func (p *Pager) makeScratch() {
	most := 0
	for _, l := range p.cat.Layers {
		most = max(most, l.Experts)
	}
	reads := expert.MaxParts*len(p.slots) + 1
	p.demand.refs, p.prefetch.refs = make([]ref, 0, reads), make([]ref, 0, reads)
	p.batch, p.refs, p.done = make([]uring.Read, 0, batchReads), make([]ref, 0, batchReads), make([]uring.Done, batchReads)
	p.guesses = make([]int32, 0, len(p.slots))
	p.seen = make([]uint32, most)
	p.slotOf, p.hits, p.missing, p.arrived = make([]int32, 0, most), make([]int32, 0, most), make([]int32, 0, most), make([]int32, 0, most)
	p.ready, p.given, p.order = make([]expert.Ready, 0, most), make([]bool, 0, most), make([]int32, 0, most)
}

func none(n int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = -1
	}
	return s
}

// Use starts the missing reads of the experts ids (distinct) of a MoE layer and calls fn with those that can be computed,
// at most group at a time (0: no bound): first those in the arena, then the others as they land, each exactly once. An
// expert may be given before its down projection is there; Down waits for it. Any number of ids works in any arena.
//
// The first error ends it: fn's own, or that of a read (*ReadError; other experts stay usable, the next use tries again),
// or ErrDevice. errors.Is finds ErrExpert for ids that are out of range or named twice.
func (p *Pager) Use(layer int, ids []int32, group int, fn func(ready []expert.Ready) error) error {
	if err := p.admit(layer, ids); err != nil {
		return err
	}
	if p.pending > 0 {
		if err := p.Poll(); err != nil {
			return err
		}
	}
	defer p.end()
	p.begin(layer, ids)
	for left := len(ids); left > 0; {
		if p.useErr != nil {
			return p.useErr
		}
		if err := p.startMisses(); err != nil {
			return err
		}
		if p.announce() {
			continue // reads that arrived meanwhile may have failed, or made room for more misses
		}
		given := p.take(group)
		if len(given) == 0 {
			if err := p.wait(); err != nil {
				return err
			}
			continue
		}
		if err := fn(given); err != nil {
			return err
		}
		p.release(given)
		if left -= len(given); left > 0 {
			if err := p.Poll(); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce calls Started once in every Use, and says whether it did.
func (p *Pager) announce() bool {
	if p.started == nil || p.hasStarted {
		return false
	}
	p.hasStarted = true
	p.started()
	return true
}

// admit checks a Use before anything changes.
func (p *Pager) admit(layer int, ids []int32) error {
	switch {
	case p.running:
		return fmt.Errorf("pager: use of layer %d: %w", layer, ErrNested)
	case p.dead != nil:
		return p.dead
	case layer < 0 || layer >= len(p.cat.Layers):
		return fmt.Errorf("pager: layer %d of %d: %w", layer, len(p.cat.Layers), ErrExpert)
	}
	experts := p.cat.Layers[layer].Experts
	p.round++
	if p.round == 0 { // wrapped: old marks would look new
		clear(p.seen)
		p.round = 1
	}
	for _, id := range ids {
		if id < 0 || int(id) >= experts || p.seen[id] == p.round {
			return fmt.Errorf("pager: layer %d: expert %d of %d: %w", layer, id, experts, ErrExpert)
		}
		p.seen[id] = p.round
	}
	return nil
}

// begin looks all ids up and pins what is there or on its way: a miss of this Use cannot evict it.
func (p *Pager) begin(layer int, ids []int32) {
	p.running, p.layer, p.ids, p.useErr, p.hasStarted = true, int32(layer), ids, nil, false
	p.hits, p.missing, p.arrived = p.hits[:0], p.missing[:0], p.arrived[:0]
	p.nextHit, p.nextMiss, p.nextArrived, p.nextAgain = 0, 0, 0, 0
	p.slotOf, p.given = p.slotOf[:len(ids)], p.given[:len(ids)]
	clear(p.given)
	p.history.layer = int32(layer)
	base := int32(p.cat.Index(expert.Key{Layer: int32(layer)}))
	if l := &p.cat.Layers[layer]; len(ids) <= l.Used {
		p.history.fit(base, p.seen[:l.Experts], p.round)
	}
	for item, id := range ids {
		i := base + id
		cold := int64(0)
		if p.history.touch(i) {
			cold = 1
		}
		n := p.table[i]
		if n >= 0 {
			p.hits = append(p.hits, int32(item))
			p.stats.Hits++
			p.stats.ColdHits += cold
		} else if n = p.inflight[i]; n >= 0 {
			p.stats.Joined++
			p.stats.ColdJoined += cold
			p.join(n)
			if p.slots[n].usable() {
				p.arrived = append(p.arrived, int32(item))
			}
		} else {
			p.missing = append(p.missing, int32(item))
			p.stats.Misses++
			p.stats.ColdMisses += cold
			p.missed(i)
		}
		p.slotOf[item] = n
		if n >= 0 {
			p.hold(n, int32(item))
		}
	}
	p.setOrder()
}

// setOrder fixes in which order the slots of this Use serve again when it names more experts than there are slots. What
// is evicted then does not depend on the order in which reads land, so a recorded run can be replayed to the last read.
func (p *Pager) setOrder() {
	p.order = append(p.order[:0], p.hits...)
	for item, n := range p.slotOf {
		if n >= 0 && p.slots[n].state == reading {
			p.order = append(p.order, int32(item))
		}
	}
	p.order = append(p.order, p.missing...)
}

// hold pins a slot for an item of the running Use.
func (p *Pager) hold(n, item int32) {
	s := &p.slots[n]
	s.item = item
	p.pin(n)
	p.guessUsed(n)
}

// startMisses begins as many reads as there are slots, in the order of the ids.
func (p *Pager) startMisses() error {
	for ; p.nextMiss < len(p.missing); p.nextMiss++ {
		n := p.room(p.cat.Layers[p.layer].Class)
		if n < 0 {
			break
		}
		item := p.missing[p.nextMiss]
		p.start(n, expert.Key{Layer: p.layer, Expert: p.ids[item]}, demanded)
		p.slotOf[item] = n
		p.hold(n, item)
	}
	if p.demand.empty() && p.prefetch.empty() {
		return nil
	}
	return p.flush()
}

// room takes a free slot of a class, or the one whose expert the policy gives up, or that of a guess whose reads have
// not been handed in, or one that this Use is done with; -1 when all are in use or on their way.
func (p *Pager) room(class int) int32 {
	if len(p.free[class]) == 0 {
		if n := p.victim(class); n >= 0 {
			p.evict(n)
		} else if !p.dropGuess(class) && !p.again(class) {
			return -1
		}
	}
	return p.pop(class)
}

// again frees the slot of the first expert in order, once fn is done with it.
func (p *Pager) again(class int) bool {
	for p.nextAgain < len(p.order) {
		item := p.order[p.nextAgain]
		n := p.slotOf[item]
		if !p.given[item] || n < 0 || p.slots[n].state == reading { // still needed; or fn did not ask for its last part
			return false
		}
		p.nextAgain++
		p.slotOf[item] = -1
		p.unpin(n)
		if p.slots[n].state == ready {
			p.evict(n)
		}
		if len(p.free[class]) > 0 {
			return true
		}
	}
	return false
}

func (p *Pager) pop(class int) int32 {
	last := len(p.free[class]) - 1
	n := p.free[class][last]
	p.free[class] = p.free[class][:last]
	return n
}

func (p *Pager) evict(n int32) {
	p.guessGone(n)
	p.move(n, free)
	p.stats.Evictions++
}

// dropGuess gives up a queued guess of a class of which the device knows nothing.
func (p *Pager) dropGuess(class int) bool {
	for _, r := range p.prefetch.refs[p.prefetch.head:] {
		if s := &p.slots[r.slot]; !p.stale(r) && s.submitted == 0 && s.pins == 0 && p.classOf(r.slot) == class {
			p.drop(r.slot, nil)
			return true
		}
	}
	return false
}

// take chooses what fn gets next: hits as long as there are any, then what has landed.
func (p *Pager) take(group int) []expert.Ready {
	from, next := p.hits, &p.nextHit
	if p.nextHit == len(p.hits) {
		from, next = p.arrived, &p.nextArrived
	}
	n := len(from) - *next
	if group > 0 {
		n = min(n, group)
	}
	p.ready = p.ready[:0]
	for _, item := range from[*next : *next+n] {
		p.ready = append(p.ready, expert.Ready{Index: int(item), Weights: &p.leases[p.slotOf[item]]})
	}
	*next += n
	return p.ready
}

// release takes back what fn was given. The pins last until the slots serve again, or the Use ends.
func (p *Pager) release(given []expert.Ready) {
	for _, r := range given {
		p.given[r.Index] = true
		p.slots[p.slotOf[r.Index]].item = -1
	}
}

// end lets go of everything the Use still holds; reads on their way go on, for the next use.
func (p *Pager) end() {
	for item, n := range p.slotOf {
		if n >= 0 {
			p.slotOf[item] = -1
			p.unpin(n)
		}
	}
	p.slotOf, p.missing, p.nextMiss = p.slotOf[:0], p.missing[:0], 0
	p.running = false
	p.passed(p.layer)
}

// Poll looks for finished reads without waiting and refills the device's queue. The loop calls it between units of other
// work: completions appear nowhere else.
func (p *Pager) Poll() error {
	if p.pending == 0 {
		return p.flush()
	}
	return p.reap(0)
}

// Tick says that one token, or one batch, went by: policies age by it.
func (p *Pager) Tick() { p.history.tick(p.stats.Evictions, len(p.slots)) }

// Stats returns the counters so far.
func (p *Pager) Stats() Stats {
	s := p.stats
	for _, g := range p.layers {
		s.Guess.add(g)
	}
	return s
}

// Close drops guesses, waits for every read in flight, and ends the pager. Device and arena stay open.
func (p *Pager) Close() error {
	if p.running {
		return fmt.Errorf("pager: close: %w", ErrNested)
	}
	err := p.quiet()
	if p.dead == nil {
		p.dead = fmt.Errorf("pager: %w", ErrClosed)
	}
	return err
}
