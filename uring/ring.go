package uring

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

// This file alone knows giouring (v0.0.0-20230826085535-69588b89acb9) and goes round its faults:
//
//   - RegisterFiles hands 64-bit integers to a kernel that reads 32-bit ones: files are registered by the raw call.
//   - Prepare... leaves flags of an entry's former use in place: every entry is cleared first.
//   - PeekBatchCQE fills its slice with stale entries: completions are taken one by one.
//   - The size of the completion queue cannot be chosen: it is twice the submission queue, which bounds what flies.
//   - UserData by pointer hides the pointer from the garbage collector: it holds a number.
//   - Time-outs, registered ring descriptors, tags, SetupNoMmap and NO_SQARRAY are broken: none is used.
type ring struct {
	r       *giouring.Ring
	fds     []int32
	files   bool  // fds are registered
	buffers bool  // regions are registered
	polled  bool  // the kernel takes requests by itself
	single  bool  // the kernel refuses other threads
	flagged bool  // the kernel says when there are completions to fetch
	first   []int // per region, the number of its first registered piece
	shift   int   // a piece has 1 << shift bytes
	regions [][]byte
}

// A registered buffer has at most 1 GiB, and there are at most 16,384 of them (Linux: io_uring_register(2)).
const (
	pieceShift = 30
	maxPieces  = 1 << 14
)

// pieces is the number of buffers that a region is registered as.
func pieces(region []byte) int { return (len(region)-1)>>pieceShift + 1 }

// setupFlags in the order they are tried: with DEFER_TASKRUN (Linux 6.1) completions cost no interrupt of the computing
// thread, and TASKRUN_FLAG (5.19) says when there are any to fetch; COOP_TASKRUN (5.19) saves some interrupts.
var setupFlags = []uint32{
	giouring.SetupSingleIssuer | giouring.SetupDeferTaskrun | giouring.SetupTaskrunFlag,
	giouring.SetupCoopTaskrun,
	0,
}

// pollFlags are those of a ring that the kernel polls; DEFER_TASKRUN excludes it.
var pollFlags = []uint32{giouring.SetupSQPoll | giouring.SetupSingleIssuer, giouring.SetupSQPoll}

// openRing makes a ring for so many requests and proves it with one round trip. The error is what the kernel says, with
// the call that said it.
func openRing(depth int, flags []uint32) (*ring, error) {
	var err error
	for _, f := range flags {
		r := &ring{r: giouring.NewRing(), shift: pieceShift, polled: f&giouring.SetupSQPoll != 0, flagged: f&giouring.SetupTaskrunFlag != 0, single: f&giouring.SetupSingleIssuer != 0}
		if err = retry(func() error { return r.r.QueueInit(uint32(depth), f) }); err != nil {
			err = fmt.Errorf("io_uring_setup: %w", named(err))
			if errors.Is(err, unix.EINVAL) {
				continue // flags of a later kernel
			}
			return nil, err
		}
		if err = r.prove(); err != nil {
			r.r.QueueExit()
			return nil, err
		}
		return r, nil
	}
	return nil, err
}

// prove runs a request that does nothing, and asks for IORING_OP_READ (Linux 5.6).
func (r *ring) prove() error {
	e := r.r.GetSQE()
	*e = giouring.SubmissionQueueEntry{}
	e.PrepareNop()
	if err := retry(func() error { return r.enter(1) }); err != nil {
		return fmt.Errorf("io_uring_enter: %w", named(err))
	}
	if _, res, ok := r.pop(); !ok || res != 0 {
		return fmt.Errorf("io_uring_enter: no-op gave %d, found %v: %w", res, ok, unix.ENOSYS)
	}
	probe, err := r.r.GetProbeRing()
	if errors.Is(err, unix.EINVAL) || err == nil && !probe.IsSupported(giouring.OpRead) {
		return fmt.Errorf("io_uring_register: no IORING_OP_READ, Linux 5.6 has it: %w", named(unix.ENOSYS))
	}
	return nil // refused by a policy: registering will be, too, plain reads need not
}

