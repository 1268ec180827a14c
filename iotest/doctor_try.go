package iotest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fiemapHeader is struct fiemap without extents (linux/fiemap.h).
type fiemapHeader struct {
	start, length   uint64
	flags, mapped   uint32
	count, reserved uint32
}

// fiemapRequest is FS_IOC_FIEMAP: _IOWR('f', 11, struct fiemap).
const fiemapRequest = 3<<30 | unsafe.Sizeof(fiemapHeader{})<<16 | 'f'<<8 | 11

func fiemap(f *os.File) (int, error) {
	h := fiemapHeader{length: 1<<64 - 1}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemapRequest, uintptr(unsafe.Pointer(&h))); errno != 0 {
		return 0, errno
	}
	return int(h.mapped), nil
}

// hugeBytes is AnonHugePages of the mappings that hold b, from /proc/self/smaps.
func hugeBytes(b []byte) int64 {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0
	}
	from := uint64(uintptr(unsafe.Pointer(&b[0])))
	to, inside, sum := from+uint64(len(b)), false, int64(0)
	for line := range strings.Lines(string(text)) {
		var low, high uint64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &low, &high); n == 2 {
			inside = low < to && high > from
		}
		if rest, ok := strings.CutPrefix(line, "AnonHugePages:"); ok && inside {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			sum += n << 10
		}
	}
	return sum
}
