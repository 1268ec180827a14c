package pager

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	"github.com/epq-uring/epq-uring/uring"
)

// Kinds of errors; match with errors.Is. A read that failed for good is a *ReadError as well.
var (
	ErrSlots   = errors.New("impossible number of slots")
	ErrOptions = errors.New("bad option")
	ErrExpert  = errors.New("no such expert, or named twice")
	ErrNested  = errors.New("called from within its own function")
	ErrClosed  = errors.New("closed")
	// ErrDevice: the device itself failed, not a single read; nothing can be read any more.
	ErrDevice = errors.New("the device failed")
	// ErrVerify: the bytes arrived, but Options.Verify refused them.
	ErrVerify = errors.New("wrong content")
	// ErrRead is the kind of every *ReadError.
	ErrRead = errors.New("read failed")
)

// ReadError says which part of which expert could not be read. Others are not affected, and the next use tries again.
type ReadError struct {
	Part   string // file, tensor, layer, expert, offset and size
	Wanted int    // bytes, widening included as far as it must arrive
	Got    int
	Tries  int
	Err    error // the last try's
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("pager: %s: got %d of %d bytes in %d tries: %v: %s", e.Part, e.Got, e.Wanted, e.Tries, cause(e.Err),
		cmp.Or(uring.Advice(e.Err), "check the disk"))
}

// Unwrap lets errors.Is find ErrRead and what the device reported.
func (e *ReadError) Unwrap() []error { return []error{ErrRead, e.Err} }

// cause is the errno, or the innermost error: file and offset were said.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%w (errno %d)", errno, int(errno))
	}
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
