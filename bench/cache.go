package bench

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// evictAll throws clean pages of the files out of the page cache and returns how many bytes stayed there all the same: pages
// that somebody has mapped or is writing. -1: not known, for mincore(2) tells the truth only to those who own the file or
// may write it.
func evictAll(paths []string) (left int64, err error) {
	for _, p := range paths {
		n, err := evict(p)
		if err != nil {
			return left, fmt.Errorf("bench: page cache of %s: %w", p, err)
		}
		if n < 0 || left < 0 {
			left = -1
			continue
		}
		left += n
	}
	return left, nil
}

func evict(path string) (left int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EROFS) { // dirty pages do not leave
		return 0, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, err
	}
	if !mayAsk(f) {
		return -1, nil
	}
	return cached(f)
}

// mayAsk is the kernel's condition for an honest mincore.
func mayAsk(f *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return int(st.Uid) == os.Geteuid() || unix.Access(f.Name(), unix.W_OK) == nil
}

// cached returns how many bytes of the file are in the page cache, in whole pages.
func cached(f *os.File) (bytes int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	const window = 1 << 30 // mapped at a time: 256 Ki pages, a byte each
	page := int64(os.Getpagesize())
	present := make([]byte, (min(st.Size(), window)+page-1)/page)
	for from := int64(0); from < st.Size(); from += window {
		m, err := unix.Mmap(int(f.Fd()), from, int(min(window, st.Size()-from)), unix.PROT_NONE, unix.MAP_SHARED)
		if err != nil {
			return 0, err
		}
		part := present[:(int64(len(m))+page-1)/page]
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&part[0])))
		if err := unix.Munmap(m); err != nil {
			return 0, err
		}
		if errno != 0 {
			return 0, errno
		}
		for _, p := range part {
			bytes += int64(p&1) * page
		}
	}
	return bytes, nil
}
