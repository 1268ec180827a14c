package iotest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// worker keeps one device busy. Buffers are of one block each.
type worker struct {
	dev     uring.Device
	now     func() time.Duration
	order   *order
	bs      int
	place   func(buffer int) (region int, offset int64)
	memory  func(buffer int) []byte
	verify  bool
	gen     uint64
	pending []uring.Read // not handed in yet
	done    []uring.Done
	begun   []time.Duration // per buffer: before its submission
	sent    []time.Duration // and after
	offset  []int64         // and what it reads
}

func newWorker(dev uring.Device, now func() time.Duration, o *order, depth int) *worker {
	return &worker{
		dev: dev, now: now, order: o, bs: int(o.bs), pending: make([]uring.Read, 0, depth), done: make([]uring.Done, depth),
		begun: make([]time.Duration, depth), sent: make([]time.Duration, depth), offset: make([]int64, depth),
	}
}

// run reads for so long, then waits for what is on its way: as fio does, the time of that counts. It ends early, without
// an error, when ctx does.
func (w *worker) run(ctx context.Context, limit time.Duration, t *tally) error {
	start := w.now()
	t.windows = make([]int64, 0, int(limit/window)+64)
	for b := range w.begun {
		w.want(b)
	}
	flying := 0
	for now := start; ; {
		n, err := w.submit(t)
		if err != nil {
			return err
		}
		if flying += n; flying == 0 {
			t.elapsed = now - start
			return nil
		}
		n, err = w.dev.Wait(1, w.done)
		if err != nil {
			return err
		}
		now = w.now()
		over := now-start >= limit || ctx.Err() != nil
		for _, d := range w.done[:n] {
			if d.Err != nil {
				return errors.Join(d.Err, w.drain(flying-n))
			}
			w.finish(int(d.Tag), now, start, t)
			if !over {
				w.want(int(d.Tag))
			}
		}
		if flying -= n; over {
			w.pending = w.pending[:0]
		}
	}
}

// drain waits for what is on its way after an error.
func (w *worker) drain(flying int) error {
	for flying > 0 {
		n, err := w.dev.Wait(1, w.done)
		if err != nil || n == 0 {
			return err
		}
		flying -= n
	}
	return nil
}

// want queues the next read into a buffer.
func (w *worker) want(b int) {
	region, at := w.place(b)
	w.offset[b] = w.order.next()
	if w.verify {
		spoil(w.memory(b))
	}
	w.pending = append(w.pending, uring.Read{Offset: w.offset[b], Region: region, RegionOffset: at, Length: w.bs, Need: w.bs, Tag: uint64(b)})
}

// submit hands in what the device takes.
func (w *worker) submit(t *tally) (int, error) {
	if len(w.pending) == 0 {
		return 0, nil
	}
	before := w.now()
	n, err := w.dev.Submit(w.pending)
	if err != nil {
		return 0, err
	}
	after := w.now()
	for _, r := range w.pending[:n] {
		w.begun[r.Tag], w.sent[r.Tag] = before, after
		t.slat.add(int64(after - before))
	}
	w.pending = w.pending[:copy(w.pending, w.pending[n:])]
	return n, nil
}

func (w *worker) finish(b int, now, start time.Duration, t *tally) {
	t.reads++
	t.bytes += int64(w.bs)
	t.clat.add(int64(now - w.sent[b]))
	t.lat.add(int64(now - w.begun[b]))
	for i := int((now - start) / window); i >= len(t.windows); {
		t.windows = append(t.windows, 0)
	}
	t.windows[len(t.windows)-1] += int64(w.bs)
	if w.verify {
		t.check(w.memory(b), w.offset[b], w.gen)
	}
}

// bench is what all jobs of a run share.
type bench struct {
	opt    Options
	files  *uring.Files
	path   string
	remove bool  // the file, at the end
	size   int64 // used
	gen    uint64
	small  *mem.Block // pages of 4 KiB
	large  *mem.Block // huge pages
	lost   []uring.Loss
}

// buffers returns memory for so many bytes on pages of a kind, made at the first need as large as any job wants it.
func (b *bench) buffers(huge bool) (*mem.Block, error) {
	at := &b.small
	if huge {
		at = &b.large
	}
	if *at != nil {
		return *at, nil
	}
	most := int64(0)
	for _, j := range b.opt.jobs() {
		most = max(most, j.inFlight())
	}
	block, err := allocate(int(max(most, hugePageBytes)), huge)
	if err != nil {
		return nil, err
	}
	*at = block
	return block, nil
}

