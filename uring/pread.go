package uring

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// preadDevice reads with blocking calls on a few goroutines.
type preadDevice struct {
	mu sync.Mutex // guards all below
	queue
	flying int
	closed bool
	work   sync.Cond // something waits, or closed
	ready  sync.Cond // something finished

	limits  Limits
	pread   func(fd int, p []byte, offset int64) (int, error)
	workers sync.WaitGroup
}

var _ Device = (*preadDevice)(nil)

func newPread(q queue, threads int, limits Limits, pread func(int, []byte, int64) (int, error)) *preadDevice {
	d := &preadDevice{queue: q, limits: limits, pread: pread}
	d.work.L, d.ready.L = &d.mu, &d.mu
	for range threads {
		d.workers.Go(d.read)
	}
	return d
}

// read is a worker: it does one request after another until the device is closed.
func (d *preadDevice) read() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		at, ok := d.take(true)
		if !ok {
			if d.closed {
				return
			}
			d.work.Wait()
			continue
		}
		d.flying++
		target, offset := d.rest(at)
		fd := d.files.list[d.ops[at].File].fd
		d.mu.Unlock()
		n, err := d.pread(fd, target, offset)
		d.mu.Lock()
		d.flying--
		d.settle(at, max(0, n), errnoOf(err))
		d.ready.Signal()
	}
}

// errnoOf is the errno of a system call's error, which nothing has wrapped.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := err.(unix.Errno); ok {
		return errno
	}
	return unix.EIO
}

func (d *preadDevice) Limits() Limits { return d.limits }

func (d *preadDevice) Submit(reads []Read) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, fmt.Errorf("uring: submit: %w", ErrClosed)
	}
	n, err := d.accept(reads)
	for range n {
		d.work.Signal()
	}
	return n, err
}

func (d *preadDevice) Wait(least int, done []Done) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, fmt.Errorf("uring: wait: %w", ErrClosed)
	}
	least = min(least, len(done))
	n := d.give(done)
	for n < least && d.flying+d.waiting[Demand].n+d.waiting[Prefetch].n > 0 {
		d.ready.Wait()
		n += d.give(done[n:])
	}
	return n, nil
}

func (d *preadDevice) Cancel(tag uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel(tag)
}

// Close drops what waits and lets what runs end.
func (d *preadDevice) Close() error {
	d.mu.Lock()
	d.cancelAll()
	d.closed = true
	d.work.Broadcast()
	d.mu.Unlock()
	d.workers.Wait()
	return nil
}
