package mem

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map maps size bytes of a file from offset, read-only and shared: clean pages that the kernel may drop and read again.
// Any offset will do. A range outside the file is an error (ErrSize); should the file be cut later, touching what is
// gone raises SIGBUS.
//
// Where the range holds whole multiples of 2 MiB of the file, the address is a multiple where the offset is one, and
// these parts ask for huge pages: file systems with large folios (ext4 since Linux 6.16, xfs, btrfs) give them.
func Map(f *os.File, offset, size int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("mem: map: %w", err)
	}
	if offset < 0 || size <= 0 || size > st.Size()-offset {
		return nil, fmt.Errorf("mem: map %s: %d bytes from %d, the file has %d: %w", f.Name(), size, offset, st.Size(), ErrSize)
	}
	b, err := mapAligned(int(f.Fd()), offset, int(size))
	if err != nil {
		return nil, fmt.Errorf("mem: map %s: %d bytes from %d: %w", f.Name(), size, offset, err)
	}
	if inner := hugePart(b); len(inner) > 0 {
		_ = unix.Madvise(inner, unix.MADV_HUGEPAGE) // a wish
	}
	return b, nil
}

// mapAligned reserves address space with room to choose, and maps the file over the part that suits.
func mapAligned(fd int, offset int64, size int) ([]byte, error) {
	lead := int(offset) % os.Getpagesize()
	length, room := pages(lead+size), 0
	if size >= hugePage {
		room = hugePage
	}
	raw, err := unix.MmapPtr(-1, 0, nil, uintptr(length+room), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	head := 0
	if room > 0 {
		head = int((uintptr(offset) - uintptr(lead) - uintptr(raw)) % hugePage)
	}
	base := unsafe.Add(raw, head)
	if _, err := unix.MmapPtr(fd, offset-int64(lead), base, uintptr(length), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		trim(raw, length+room)
		return nil, err
	}
	trim(raw, head)
	trim(unsafe.Add(base, length), room-head)
	return unsafe.Slice((*byte)(unsafe.Add(base, lead)), size), nil
}

// hugePart is the part of b that can be whole huge pages.
func hugePart(b []byte) []byte {
	at := uintptr(unsafe.Pointer(&b[0]))
	from := int(-at & (hugePage - 1))
	to := len(b) - int((at+uintptr(len(b)))&(hugePage-1))
	if from >= to {
		return nil
	}
	return b[from:to]
}

// Populate reads what Map returned and makes its pages present, on the given number of threads (at least one), so that
// nobody waits for them later. The kernel may still drop them. It stops, with its cause, when ctx ends.
func Populate(ctx context.Context, b []byte, threads int) error {
	at := uintptr(unsafe.Pointer(&b[0]))
	lead := int(at % uintptr(os.Getpagesize()))
	whole := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&b[0]), -lead)), lead+len(b))
	first := hugePage - int((at-uintptr(lead))&(hugePage-1)) // up to the first border
	_ = unix.Madvise(whole, unix.MADV_RANDOM)
	err := share(ctx, len(whole), first, threads, func(from, to int) { read(whole[from:to]) })
	_ = unix.Madvise(whole, unix.MADV_NORMAL)
	return err
}

// read makes pages present: all at once (Linux 5.14), or one by one.
func read(p []byte) {
	if unix.Madvise(p, unix.MADV_POPULATE_READ) == nil {
		return
	}
	sum := byte(0)
	for i := 0; i < len(p); i += os.Getpagesize() {
		sum += p[i]
	}
	sink.Store(uint32(sum))
}

// Lock keeps what Map returned in memory (mlock(2)): its pages are read at once and never dropped. errors.Is finds ENOMEM
// or EPERM where RLIMIT_MEMLOCK forbids it.
func Lock(b []byte) error {
	if err := unix.Mlock(b); err != nil {
		limit := unix.Rlimit{}
		_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit)
		return fmt.Errorf("mem: mlock of %d bytes: %w (RLIMIT_MEMLOCK is %d bytes)", len(b), err, limit.Cur)
	}
	return nil
}

// Unmap ends what Map returned: the very same slice, not a part of it.
func Unmap(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("mem: unmap of nothing: %w", ErrSize)
	}
	lead := uintptr(unsafe.Pointer(&b[0])) % uintptr(os.Getpagesize())
	base := unsafe.Add(unsafe.Pointer(&b[0]), -int(lead))
	if err := unix.MunmapPtr(base, lead+uintptr(len(b))); err != nil {
		return fmt.Errorf("mem: unmap %d bytes: %w", len(b), err)
	}
	return nil
}
