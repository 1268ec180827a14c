package engine

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/model"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/uring"
)

// loop owns everything that changes: pager, ring, caches and sessions. It runs on one OS thread, which is also worker 0
// of the pool and the only thread that may touch the ring. Callers reach it over two channels.
type loop struct {
	e       *Engine
	model   *model.Model
	pager   *pager.Pager
	experts experts
	device  uring.Device
	pool    *kernels.Pool
	limits  uring.Limits
	policy  string
	mapped  []int64 // per shard: where the last mapped weight ends
	broken  error   // of the device's end, once done is closed: the kernel may still write to the arena

	queue *queue
	calls chan func() // run between two batches
	quit  chan struct{}
	once  sync.Once // closes quit
	done  chan struct{}

	sessions []*session
	batch    model.Batch
	drafting drafting
	busy     time.Duration
	forwards int64

	warm      *warmFile // nil: no warm start
	warmUntil time.Time // zero: nothing is being warmed up
}

// startLoop starts the loop's thread and, on it, everything that belongs to it.
func startLoop(e *Engine, memory model.Memory) (*loop, error) {
	l := &loop{
		e: e, model: e.model,
		queue: newQueue(e.opt.Queue), calls: make(chan func()), quit: make(chan struct{}), done: make(chan struct{}),
	}
	started := make(chan error)
	go func() {
		defer close(l.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its pinning with it
		err := l.start(memory)
		started <- err
		if err == nil {
			l.run()
		}
		l.stop()
	}()
	err := <-started
	if err != nil {
		<-l.done
	}
	return l, err
}

func (l *loop) start(memory model.Memory) error {
	e := l.e
	var err error
	if l.pool, err = kernels.NewPool(e.opt.Threads, e.opt.places.cpus); err != nil {
		return err
	}
	if l.device, err = uring.Open(e.files, e.arena.Regions(), uring.Options{Backend: e.opt.Backend, PrefetchBytes: e.opt.InFlight}); err != nil {
		return err
	}
	if e.opt.WrapDevice != nil {
		l.device = e.opt.WrapDevice(l.device)
	}
	l.limits = l.device.Limits()
	e.lost = append(append(e.lost, e.lostMemory()...), l.limits.Lost...) // the device knows what the files lost
	x := &l.experts
	po := pager.Options{Policy: e.opt.EvictPolicy, StaleTokens: e.opt.StaleTokens, GuessBytes: e.opt.InFlight, Started: x.started}
	if e.sums != nil {
		po.Verify = e.sums.check
	}
	l.pager, err = pager.New(l.device, e.catalog, e.arena, po)
	if err != nil {
		return err
	}
	l.policy = cmp.Or(e.opt.EvictPolicy, pager.DefaultPolicy)
	l.startWarm()
	x.main = len(e.main.Layers)
	x.Pager, x.rec, x.width, x.state.Room = l.pager, e.recorder, e.cfg.Width, make([]int, len(e.catalog.Classes))
	if x.ahead, err = e.newPrefetcher(l.pager); err != nil {
		return err
	}
	if x.ahead != nil {
		l.pool.Between(x.between)
	}
	if err := l.model.Bind(e.resident, memory, e.set, l.pool, x); err != nil {
		return err
	}
	_ = l.pool.PinCaller() // refused, the thread computes the same wherever it runs
	for i := range e.opt.Parallel {
		l.sessions = append(l.sessions, &session{l: l, seq: int32(i)})
	}
	l.batch.Emit, l.drafting.batch.Emit, l.mapped = l.emit, l.guess, e.mappedEnds()
	return nil
}

// stop takes down what start put up, as far as that got.
func (l *loop) stop() {
	if l.pager != nil {
		l.keepWarm()
		_ = l.pager.Close() // a device that failed says so itself
	}
	if l.device != nil {
		l.broken = l.device.Close()
	}
	if l.pool != nil {
		l.pool.Close()
	}
}

func (l *loop) close() {
	l.once.Do(func() { close(l.quit) })
	<-l.done
}

// run is the loop.
func (l *loop) run() {
	for l.admit() {
		l.dropCancelled()
		if l.fill() > 0 {
			l.step()
		}
	}
	for _, s := range l.sessions {
		s.finish("", ErrClosed)
	}
	for _, j := range l.queue.close() {
		j.end(Result{}, ErrClosed)
	}
}

// admit gives waiting requests to free sessions; with nothing to do it waits. It reports false when the loop shall end.
func (l *loop) admit() bool {
	for {
		for l.free() > 0 {
			j := l.queue.pop()
			if j == nil {
				break
			}
			l.assign(j)
		}
		if l.free() < len(l.sessions) { // somebody is at work: only look
			select {
			case <-l.quit:
				return false
			case f := <-l.calls:
				f()
				continue
			default:
				return true
			}
		}
		if !l.idle() {
			return false
		}
	}
}

// idle waits for something to do, and reads hot experts meanwhile. It reports false when the loop shall end.
func (l *loop) idle() bool {
	for l.warming() {
		select {
		case <-l.quit:
			return false
		case f := <-l.calls:
			f()
		case <-l.queue.signal:
			return true
		default:
		}
	}
	select {
	case <-l.quit:
		return false
	case f := <-l.calls:
		f()
	case <-l.queue.signal:
	}
	return true
}

func (l *loop) free() int {
	n := 0
	for _, s := range l.sessions {
		if s.job == nil {
			n++
		}
	}
	return n
}

// assign gives a job to the free session that can keep most of what it has read; of equals the one idle longest.
func (l *loop) assign(j *job) {
	if j.ctx.Err() != nil {
		j.end(Result{}, context.Cause(j.ctx))
		return
	}
	if err := l.e.written(); err != nil {
		j.end(Result{}, err)
		return
	}
	var best *session
	kept := -1
	for _, s := range l.sessions {
		if s.job != nil {
			continue
		}
		if k := s.keepable(j.req.Tokens); k > kept || k == kept && s.used < best.used {
			best, kept = s, k
		}
	}
	best.begin(j)
}

func (l *loop) dropCancelled() {
	for _, s := range l.sessions {
		if s.job != nil && s.job.ctx.Err() != nil {
			s.finish("", context.Cause(s.job.ctx))
		}
	}
}

// fill makes the next batch: one token of every session that decodes and its draft, then pieces of prompts as far as there is room. A
// session that must be alone (its batch failed) gets a batch of its own.
func (l *loop) fill() int {
	b := &l.batch
	b.Tokens, b.Seqs, b.Pos, b.Rows, b.Drafted = b.Tokens[:0], b.Seqs[:0], b.Pos[:0], b.Rows[:0], b.Drafted[:0]
	l.propose()
	for _, s := range l.sessions {
		if s.job != nil && s.solo {
			s.put(b, l.e.opt.UBatch)
			return len(b.Tokens)
		}
	}
	for _, prompts := range []bool{false, true} {
		for _, s := range l.sessions {
			if s.job != nil && (len(s.pending) > 1 || !s.decoding) == prompts {
				s.put(b, l.e.opt.UBatch-len(b.Tokens))
			}
		}
	}
	return len(b.Tokens)
}

// step runs the batch. A fault is the fault of one request; the others' states were changed half-way and are built anew
// from their tokens, each alone, so that the one at fault fails alone. Nor does a request fail for what only its draft needed.
func (l *loop) step() {
	start := time.Now()
	err := l.forward()
	took := time.Since(start)
	l.busy += took
	l.forwards++
	l.endWarm()
	l.experts.token(len(l.batch.Tokens), took)
	l.pager.Tick()
	if r := l.e.recorder; r != nil {
		r.Batch(len(l.batch.Tokens))
	}
	if err == nil {
		l.measure(took)
		l.advance()
		return
	}
	members := l.members()
	for _, s := range members {
		if drafted := len(s.draft.tokens) > 0; drafted {
			s.draft.harmful = true
		} else if len(members) == 1 {
			s.forget()
			s.finish("", err)
			continue
		}
		s.rebuild()
	}
}

// members lists the sessions of the batch.
func (l *loop) members() []*session {
	var m []*session
	last := int32(-1)
	for _, q := range l.batch.Seqs {
		if q != last {
			m = append(m, l.sessions[q])
			last = q
		}
	}
	return m
}

// emit gets a row of logits and lets its session choose.
func (l *loop) emit(row int32, logits []float32) error {
	s := l.sessions[l.batch.Seqs[row]]
	if s.job.each != nil {
		s.give(int(l.batch.Pos[row]), logits)
	} else {
		s.next(row, logits)
	}
	return nil
}

// advance moves the sessions on by what the batch held.
func (l *loop) advance() {
	for i := 0; i < len(l.batch.Seqs); {
		s, n := l.sessions[l.batch.Seqs[i]], 1
		for i+n < len(l.batch.Seqs) && l.batch.Seqs[i+n] == s.seq {
			n++
		}
		s.advance(n)
		i += n
	}
}

// do runs f on the loop's thread between two batches.
func (l *loop) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case l.calls <- func() { f(); close(done) }:
		<-done
		return nil
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
