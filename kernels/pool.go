package kernels

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/ggml_cgo"
)

// ErrThreads is the kind of error for a number of workers that cannot be started.
var ErrThreads = errors.New("kernels: threads")

// Task is an operation cut into units that may run in any order, each by one worker: every output element belongs to
// exactly one unit, so that results do not depend on the number of workers.
type Task interface {
	Do(worker, unit int)
}

// A worker looks for the next operation this long before it parks: longer than the serial parts of a layer (planning of
// reads, guessing), so that nobody pays for a wake-up there (BenchmarkHandOver: 0.5 us while spinning, about 50 us after
// parking), and shorter than waiting for the disk. Where CPU time is rationed, as in many containers and virtual machines,
// the disk's driver, or the host's, lives on the same ration, and a worker that spins through every wait takes it away: 1 ms
// here made decoding 4 to 11 % slower while experts were read. Where nothing is read, 200 us cost some 5 % (docs/io.md).
const spinTime = 200 * time.Microsecond

// The state word of a pool: number of the operation, whether workers may still join it, how many have joined.
const (
	stateActive = 1<<16 - 1
	stateOpen   = 1 << 16
	stateEnd    = 1 << 17 // the pool is closed
	stateStep   = 1 << 32 // one operation
)

// Pool runs tasks on a fixed number of workers. Worker 0 is the caller of Run; the others are goroutines locked to a
// thread each and, where the system permits, pinned to one CPU each.
//
// Run does not wait for a worker that has not begun: the caller takes units until none is left and then waits only for
// units in work. So a parked, descheduled or slow CPU delays an operation by at most one unit.
type Pool struct {
	state   atomic.Uint64
	_       [56]byte
	asleep  atomic.Int32
	busy    atomic.Bool
	task    Task       // written by Run while no worker has joined
	shares  []share    // by worker
	workers []*sleeper // workers 1, 2, ...
	cpus    []int      // by worker; empty: not pinned
	between func()     // called by worker 0 between two units
	ended   sync.WaitGroup
}

// share is a worker's part of an operation: units [from, to), as to<<32 | from. Its owner takes from the front, so that it
// walks through neighbouring rows, whose memory the unit before has prefetched; whoever has none left takes from the back
// of another's.
type share struct {
	left atomic.Uint64
	_    [56]byte
}

func (s *share) set(from, to int) { s.left.Store(uint64(to)<<32 | uint64(from)) }

// front takes the first unit, or -1.
func (s *share) front() int {
	for {
		v := s.left.Load()
		from, to := uint32(v), uint32(v>>32)
		if from >= to {
			return -1
		}
		if s.left.CompareAndSwap(v, v+1) {
			return int(from)
		}
	}
}

// back takes the last unit, or -1.
func (s *share) back() int {
	for {
		v := s.left.Load()
		from, to := uint32(v), uint32(v>>32)
		if from >= to {
			return -1
		}
		if s.left.CompareAndSwap(v, v-1<<32) {
			return int(to - 1)
		}
	}
}

// sleeper is where one worker parks.
type sleeper struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [48]byte
}

// NewPool starts threads-1 workers, 1 <= threads <= 1024. Each is bound to one of cpus, in their order (AllowedCPUs), and
// PinCaller binds worker 0. When the system refuses, or threads outnumber cpus, the pool works unpinned and Pinned reports
// false.
func NewPool(threads int, cpus []int) (*Pool, error) {
	if threads < 1 || threads > 1024 {
		return nil, fmt.Errorf("%w: %d workers asked for, 1 to 1024 are possible", ErrThreads, threads)
	}
	p := &Pool{workers: make([]*sleeper, threads-1), shares: make([]share, threads)}
	if len(cpus) >= threads {
		p.cpus = slices.Clone(cpus[:threads])
	}
	started := make(chan error, threads)
	p.ended.Add(threads - 1)
	for i := range p.workers {
		p.workers[i] = &sleeper{wake: make(chan struct{}, 1)}
		go p.work(i+1, started)
	}
	refused := false
	for range p.workers {
		refused = <-started != nil || refused
	}
	if refused { // every worker has read its CPU by now
		p.cpus = nil
	}
	return p, nil
}

// Threads is the number of workers including the caller of Run.
func (p *Pool) Threads() int { return len(p.workers) + 1 }

// Pinned tells whether each worker is bound to a CPU of its own.
func (p *Pool) Pinned() bool { return len(p.cpus) > 0 }

// PinCaller binds the calling thread, which the caller has locked its goroutine to and will run the operations on, to the
// CPU of worker 0, and gives it the same floating-point control word as the workers. Such a goroutine must end without
// unlocking, so that its thread ends with it. The binding is left out when the pool is not pinned.
func (p *Pool) PinCaller() error {
	ggml_cgo.ResetFloat()
	if !p.Pinned() {
		return nil
	}
	return bind(p.cpus[0])
}

