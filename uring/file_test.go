package uring

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func writeFile(t *testing.T, name string, size int) string {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(t.TempDir(), name)
	}
	if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// strange is a host whose file system says and refuses what a test wants.
func strange(offset, memory uint32, refuse func(direct bool, call string) error) host {
	direct := map[int]bool{}
	return host{
		open: func(path string, flags int, perm uint32) (int, error) {
			if err := refuse(flags&unix.O_DIRECT != 0, "open"); err != nil {
				return -1, err
			}
			fd, err := unix.Open(path, flags&^unix.O_DIRECT, perm)
			direct[fd] = flags&unix.O_DIRECT != 0
			return fd, err
		},
		statx: func(_ int, _ string, _, _ int, st *unix.Statx_t) error {
			if offset != 1 {
				*st = unix.Statx_t{Mask: unix.STATX_DIOALIGN, Dio_offset_align: offset, Dio_mem_align: memory}
			}
			return nil
		},
		pread: func(fd int, p []byte, at int64) (int, error) {
			if err := refuse(direct[fd], "read"); err != nil {
				return -1, err
			}
			return unix.Pread(fd, p, at)
		},
		fstype: func(int) int64 { return unix.EXT4_SUPER_MAGIC },
	}
}

func never(bool, string) error { return nil }

// silent is the alignment of a strange host that stands for statx without an answer.
const silent = 1