// registerFiles lets requests name files by number.
func (r *ring) registerFiles() error {
	_, errno := r.r.Register(r.r.RingFd(), giouring.RegisterFiles, unsafe.Pointer(&r.fds[0]), uint32(len(r.fds)))
	runtime.KeepAlive(r.fds)
	if errno != 0 {
		return fmt.Errorf("io_uring_register of %d files: %w", len(r.fds), named(errno))
	}
	r.files = true
	return nil
}

// registerBuffers pins the regions, in pieces of at most 1 GiB.
func (r *ring) registerBuffers() error {
	var list []syscall.Iovec
	bytes := 0
	for i, region := range r.regions {
		r.first[i] = len(list)
		bytes += len(region)
		for len(region) > 0 {
			n := min(len(region), 1<<r.shift)
			list = append(list, syscall.Iovec{Base: &region[0], Len: uint64(n)})
			region = region[n:]
		}
	}
	if _, err := r.r.RegisterBuffers(list); err != nil {
		return fmt.Errorf("io_uring_register of %d bytes of buffers: %w", bytes, named(err))
	}
	r.buffers = true
	return nil
}

func (r *ring) push(file FileID, region int, target []byte, offset int64, user uint64) bool {
	e := r.r.GetSQE()
	if e == nil {
		return false
	}
	*e = giouring.SubmissionQueueEntry{}
	fd, flags := int(r.fds[file]), uint8(0)
	if r.files {
		fd, flags = int(file), giouring.SqeFixedFile
	}
	addr := uintptr(unsafe.Pointer(&target[0]))
	if piece, ok := r.piece(region, addr, len(target)); ok {
		e.PrepareReadFixed(fd, addr, uint32(len(target)), uint64(offset), piece)
	} else {
		e.PrepareRead(fd, addr, uint32(len(target)), uint64(offset))
	}
	e.Flags, e.UserData = flags, user
	return true
}

// piece finds the registered buffer that holds n bytes at addr. One that crosses the border of two is in none.
func (r *ring) piece(region int, addr uintptr, n int) (int, bool) {
	if !r.buffers {
		return 0, false
	}
	from := addr - uintptr(unsafe.Pointer(&r.regions[region][0]))
	a, z := from>>r.shift, (from+uintptr(n)-1)>>r.shift
	return r.first[region] + int(a), a == z
}

func (r *ring) unsent() int { return int(r.r.SQReady()) }

func (r *ring) enter(wait int) error {
	if wait == 0 && r.flagged && r.unsent() == 0 {
		return r.send() // of nothing: enters only to fetch completions, so that a look that finds none costs no call
	}
	if wait > 0 && r.unsent() > 0 {
		if err := r.send(); err != nil {
			return err
		}
	}
	if wait > 0 && (r.polled || r.unsent() == 0) { // else fewer may be on their way
		return r.wait(wait)
	}
	_, err := r.r.SubmitAndGetEvents()
	return err
}

// wait blocks without telling the scheduler. Told, it would take the P away from a thread that never yields every 10 ms,
// look every 20 us for a while after that, and hand the P back over two futexes: that doubled the user time of a program
// that only reads (docs/io.md). The signal by which it stops a goroutine, for a collection say, ends the call with EINTR.
func (r *ring) wait(n int) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.r.RingFd()), 0, uintptr(n), uintptr(giouring.EnterGetEvents), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (r *ring) send() error {
	_, err := r.r.Submit()
	return err
}

func (r *ring) pop() (user uint64, res int32, ok bool) {
	if r.r.CQReady() == 0 {
		return 0, 0, false
	}
	e, err := r.r.PeekCQE()
	if err != nil || e == nil {
		return 0, 0, false
	}
	user, res = e.UserData, e.Res
	r.r.CQESeen(e)
	return user, res, true
}

// close unregisters first: a ring that is only closed keeps its memory pinned for a while.
func (r *ring) close() error {
	var first error
	if r.buffers {
		if _, err := r.r.UnregisterBuffers(); err != nil {
			first = fmt.Errorf("uring: close: unregister buffers: %w", err)
		}
	}
	if r.files {
		if _, err := r.r.UnregisterFiles(); err != nil && first == nil {
			first = fmt.Errorf("uring: close: unregister files: %w", err)
		}
	}
	r.r.QueueExit()
	return first
}
