package uring

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DirectMode says how files are opened.
type DirectMode uint8

const (
	DirectPreferred DirectMode = iota // O_DIRECT; buffered for the files whose file system refuses it
	DirectOff                         // through the page cache
	DirectRequired                    // O_DIRECT or an error
)

// Alignments of offset, length and memory address. The default is for direct files whose file system says nothing, and
// for buffered ones, where it is a page.
const (
	minAlign     = 512
	defaultAlign = 4096
	maxAlign     = 1 << 20
)

// Files are open files, read only. They must outlive the Device that reads them.
type Files struct {
	list []file
	lost []Loss
}

type file struct {
	path   string
	fd     int
	size   int64
	align  int
	direct bool
	dev    uint64
	ino    uint64
	mtime  unix.Timespec
}

// host is what OpenFiles asks of the system; tests replace parts of it.
type host struct {
	open   func(path string, flags int, perm uint32) (int, error)
	statx  func(fd int, path string, flags, mask int, st *unix.Statx_t) error
	pread  func(fd int, p []byte, offset int64) (int, error)
	fstype func(fd int) int64
}

var system = host{open: unix.Open, statx: unix.Statx, pread: unix.Pread, fstype: fstype}

// OpenFiles opens regular files; FileID is the index in paths. Direct files are proved by one read. A file system that
// refuses O_DIRECT, at open or only at that read, gets its files buffered and one Loss, or with DirectRequired an error
// of kind ErrDirect. Errors name the file; errors.Is finds the errno.
func OpenFiles(paths []string, mode DirectMode) (*Files, error) { return system.openFiles(paths, mode) }

func (h host) openFiles(paths []string, mode DirectMode) (*Files, error) {
	f := &Files{list: make([]file, 0, len(paths))}
	told := map[uint64]bool{}
	for _, path := range paths {
		one, loss, err := h.openFile(path, mode)
		if err != nil {
			_ = f.Close() // only read
			return nil, err
		}
		f.list = append(f.list, one)
		if loss != nil && !told[one.dev] {
			told[one.dev] = true
			f.lost = append(f.lost, *loss)
		}
	}
	return f, nil
}

// openFile opens one file in the best way that works.
func (h host) openFile(path string, mode DirectMode) (file, *Loss, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(path, &st) }); err != nil { // before open, which waits for ever on a pipe
		return file{}, nil, fmt.Errorf("uring: %s: %w", path, named(err))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return file{}, nil, fmt.Errorf("uring: %s: not a regular file: %w", path, unix.EINVAL)
	}
	if mode == DirectOff {
		f, err := h.openBuffered(path)
		return f, nil, err
	}
	f, err := h.openDirect(path)
	if err == nil {
		return f, h.notDirect(&f), nil
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return file{}, nil, err
	}
	if mode == DirectRequired {
		return file{}, nil, fmt.Errorf("%w: %w", err, ErrDirect)
	}
	f, bufferedErr := h.openBuffered(path)
	if bufferedErr != nil {
		return file{}, nil, bufferedErr
	}
	return f, &Loss{What: "O_DIRECT", Reason: err.Error() + "; read through the page cache, at a third of the speed and many times the CPU",
		Remedy: "put the model on ext4, xfs or another file system of a local disk"}, nil
}

func (h host) openDirect(path string) (file, error) {
	f, err := h.openWith(path, unix.O_DIRECT)
	if err != nil {
		return file{}, err
	}
	var st unix.Statx_t
	err = h.statx(f.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	known := err == nil && st.Mask&unix.STATX_DIOALIGN != 0
	f.direct, f.align = true, defaultAlign
	switch {
	case !known:
	case st.Dio_offset_align == 0:
		unix.Close(f.fd)
		return file{}, fmt.Errorf("uring: %s: statx: no direct reads of this file: %w", path, unix.EOPNOTSUPP)
	default:
		f.align = max(int(st.Dio_offset_align), int(st.Dio_mem_align), minAlign)
	}
	if bits.OnesCount(uint(f.align)) != 1 || f.align > maxAlign {
		unix.Close(f.fd)
		return file{}, fmt.Errorf("uring: %s: statx: alignment %d, want a power of two up to %d: %w", path, f.align, maxAlign, unix.EINVAL)
	}
	if err := h.prove(&f); err != nil {
		unix.Close(f.fd)
		return file{}, err
	}
	return f, nil
}

// openBuffered opens without O_DIRECT and without read-ahead: the reads are random and as long as what is needed.
func (h host) openBuffered(path string) (file, error) {
	f, err := h.openWith(path, 0)
	if err != nil {
		return file{}, err
	}
	f.align = defaultAlign
	_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_RANDOM) // a wish
	if err := h.prove(&f); err != nil {
		unix.Close(f.fd)
		return file{}, err
	}
	return f, nil
}

