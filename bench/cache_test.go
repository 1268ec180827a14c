package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEvict(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	page := os.Getpagesize()
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 20*page+1), 0o600); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("a file system that lives in the page cache")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := cached(f); err != nil || n != int64(21*page) {
		t.Errorf("just written: %d bytes cached, %v, want %d", n, err, 21*page)
	}
	if n, err := evictAll([]string{path}); err != nil || n != 0 {
		t.Errorf("%d bytes stayed, %v", n, err)
	}
	// What is locked in memory cannot leave, and that is said.
	m, err := unix.Mmap(int(f.Fd()), 0, 4*page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	if err := unix.Mlock(m); err != nil {
		t.Skip(err)
	}
	if n, err := evictAll([]string{path}); err != nil || n < int64(4*page) {
		t.Errorf("%d bytes stayed of 4 locked pages, %v", n, err)
	}
	if _, err := evictAll([]string{path, path + "none"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