func TestAlignment(t *testing.T) {
	name := writeFile(t, "model", 10000)
	for _, c := range []struct {
		offset, memory uint32
		align          int
		direct         bool
	}{
		{512, 512, 512, true},
		{4096, 512, 4096, true},
		{512, 4096, 4096, true},
		{65536, 4, 65536, true},
		{1 << 20, 512, 1 << 20, true},
		{4, 4, 512, true}, // never below a sector
		{silent, 0, 4096, true},
		{0, 0, 4096, false},         // not for this file
		{1000, 512, 4096, false},    // no power of two
		{2 << 20, 512, 4096, false}, // no slot is cut like that
	} {
		f, err := strange(c.offset, c.memory, never).openFiles([]string{name}, DirectPreferred)
		if err != nil {
			t.Fatal(err)
		}
		if f.Align(0) != c.align || f.Direct(0) != c.direct || len(f.Lost()) != map[bool]int{true: 0, false: 1}[c.direct] {
			t.Errorf("statx %d, %d: align %d, direct %v, lost %v", c.offset, c.memory, f.Align(0), f.Direct(0), f.Lost())
		}
		if f.Len() != 1 || f.Size(0) != 10000 {
			t.Errorf("%d files of %d bytes", f.Len(), f.Size(0))
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// O_DIRECT refused, at open or only by the first read: buffered, told once per file system, and tried for every file.
func TestDirectRefused(t *testing.T) {
	names := []string{writeFile(t, "a", 5000), writeFile(t, "b", 5000)}
	for _, call := range []string{"open", "read"} {
		for _, errno := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP} {
			tries := 0
			refuse := func(direct bool, c string) error {
				if direct && c == call {
					tries++
					return errno
				}
				return nil
			}
			f, err := strange(512, 512, refuse).openFiles(names, DirectPreferred)
			if err != nil {
				t.Fatal(err)
			}
			lost := f.Lost()
			if f.Direct(0) || f.Direct(1) || len(lost) != 1 || lost[0].What != "O_DIRECT" || !strings.Contains(lost[0].Reason, unix.ErrnoName(errno)) || lost[0].Remedy == "" {
				t.Errorf("%s: %+v", call, lost)
			}
			if tries != 2 {
				t.Errorf("%s: direct tried %d times for 2 files", call, tries)
			}
			f.Close()
			if _, err := strange(512, 512, refuse).openFiles(names, DirectRequired); !errors.Is(err, ErrDirect) || !errors.Is(err, errno) {
				t.Errorf("%s required: %v", call, err)
			}
			tries = 0
			if f, err := strange(512, 512, refuse).openFiles(names, DirectOff); err != nil || tries != 0 || len(f.Lost()) != 0 || f.Close() != nil {
				t.Errorf("%s off: %v, %d tries", call, err, tries)
			}
		}
	}
}

// A file that refuses does not speak for the next.
func TestLaterFilesStillTry(t *testing.T) {
	names := []string{writeFile(t, "a", 5000), writeFile(t, "b", 5000)}
	first := true
	f, err := strange(512, 512, func(direct bool, call string) error {
		if direct && first {
			first = false
			return unix.EINVAL
		}
		return nil
	}).openFiles(names, DirectPreferred)
	if err != nil || f.Direct(0) || !f.Direct(1) {
		t.Fatal(err, f)
	}
	f.Close()
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{filepath.Join(dir, "none"): unix.ENOENT, dir: unix.EINVAL, pipe: unix.EINVAL} {
		if _, err := OpenFiles([]string{writeFile(t, "good", 1), path}, DirectPreferred); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// an error of the disk is no refusal of O_DIRECT: reading buffered fails too
	name := writeFile(t, "sick", 5000)
	_, err := strange(512, 512, func(_ bool, call string) error {
		if call == "read" {
			return unix.EIO
		}
		return nil
	}).openFiles([]string{name}, DirectPreferred)
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), name) {
		t.Error(err)
	}
	empty, err := OpenFiles([]string{writeFile(t, "empty", 0)}, DirectPreferred)
	if err != nil || empty.Size(0) != 0 {
		t.Error(err)
	}
	empty.Close()
}

// On tmpfs O_DIRECT opens, but there is no disk.
func TestInMemory(t *testing.T) {
	h := strange(silent, 0, never)
	h.fstype = func(int) int64 { return unix.TMPFS_MAGIC }
	names := []string{writeFile(t, "a", 5000), writeFile(t, "b", 5000)}
	f, err := h.openFiles(names, DirectPreferred)
	if err != nil || len(f.Lost()) != 1 || f.Lost()[0].What != "O_DIRECT" || !strings.Contains(f.Lost()[0].Reason, "tmpfs") {
		t.Fatal(err, f.Lost())
	}
	f.Close()
	h.fstype = func(int) int64 { return unix.BTRFS_SUPER_MAGIC }
	if f, err = h.openFiles(names, DirectPreferred); err != nil || len(f.Lost()) != 1 || !strings.Contains(f.Lost()[0].Reason, "btrfs") {
		t.Fatal(err, f.Lost())
	}
	f.Close()
	if f, err = h.openFiles(names, DirectOff); err != nil || len(f.Lost()) != 0 {
		t.Fatal(err, f.Lost())
	}
	f.Close()
}

func TestChanged(t *testing.T) {
	for what, change := range map[string]func(name string) error{
		"cut":    func(name string) error { return os.Truncate(name, 100) },
		"longer": func(name string) error { return os.Truncate(name, 9000) },
		"replaced": func(name string) error {
			return errors.Join(os.WriteFile(name+"2", make([]byte, 5000), 0o600), os.Rename(name+"2", name))
		},
		"removed": os.Remove,
		"touched": func(name string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{{Sec: 5}, {Sec: 5}}, 0)
		},
	} {
		f, err := OpenFiles([]string{writeFile(t, "other", 1), writeFile(t, "model", 5000)}, DirectPreferred)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Changed(1); err != nil {
			t.Errorf("%s: before: %v", what, err)
		}
		if err := change(f.list[1].path); err != nil {
			t.Fatal(err)
		}
		if err := f.Changed(1); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), f.list[1].path) {
			t.Errorf("%s: %v", what, err)
		}
		if err := f.Changed(0); err != nil {
			t.Errorf("%s: the other file: %v", what, err)
		}
		f.Close()
	}
}
