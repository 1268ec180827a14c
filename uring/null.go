package uring

import "fmt"

// nullDevice reads nothing: every read is done at once and leaves the memory as it is. It measures what everything but
// the disk costs.
type nullDevice struct {
	queue
	limits Limits
	closed bool
}

var _ Device = (*nullDevice)(nil)

func (d *nullDevice) Limits() Limits { return d.limits }

func (d *nullDevice) Submit(reads []Read) (int, error) {
	if d.closed {
		return 0, fmt.Errorf("uring: submit: %w", ErrClosed)
	}
	return d.accept(reads)
}

func (d *nullDevice) Wait(_ int, done []Done) (int, error) {
	if d.closed {
		return 0, fmt.Errorf("uring: wait: %w", ErrClosed)
	}
	for at, ok := d.take(true); ok; at, ok = d.take(true) {
		d.settle(at, d.ops[at].Length, 0)
	}
	return d.give(done), nil
}

func (d *nullDevice) Cancel(tag uint64) { d.cancel(tag) }

func (d *nullDevice) Close() error {
	d.closed = true
	return nil
}
