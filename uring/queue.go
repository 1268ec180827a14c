package uring

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxTries is how often in a row one request is repeated because the kernel was short of something.
const maxTries = 1000

// transfer is one accepted Read and how far it came.
type transfer struct {
	Read
	got      int // bytes there, from the start of the range
	from     int // where the running request starts in the range: a multiple of the alignment
	tries    int // repeats in a row without progress
	canceled bool
	flying   bool
	life     uint32 // counts the transfers that used this place, so that a completion can be told from an older one's
	err      error
}

// step takes the result of a request and says whether another one is needed, for the rest.
//
// A direct read may be short at any byte, and the rest must begin aligned. Alignment 4096, 12,288 bytes wanted, 5,000
// came: the next request asks for 8,192 bytes from 4,096. If it gives 904 or fewer, nothing is gained: ErrShort.
func (t *transfer) step(n int, errno unix.Errno, align int) (again bool) {
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR, unix.EBUSY, unix.ENOBUFS:
		if t.tries++; t.tries < maxTries && !t.canceled {
			return true
		}
		return t.fail(errno)
	case unix.ECANCELED:
		return t.fail(fmt.Errorf("%w: %w", ErrCanceled, errno))
	default:
		return t.fail(named(errno))
	}
	got := t.from + n
	if got >= t.Need {
		t.got, t.err = got, nil
		return false
	}
	if got <= t.got {
		return t.fail(ErrShort)
	}
	t.got, t.from, t.tries = got, got&^(align-1), 0
	if t.canceled {
		return t.fail(ErrCanceled)
	}
	return true
}

func (t *transfer) fail(err error) (again bool) {
	if t.canceled {
		err = ErrCanceled
	}
	t.err = err
	return false
}

// queue holds the accepted reads of a device: waiting by class, flying, finished. Each is in exactly one of them. All
// memory is taken at the start.
type queue struct {
	files    *Files
	regions  [][]byte
	ops      []transfer
	free     []int32
	waiting  [2]fifo // by Class
	finished fifo
}

func newQueue(files *Files, regions [][]byte, depth int) queue {
	q := queue{files: files, regions: regions, ops: make([]transfer, depth), free: make([]int32, depth)}
	for i := range q.free {
		q.free[i] = int32(depth - 1 - i)
	}
	q.waiting = [2]fifo{newFifo(depth), newFifo(depth)}
	q.finished = newFifo(depth)
	return q
}

// accept takes as many reads as there are free places.
func (q *queue) accept(reads []Read) (int, error) {
	n := min(len(reads), len(q.free))
	for i := range reads[:n] {
		if err := q.check(&reads[i]); err != nil {
			return 0, err
		}
	}
	for i := range reads[:n] {
		at := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		q.ops[at] = transfer{Read: reads[i], life: q.ops[at].life + 1}
		q.waiting[reads[i].Class].push(at)
	}
	return n, nil
}

func (q *queue) check(r *Read) error {
	if r.File < 0 || int(r.File) >= q.files.Len() || r.Region < 0 || r.Region >= len(q.regions) || r.Class > Prefetch {
		return fmt.Errorf("uring: read at %d: file %d of %d, region %d of %d, class %d of 2: %w",
			r.Offset, r.File, q.files.Len(), r.Region, len(q.regions), r.Class, ErrRead)
	}
	return r.Check(q.files.Align(r.File), int64(len(q.regions[r.Region])))
}

// take gives the next read to start, Demand first.
func (q *queue) take(prefetch bool) (at int32, ok bool) {
	for class := range q.waiting {
		if Class(class) == Prefetch && !prefetch {
			break
		}
		if q.waiting[class].n > 0 {
			at = q.waiting[class].pop()
			q.ops[at].flying = true
			return at, true
		}
	}
	return 0, false
}

// settle takes the result of a request: the read waits again, before all others of its class, or is finished.
func (q *queue) settle(at int32, n int, errno unix.Errno) {
	t := &q.ops[at]
	t.flying = false
	if t.step(n, errno, q.files.Align(t.File)) {
		q.waiting[t.Class].pushFront(at)
		return
	}
	q.finished.push(at)
}

// rest is where the next request of a read goes.
func (q *queue) rest(at int32) (target []byte, offset int64) {
	t := &q.ops[at]
	return q.regions[t.Region][t.RegionOffset+int64(t.from) : t.RegionOffset+int64(t.Length)], t.Offset + int64(t.from)
}

// give hands out finished reads and frees their places.
func (q *queue) give(done []Done) (n int) {
	for n < len(done) && q.finished.n > 0 {
		at := q.finished.pop()
		done[n] = q.report(&q.ops[at])
		q.free = append(q.free, at)
		n++
	}
	return n
}

func (q *queue) report(t *transfer) Done {
	d := Done{Tag: t.Tag, N: t.got}
	if t.err != nil {
		d.Err = &ReadError{File: q.files.list[t.File].path, Offset: t.Offset, Want: t.Need, Got: t.got, Err: t.err}
	}
	return d
}

// cancel marks the reads with a tag. Those that wait will not start; those that fly end as they may.
func (q *queue) cancel(tag uint64) {
	for i := range q.ops {
		if t := &q.ops[i]; t.Tag == tag {
			t.canceled = true
		}
	}
	q.sweep()
}

// cancelAll is cancel for every read.
func (q *queue) cancelAll() {
	for i := range q.ops {
		q.ops[i].canceled = true
	}
	q.sweep()
}

// sweep finishes what is cancelled and waits.
func (q *queue) sweep() {
	for class := range q.waiting {
		for range q.waiting[class].n {
			at := q.waiting[class].pop()
			if !q.ops[at].canceled {
				q.waiting[class].push(at)
				continue
			}
			q.ops[at].err = ErrCanceled
			q.finished.push(at)
		}
	}
}

// fifo is a ring of places.
type fifo struct {
	at      []int32
	head, n int
}

func newFifo(size int) fifo { return fifo{at: make([]int32, size)} }

func (f *fifo) push(v int32) {
	f.at[(f.head+f.n)%len(f.at)] = v
	f.n++
}

func (f *fifo) pushFront(v int32) {
	f.head = (f.head + len(f.at) - 1) % len(f.at)
	f.at[f.head] = v
	f.n++
}

func (f *fifo) pop() int32 {
	v := f.at[f.head]
	f.head = (f.head + 1) % len(f.at)
	f.n--
	return v
}