// allocate maps memory on pages of a kind and makes them present.
func allocate(bytes int, huge bool) (*mem.Block, error) {
	block, err := mem.Alloc("iotest", bytes)
	if err != nil {
		return nil, err
	}
	if huge {
		block.Touch(runtime.GOMAXPROCS(0))
		return block, nil
	}
	// Small pages are left to registration to fault in, as with fio: which pages they get, side by side or scattered, decides
	// what a queue of few segments makes of them.
	err = unix.Madvise(block.Bytes(), unix.MADV_NOHUGEPAGE)
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: a kernel without huge pages
		return nil, errors.Join(fmt.Errorf("iotest: madvise: %w", err), block.Free())
	}
	return block, nil
}

const hugePageBytes = 2 << 20

// turn runs a job for so long and adds to its tally.
func (b *bench) turn(ctx context.Context, j *job, limit time.Duration, t *tally) error {
	block, err := b.buffers(j.huge)
	if err != nil {
		return err
	}
	if b.opt.Direct == uring.DirectOff {
		dropCache(b.path)
	}
	for i := len(j.orders); i < b.opt.NumJobs; i++ {
		j.orders = append(j.orders, newOrder(b.size, j.bs, int64(b.files.Align(0)), b.opt.RW == "randread", uint64(i)))
	}
	share := int64(j.depth) * j.bs
	parts, errs := make([]tally, j.opt.NumJobs), make([]error, j.opt.NumJobs)
	// The devices are opened and closed outside of the time that counts.
	ready, begin, ended, leave := make(chan bool), make(chan struct{}), make(chan bool), make(chan struct{})
	left := make(chan bool)
	for i := range j.opt.NumJobs {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			defer func() { left <- true }()
			w, err := b.worker(j, i, block.Bytes()[int64(i)*share:int64(i+1)*share])
			ready <- true
			<-begin
			if err == nil {
				err = w.run(ctx, limit, &parts[i])
			}
			ended <- true
			<-leave
			if w != nil {
				err = errors.Join(err, w.dev.Close())
			}
			errs[i] = err
		}()
	}
	all := func(c chan bool) {
		for range j.opt.NumJobs {
			<-c
		}
	}
	all(ready)
	user, system := processorTime()
	close(begin)
	all(ended)
	userEnd, systemEnd := processorTime()
	close(leave)
	all(left)
	sum := gather(parts)
	sum.user, sum.system = userEnd-user, systemEnd-system
	t.add(sum)
	return errors.Join(errs...)
}

// gather adds up what threads did at the same time.
func gather(parts []tally) *tally {
	sum := &tally{}
	for i := range parts {
		p := &parts[i]
		sum.reads, sum.bytes, sum.elapsed = sum.reads+p.reads, sum.bytes+p.bytes, max(sum.elapsed, p.elapsed)
		sum.join(p)
		if i == 0 {
			sum.windows = p.windows
		}
		sum.windows = sum.windows[:min(len(sum.windows), len(p.windows))]
		for k := range sum.windows {
			if i > 0 {
				sum.windows[k] += p.windows[k]
			}
		}
	}
	if n := int(sum.elapsed / window); n < len(sum.windows) {
		sum.windows = sum.windows[:n]
	}
	return sum
}

// worker opens the device of one thread over its share of the memory.
func (b *bench) worker(j *job, thread int, memory []byte) (*worker, error) {
	per := int(min(int64(j.depth), regionBytes/j.bs)) // buffers of a region
	var regions [][]byte
	for rest := memory; len(rest) > 0; {
		n := min(len(rest), per*int(j.bs))
		regions, rest = append(regions, rest[:n:n]), rest[n:]
	}
	dev, err := uring.Open(b.files, regions, j.device())
	if err != nil {
		return nil, err
	}
	if thread == 0 {
		b.note(dev.Limits().Lost)
	}
	start := time.Now()
	w := newWorker(dev, func() time.Duration { return time.Since(start) }, j.orders[thread], j.depth)
	w.place = func(i int) (int, int64) { return i / per, int64(i%per) * j.bs }
	w.memory = func(i int) []byte { return memory[int64(i)*j.bs : int64(i+1)*j.bs] }
	w.verify, w.gen = b.opt.Verify, b.gen
	return w, nil
}

// regionBytes is the largest buffer that a ring registers.
const regionBytes = 1 << 30

func processorTime() (user, system time.Duration) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, 0
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}

// note keeps what the machine refused, each once.
func (b *bench) note(lost []uring.Loss) {
	for _, l := range lost {
		known := false
		for _, k := range b.lost {
			known = known || k.What == l.What
		}
		if !known {
			b.lost = append(b.lost, l)
		}
	}
}
