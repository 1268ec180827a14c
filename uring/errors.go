package uring

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Kinds of errors, for errors.Is.
var (
	// ErrShort: the file gave no more bytes before those needed were there: it was cut, or the disk is not well.
	ErrShort = errors.New("short read")
	// ErrCanceled: the read was cancelled; its bytes are not to be used.
	ErrCanceled = errors.New("read cancelled")
	// ErrClosed: the device is closed, or gave up after an error of the ring.
	ErrClosed = errors.New("device is closed")
	// ErrRead: a Read that no device could do (misaligned, outside its region, no such file). The caller is wrong.
	ErrRead = errors.New("impossible read")
	// ErrThread: the ring was used from another OS thread than the one that opened it.
	ErrThread = errors.New("ring used from another thread")
	// ErrBackend: no such backend, or the one asked for by name is refused here.
	ErrBackend = errors.New("backend not available")
	// ErrChanged: a file is not the one that was opened.
	ErrChanged = errors.New("file changed while in use")
	// ErrDirect: O_DIRECT was required and is refused.
	ErrDirect = errors.New("O_DIRECT refused")
)

// ReadError is the error of a Done.
type ReadError struct {
	File   string // path
	Offset int64  // of the Read
	Want   int    // its Need
	Got    int
	Err    error // an errno, ErrShort or ErrCanceled
}

func (e *ReadError) Error() string {
	s := fmt.Sprintf("uring: %s: read at %d: wanted %d bytes, got %d: %v", e.File, e.Offset, e.Want, e.Got, e.Err)
	if advice := Advice(e.Err); advice != "" {
		s += ": " + advice
	}
	return s
}

func (e *ReadError) Unwrap() error { return e.Err }

// Advice says what to do about a read that failed, "" where only its Err can tell.
func Advice(err error) string {
	var errno unix.Errno
	switch {
	case errors.Is(err, ErrShort):
		return "the file ends early: check its size, copy or download it again"
	case !errors.As(err, &errno):
		return ""
	}
	switch errno {
	case unix.EIO, unix.EREMOTEIO, unix.ENODATA, unix.EBADMSG, unix.EUCLEAN, unix.EILSEQ, unix.ETIMEDOUT:
		return "check the disk (dmesg, smartctl)"
	case unix.ENXIO, unix.ENODEV, unix.ESTALE, unix.ENOLINK:
		return "the disk or the mount is gone"
	case unix.EINVAL:
		return "the file system refuses this offset, length or address with O_DIRECT"
	case unix.EOPNOTSUPP:
		return "the file system does not read this way"
	case unix.EFAULT:
		return "the memory is unmapped or no longer registered"
	case unix.EBADF:
		return "the file was closed too early"
	case unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN, unix.EBUSY, unix.EINTR:
		return "the kernel is short of memory or requests"
	case unix.EPERM, unix.EACCES:
		return "a security policy refuses it"
	}
	return ""
}

// Check says whether a device with this alignment and a region of so many bytes could ever do r. The error is of kind
// ErrRead. The file's size is no part of it: reading past the end is an error of the Done, if Need is not met.
func (r *Read) Check(align int, regionBytes int64) error {
	a := int64(align)
	switch {
	case r.Length <= 0 || r.Need <= 0 || r.Need > r.Length || r.Length > 1<<30:
		return fmt.Errorf("uring: read at %d: length %d, need %d, want 0 < need <= length <= 1 GiB: %w", r.Offset, r.Length, r.Need, ErrRead)
	case r.Offset < 0 || r.Offset > 1<<62 || r.Offset%a != 0 || int64(r.Length)%a != 0 || r.RegionOffset%a != 0:
		return fmt.Errorf("uring: read at %d: length %d, region offset %d, want multiples of %d: %w", r.Offset, r.Length, r.RegionOffset, align, ErrRead)
	case r.RegionOffset < 0 || r.RegionOffset > regionBytes-int64(r.Length):
		return fmt.Errorf("uring: read at %d: %d bytes to %d of region %d, which has %d: %w", r.Offset, r.Length, r.RegionOffset, r.Region, regionBytes, ErrRead)
	}
	return nil
}
