package mem

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map maps size bytes of a file from offset, read-only and shared: clean pages that the kernel may drop and read again.
// Any offset will do. A range outside the file is an error (ErrSize); should the file be cut later, touching what is
// gone raises SIGBUS.
func Map(f *os.File, offset, size int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("mem: map: %w", err)
	}
	if offset < 0 || size <= 0 || size > st.Size()-offset {
		return nil, fmt.Errorf("mem: map %s: %d bytes from %d, the file has %d: %w", f.Name(), size, offset, st.Size(), ErrSize)
	}
	lead := offset % int64(os.Getpagesize())
	p, err := unix.MmapPtr(int(f.Fd()), offset-lead, nil, uintptr(lead+size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mem: map %s: %d bytes from %d: %w", f.Name(), size, offset, err)
	}
	return unsafe.Slice((*byte)(unsafe.Add(p, lead)), size), nil
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