func (h host) openWith(path string, flags int) (f file, err error) {
	f.path = path
	err = retry(func() (err error) { f.fd, err = h.open(path, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0); return err })
	if err != nil {
		return f, fmt.Errorf("uring: %s: open%s: %w", path, flagName(flags), named(err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		unix.Close(f.fd)
		return f, fmt.Errorf("uring: %s: fstat: %w", path, named(err))
	}
	f.size, f.dev, f.ino, f.mtime = st.Size, st.Dev, st.Ino, st.Mtim
	return f, nil
}

func flagName(flags int) string {
	if flags&unix.O_DIRECT != 0 {
		return " with O_DIRECT"
	}
	return ""
}

// prove reads the first block: some file systems accept O_DIRECT and refuse every read.
func (h host) prove(f *file) error {
	if f.size == 0 {
		return nil
	}
	p := alignedBytes(f.align)
	err := retry(func() error { _, err := h.pread(f.fd, p, 0); return err })
	if err != nil {
		return fmt.Errorf("uring: %s: first read%s of %d bytes: %w", f.path, map[bool]string{true: " with O_DIRECT"}[f.direct], f.align, named(err))
	}
	return nil
}

// notDirect says so where O_DIRECT is accepted but is not what it should be.
func (h host) notDirect(f *file) *Loss {
	switch h.fstype(f.fd) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return &Loss{What: "O_DIRECT", Reason: f.path + ": the file is in memory (tmpfs), there is no disk to read from: it counts as used memory",
			Remedy: "put the model on a disk"}
	case unix.BTRFS_SUPER_MAGIC:
		return &Loss{What: "O_DIRECT", Reason: f.path + ": btrfs accepts it but reads through the page cache where it must check sums",
			Remedy: "put the model on ext4 or xfs, or in a folder with chattr +C before copying"}
	}
	return nil
}

func fstype(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	return st.Type
}

// alignedBytes returns n bytes that start at a multiple of n, a power of two.
func alignedBytes(n int) []byte {
	b := make([]byte, 2*n)
	lead := int(-uintptr(unsafe.Pointer(&b[0])) & uintptr(n-1))
	return b[lead : lead+n]
}

// retry repeats what a signal interrupted; Go sends itself SIGURG all the time.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// named adds the symbol to an errno: "EPERM (operation not permitted)".
func named(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) && unix.ErrnoName(errno) != "" {
		return fmt.Errorf("%s (%w)", unix.ErrnoName(errno), errno)
	}
	return err
}

// Len is the number of files.
func (f *Files) Len() int { return len(f.list) }

// Align is what Offset, Length and RegionOffset of a Read of this file are multiples of: a power of two, at least 512.
func (f *Files) Align(id FileID) int { return f.list[id].align }

// Size is the size of a file when it was opened.
func (f *Files) Size(id FileID) int64 { return f.list[id].size }

// Direct says whether a file is read past the page cache.
func (f *Files) Direct(id FileID) bool { return f.list[id].direct }

// Lost says where O_DIRECT was refused or means nothing, once per file system.
func (f *Files) Lost() []Loss { return f.lost }

// Now looks at an open file again: its size in bytes, and whether it was written to or cut since it was opened.
func (f *Files) Now(id FileID) (size int64, written bool, err error) {
	one := &f.list[id]
	var st unix.Stat_t
	if err := unix.Fstat(one.fd, &st); err != nil {
		return 0, false, fmt.Errorf("uring: %s: fstat: %w", one.path, named(err))
	}
	return st.Size, st.Mtim != one.mtime, nil
}

// Changed returns an error of kind ErrChanged when the file was replaced, removed, cut or written since it was opened.
func (f *Files) Changed(id FileID) error {
	one := &f.list[id]
	size, written, err := f.Now(id)
	switch {
	case err != nil:
		return err
	case size != one.size:
		return fmt.Errorf("uring: %s: has %d bytes, had %d: %w", one.path, size, one.size, ErrChanged)
	case written:
		return fmt.Errorf("uring: %s: was written to: %w", one.path, ErrChanged)
	}
	var path unix.Stat_t
	if err := retry(func() error { return unix.Stat(one.path, &path) }); err != nil {
		return fmt.Errorf("uring: %s: %w: %w", one.path, named(err), ErrChanged)
	}
	if path.Dev != one.dev || path.Ino != one.ino {
		return fmt.Errorf("uring: %s: was replaced by another file: %w", one.path, ErrChanged)
	}
	return nil
}

// Close closes all files.
func (f *Files) Close() error {
	var first error
	for i := range f.list {
		if err := unix.Close(f.list[i].fd); err != nil && first == nil {
			first = fmt.Errorf("uring: %s: close: %w", f.list[i].path, named(err))
		}
	}
	f.list = nil
	return first
}
