package uring

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Options of Open. Zero values are the defaults.
type Options struct {
	// Backend: "auto" or "" takes the ring, or pread where the ring is refused; "ring", "pread" and "null" are taken or
	// are an error of kind ErrBackend.
	Backend string
	// Depth: most reads accepted and not yet done, 1 to 4096. Default 128: the misses of a layer (8 experts of 3 slices)
	// and a prompt's stream of experts beside them.
	Depth int
	// Threads of pread, 1 to 64. Default 4: they reach the bandwidth that the ring has with 2 experts in flight, and 8
	// no more.
	Threads int
	// PrefetchBytes: a Prefetch is started while fewer bytes are in flight. Default DefaultInFlight.
	PrefetchBytes int

	// For measuring what they are worth; they concern the ring alone.
	PlainBuffers bool // memory is not registered
	PlainFiles   bool // files are not registered
	SQPoll       bool // a thread of the kernel takes requests by polling, at the price of a core (IORING_SETUP_SQPOLL)
}

// DefaultInFlight is how many bytes in flight keep a disk busy: 576 KiB reads reach full bandwidth at 3 to 4 MB, and
// latency grows in line with what is beyond. epq-uring iotest --tune finds the number of a machine's own disk.
const DefaultInFlight = 4 << 20

const (
	defaultDepth, maxDepth     = 128, 4096
	defaultThreads, maxThreads = 4, 64
)

// Open makes a device that reads files into regions. Regions are memory outside the Go heap or kept alive by the
// device, at best of 1 GiB or less each: a read across a multiple of 1 GiB is right, but not from a registered buffer.
// They should be touched before: the ring pins them, and pages that are not there are faulted in on one thread.
//
// What the machine refuses is replaced by the next best way and told in Limits().Lost. The errno that refused is found
// by errors.Is where it is an error.
func Open(files *Files, regions [][]byte, opt Options) (Device, error) {
	if err := opt.check(files, regions); err != nil {
		return nil, err
	}
	q := newQueue(files, regions, opt.Depth)
	limits := Limits{Backend: opt.Backend, Depth: opt.Depth, Lost: append([]Loss(nil), files.Lost()...)}
	switch opt.Backend {
	case "null":
		return &nullDevice{queue: q, limits: limits}, nil
	case "pread":
		return newPread(q, opt.Threads, limits, unix.Pread), nil
	}
	d, refused, err := openRingDevice(q, limits, opt)
	switch {
	case err != nil:
		return nil, err
	case refused == nil:
		return d, nil
	case opt.Backend == "ring":
		return nil, fmt.Errorf("uring: backend ring: %w: %s: %w", refused.err, refused.remedy, ErrBackend)
	}
	limits.Backend, limits.Lost = "pread", append(limits.Lost, refused.loss())
	return newPread(q, opt.Threads, limits, unix.Pread), nil
}

func (o *Options) check(files *Files, regions [][]byte) error {
	if o.Backend == "" {
		o.Backend = "auto"
	}
	if !slices.Contains([]string{"auto", "ring", "pread", "null"}, o.Backend) {
		return fmt.Errorf("uring: backend %q: want auto, ring, pread or null: %w", o.Backend, ErrBackend)
	}
	if err := bounded(&o.Depth, defaultDepth, maxDepth, "depth"); err != nil {
		return err
	}
	if err := bounded(&o.Threads, defaultThreads, maxThreads, "threads"); err != nil {
		return err
	}
	if err := bounded(&o.PrefetchBytes, DefaultInFlight, 1<<30, "bytes in flight for prefetch"); err != nil {
		return err
	}
	if files.Len() == 0 || len(regions) == 0 {
		return fmt.Errorf("uring: %d files and %d regions: want at least one of each: %w", files.Len(), len(regions), unix.EINVAL)
	}
	count := 0
	for i, r := range regions {
		if len(r) == 0 {
			return fmt.Errorf("uring: region %d has no bytes: %w", i, unix.EINVAL)
		}
		count += pieces(r)
	}
	if count > maxPieces {
		return fmt.Errorf("uring: %d regions of 1 GiB or less: want at most %d: %w", count, maxPieces, unix.EINVAL)
	}
	return nil
}

func bounded(v *int, normal, most int, name string) error {
	if *v == 0 {
		*v = normal
	}
	if *v < 1 || *v > most {
		return fmt.Errorf("uring: %s %d: want 1 to %d: %w", name, *v, most, unix.EINVAL)
	}
	return nil
}

// openRingDevice makes the ring and registers files and memory as far as it may.
func openRingDevice(q queue, limits Limits, opt Options) (Device, *refusal, error) {
	flags := setupFlags
	if opt.SQPoll {
		flags = pollFlags
	}
	r, err := openRing(len(q.ops), flags)
	if err != nil {
		return nil, refuse(err), nil
	}
	r.regions, r.first = q.regions, make([]int, len(q.regions))
	for i := range q.files.list {
		r.fds = append(r.fds, int32(q.files.list[i].fd))
	}
	if !opt.PlainBuffers {
		err = r.registerBuffers()
	}
	if !opt.PlainFiles {
		if filesErr := r.registerFiles(); err == nil {
			err = filesErr
		}
	}
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EBADF) { // no refusal: that memory or file is not there
		return nil, nil, errors.Join(fmt.Errorf("uring: %w", err), r.close())
	}
	if err != nil {
		limits.Lost = append(limits.Lost, unregistered(err))
	}
	limits.Backend, limits.Fixed = "ring", r.buffers
	return &ringDevice{queue: q, kernel: r, limits: limits, owner: unix.Gettid(), single: r.single, window: opt.PrefetchBytes}, nil, nil
}