// Run calls t.Do once for each unit 0 .. units-1 and returns when all calls have returned. It is not reentrant: a second
// Run at the same time, from Do or another goroutine, is a fault of the program and panics. It does not allocate.
func (p *Pool) Run(t Task, units int) {
	if !p.busy.CompareAndSwap(false, true) {
		panic("kernels: Run inside or beside another Run of the same pool")
	}
	s := p.state.Load()
	if s&stateEnd != 0 {
		panic("kernels: Run of a closed pool")
	}
	if len(p.workers) == 0 || units <= 1 {
		for u := range units {
			t.Do(0, u)
			if p.between != nil {
				p.between()
			}
		}
		p.busy.Store(false)
		return
	}
	p.task = t
	for w := range p.shares {
		p.shares[w].set(units*w/len(p.shares), units*(w+1)/len(p.shares))
	}
	p.state.Store(s + stateStep | stateOpen)
	if p.asleep.Load() > 0 {
		p.wakeAll()
	}
	p.take(0)
	p.finish()
	p.task = nil
	p.busy.Store(false)
}

// finish closes the operation to further workers and waits for those that have joined.
func (p *Pool) finish() {
	for s := p.state.Load(); !p.state.CompareAndSwap(s, s&^stateOpen); s = p.state.Load() {
	}
	for n := 1; p.state.Load()&stateActive != 0; n++ {
		if n%spinsPerYield == 0 {
			runtime.Gosched()
		}
	}
}

// Between has f called by worker 0 between two of its units: the caller's own work that must not wait for the end of a
// long operation. It must be quick and must not call Run.
func (p *Pool) Between(f func()) { p.between = f }

// take runs units until none is left: the worker's own, then the others'.
func (p *Pool) take(worker int) {
	for u := p.shares[worker].front(); u >= 0; u = p.shares[worker].front() {
		p.do(worker, u)
	}
	for i := 1; i < len(p.shares); i++ {
		other := &p.shares[(worker+i)%len(p.shares)]
		for u := other.back(); u >= 0; u = other.back() {
			p.do(worker, u)
		}
	}
}

func (p *Pool) do(worker, unit int) {
	p.task.Do(worker, unit)
	if worker == 0 && p.between != nil {
		p.between()
	}
}

// Close ends the workers and waits for them. It must not run beside Run; a second Close does nothing.
func (p *Pool) Close() {
	s := p.state.Load()
	if s&stateEnd != 0 {
		return
	}
	p.state.Store(s + stateStep | stateEnd)
	p.wakeAll()
	p.ended.Wait()
}

func (p *Pool) wakeAll() {
	for _, w := range p.workers {
		if w.parked.CompareAndSwap(true, false) {
			p.asleep.Add(-1)
			w.wake <- struct{}{}
		}
	}
}

// work is one worker: joins each operation it sees open, spins for a while, parks. Its thread ends with it, because a
// goroutine that ends locked takes its thread, and the thread's binding, along.
func (p *Pool) work(worker int, started chan<- error) {
	defer p.ended.Done()
	runtime.LockOSThread()
	ggml_cgo.ResetFloat()
	var err error
	if len(p.cpus) > 0 {
		err = bind(p.cpus[worker])
	}
	me := p.workers[worker-1]
	seen := uint64(0)
	started <- err
	for {
		s := p.await(me, seen)
		if s&stateEnd != 0 {
			return
		}
		if !p.state.CompareAndSwap(s, s+1) {
			continue // somebody else joined, or the operation is over: look again
		}
		seen = s / stateStep
		p.take(worker)
		p.state.Add(^uint64(0))
	}
}

// Loads of the state word between two looks at the clock (about 0.3 us), and between two offers of the P to others.
const (
	spinsPerClock = 1 << 9
	spinsPerYield = 1 << 16
)

// await returns the state once an operation other than the one seen is open or the pool is closed.
func (p *Pool) await(me *sleeper, seen uint64) uint64 {
	var until time.Time
	for n := 1; ; n++ {
		s := p.state.Load()
		if s&stateEnd != 0 || s&stateOpen != 0 && s/stateStep != seen {
			return s
		}
		if n%spinsPerClock != 0 {
			continue
		}
		now := time.Now()
		if until.IsZero() {
			until = now.Add(spinTime)
		} else if now.After(until) {
			p.park(me, seen)
			until = time.Time{}
		}
	}
}

// park sleeps until wakeAll, unless an operation was opened before the caller could see this worker sleep.
func (p *Pool) park(me *sleeper, seen uint64) {
	p.asleep.Add(1)
	me.parked.Store(true)
	s := p.state.Load()
	if (s&stateEnd != 0 || s&stateOpen != 0 && s/stateStep != seen) && me.parked.CompareAndSwap(true, false) {
		p.asleep.Add(-1)
		return
	}
	<-me.wake
}

func bind(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("kernels: bind a worker to CPU %d: %w", cpu, err)
	}
	return nil
}
