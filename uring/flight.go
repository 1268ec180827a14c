package uring

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/invariants"
)

// kernel is the ring as the device sees it; tests put faults between the two.
type kernel interface {
	// push adds a request for file number file: len(target) bytes at offset. False: the submission queue is full.
	push(file FileID, region int, target []byte, offset int64, user uint64) bool
	// unsent is how many pushed requests the kernel did not take yet.
	unsent() int
	// enter hands over what was pushed, waits for so many completions and brings out all there are. The errno as it is.
	enter(wait int) error
	// send is enter without looking for completions.
	send() error
	// pop takes the oldest completion.
	pop() (user uint64, res int32, ok bool)
	// close unregisters and closes. Nothing flies.
	close() error
}

// ringDevice keeps reads in three places: queued (waiting), in flight (in the submission queue or in the kernel), done
// (finished). What flies is never more than the depth, which the submission queue holds and the completion queue twice.
type ringDevice struct {
	queue
	kernel kernel
	limits Limits
	owner  int  // the thread that opened the ring
	single bool // the kernel refuses every other thread
	flying int
	bytes  int   // of what flies
	window int   // a Prefetch is started while bytes is below: more gains nothing and delays the demand that comes after it
	dead   error // why the ring is of no more use
}

var _ Device = (*ringDevice)(nil)

func (d *ringDevice) Limits() Limits { return d.limits }

// usable says whether the ring works and the caller may use it. A ring of one thread (SINGLE_ISSUER) finds that out by
// itself, with EEXIST, and asking for the thread's number is half of the system calls of a read.
func (d *ringDevice) usable(call string) error {
	switch {
	case d.dead != nil:
		return fmt.Errorf("uring: %s: %w", call, d.dead)
	case d.single && !invariants.Enabled:
		return nil
	}
	return d.owned(call)
}

// owned finds misuse before the kernel does.
func (d *ringDevice) owned(call string) error {
	if id := unix.Gettid(); id != d.owner {
		return fmt.Errorf("uring: %s: on thread %d, the ring was opened on thread %d: call runtime.LockOSThread before Open and stay on that goroutine: %w",
			call, id, d.owner, ErrThread)
	}
	return nil
}

func (d *ringDevice) Submit(reads []Read) (int, error) {
	if err := d.usable("submit"); err != nil {
		return 0, err
	}
	n, err := d.accept(reads)
	if err != nil {
		return 0, err
	}
	if d.start(); d.kernel.unsent() > 0 {
		if err := d.submit(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// submit hands over without waiting. What the kernel cannot take now it is given again by the next Wait.
func (d *ringDevice) submit() error {
	for {
		switch err := d.kernel.send(); err {
		case unix.EINTR:
		case nil, unix.EAGAIN, unix.EBUSY:
			return nil
		default:
			return d.die("io_uring_enter", err)
		}
	}
}

// Wait enters the kernel even to look, unless that says there is nothing: with DEFER_TASKRUN completions are made only there.
func (d *ringDevice) Wait(least int, done []Done) (int, error) {
	if err := d.usable("wait"); err != nil {
		return 0, err
	}
	n := d.give(done)
	for first := true; ; first = false {
		d.start()
		missing := max(0, min(least, len(done))-n)
		missing = min(missing, d.flying)
		if !first && missing == 0 && d.kernel.unsent() == 0 {
			return n, nil
		}
		if err := d.enter(missing); err != nil {
			return n, err
		}
		n += d.give(done[n:])
	}
}

// start moves reads from queued to in flight.
func (d *ringDevice) start() {
	for {
		at, ok := d.take(d.bytes < d.window)
		if !ok {
			return
		}
		t := &d.ops[at]
		target, offset := d.rest(at)
		if !d.kernel.push(t.File, t.Region, target, offset, uint64(t.life)<<32|uint64(at)) {
			t.flying = false
			d.waiting[t.Class].pushFront(at)
			return
		}
		d.flying++
		d.bytes += len(target)
	}
}

// enter goes into the kernel and settles what comes out. Shortages pass: take out what is done, then try again.
func (d *ringDevice) enter(wait int) error {
	for try := 0; ; try++ {
		err := d.kernel.enter(wait)
		settled, broken := d.reap()
		if broken != nil {
			return broken
		}
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR && settled == 0: // a signal came first
			try = 0
		case err == unix.EINTR, (err == unix.EAGAIN || err == unix.EBUSY) && settled > 0:
			return nil // the caller counts again
		case (err == unix.EAGAIN || err == unix.EBUSY) && try < maxTries:
			rest(try)
		default:
			return d.die("io_uring_enter", err)
		}
	}
}

// rest lets a shortage pass: at once it is over mostly, then it takes the kernel's reclaim, and a second is enough for
// that.
func rest(try int) {
	if try < 16 {
		runtime.Gosched()
		return
	}
	time.Sleep(time.Second / maxTries)
}

// reap settles all completions that are there.
func (d *ringDevice) reap() (n int, err error) {
	for {
		user, res, ok := d.kernel.pop()
		if !ok {
			return n, nil
		}
		at := int(uint32(user))
		if at >= len(d.ops) || !d.ops[at].flying || d.ops[at].life != uint32(user>>32) {
			return n, d.die("completion", fmt.Errorf("of request %#x, which is not in flight", user))
		}
		t := &d.ops[at]
		d.flying--
		d.bytes -= t.Length - t.from
		if res < 0 {
			d.settle(int32(at), 0, unix.Errno(-res))
		} else {
			d.settle(int32(at), int(res), 0)
		}
		n++
	}
}

// die ends the device: what the ring says can no longer be trusted.
func (d *ringDevice) die(call string, err error) error {
	why, kind := "", ErrClosed
	switch err {
	case unix.EEXIST:
		kind = fmt.Errorf("%w: %w", ErrThread, ErrClosed)
	case unix.EBADR:
		why = ": the kernel lost completions"
	case unix.EBADF, unix.EBADFD, unix.ENXIO, unix.EOPNOTSUPP:
		why = ": the descriptor of the ring is no ring any more"
	case unix.EFAULT, unix.EINVAL:
		why = ": the kernel does not know such a call"
	case unix.ENOMEM:
		why = ": the kernel is short of memory"
	case unix.EPERM, unix.EACCES:
		why = ": a security policy refuses it"
	}
	d.dead = fmt.Errorf("%s: %w%s: %w", call, named(err), why, kind)
	return fmt.Errorf("uring: %w", d.dead)
}

func (d *ringDevice) Cancel(tag uint64) { d.cancel(tag) }

// Close waits for what flies, unregisters the memory and closes the ring. After an error of the ring itself the kernel
// may still write: the error says so.
func (d *ringDevice) Close() error {
	if d.kernel == nil {
		return nil
	}
	if d.dead == nil {
		if err := d.owned("close"); err != nil {
			return err
		}
	}
	d.cancelAll()
	var first error
	for d.dead == nil && d.flying > 0 {
		first = d.enter(d.flying)
	}
	if first == nil && d.flying > 0 {
		first = fmt.Errorf("uring: close: %d reads are in flight and may still write: %w", d.flying, d.dead)
	}
	if err := d.kernel.close(); first == nil {
		first = err
	}
	d.kernel, d.dead = nil, ErrClosed
	return first
}
