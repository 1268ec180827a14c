package mem

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestAlloc(t *testing.T) {
	for _, size := range []int{1, 4096, 5000, hugePage - 1, hugePage, 3*hugePage + 12345} {
		before := Usage()["test"]
		b, err := Alloc("test", size)
		if err != nil {
			t.Fatal(err)
		}
		if got := Usage()["test"] - before; got != int64(pages(size)) {
			t.Errorf("size %d: usage rose by %d, want %d", size, got, pages(size))
		}
		align := os.Getpagesize()
		if size >= hugePage {
			align = hugePage
		}
		p := b.Bytes()
		if len(p) != size || uintptr(unsafe.Pointer(&p[0]))%uintptr(align) != 0 {
			t.Errorf("size %d: %d bytes at %p, want multiple of %d", size, len(p), p, align)
		}
		if len(b.Floats()) != size/4 {
			t.Errorf("size %d: %d floats", size, len(b.Floats()))
		}
		p[0], p[size-1] = 7, 9
		b.Touch(3)
		if p[size-1] != 9 || size > 1 && p[0] != 7 {
			t.Errorf("size %d: touching changed the content", size)
		}
		if err := b.Free(); err != nil {
			t.Fatal(err)
		}
		if err := b.Free(); err != nil || Usage()["test"] != before {
			t.Errorf("size %d: after a second Free: %v, usage %d", size, err, Usage()["test"])
		}
	}
}

// present counts the pages of p in memory.
func present(t *testing.T, p []byte) (n int) {
	t.Helper()
	vec := make([]byte, len(p)/os.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range vec {
		n += int(v & 1)
	}
	return n
}

func TestTouch(t *testing.T) {
	b, err := Alloc("test", 3*touchPiece+hugePage)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	if n := present(t, b.Bytes()); n != 0 {
		t.Fatalf("%d pages present before Touch", n)
	}
	b.Touch(2)
	if n, want := present(t, b.Bytes()), len(b.Bytes())/os.Getpagesize(); n != want {
		t.Fatalf("%d pages present after Touch, want %d", n, want)
	}
}

func TestAllocRefused(t *testing.T) {
	for _, size := range []int{0, -1, 1<<46 + 1} {
		if _, err := Alloc("test", size); !errors.Is(err, ErrSize) {
			t.Errorf("%d bytes: %v, want ErrSize", size, err)
		}
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_DATA, &old); err != nil {
		t.Fatal(err)
	}
	// the soft limit alone: it can be raised again
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: 1 << 30, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	b, err := Alloc("test", 2<<30)
	if e := unix.Setrlimit(unix.RLIMIT_DATA, &old); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, unix.ENOMEM) {
		t.Errorf("2 GiB under RLIMIT_DATA of 1 GiB: %v, %v", b, err)
	}
	if n := Usage()["test"]; n != 0 {
		t.Errorf("usage %d after a refused allocation", n)
	}
}

// Making pages present stops with its cause, between two pieces.
func TestTouchStops(t *testing.T) {
	b, err := Alloc("test", 4*touchPiece)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	done := 0
	err = share(ctx, b.mapped, 0, 1, func(from, to int) {
		if done += to - from; done == 2*touchPiece {
			cancel(why)
		}
	})
	if !errors.Is(err, why) || done != 2*touchPiece {
		t.Errorf("%v after %d bytes", err, done)
	}
	if err := b.TouchWhile(ctx, 3); !errors.Is(err, why) {
		t.Error(err)
	}
	if err := Populate(ctx, b.Bytes(), 2); !errors.Is(err, why) {
		t.Error(err)
	}
}

func TestMap(t *testing.T) {
	data := make([]byte, 3*os.Getpagesize()+100)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(len(data))
	for _, r := range [][2]int64{{0, size}, {0, 1}, {32, 100}, {4095, 2}, {4096, 4096}, {size - 1, 1}} {
		b, err := Map(f, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != string(data[r[0]:r[0]+r[1]]) {
			t.Errorf("range %v: other bytes", r)
		}
		if err := Unmap(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range [][2]int64{{-1, 2}, {0, 0}, {0, -1}, {0, size + 1}, {size, 1}, {1, 1<<63 - 1}, {1<<63 - 1, 1}} {
		if _, err := Map(f, r[0], r[1]); !errors.Is(err, ErrSize) {
			t.Errorf("range %v: %v, want ErrSize", r, err)
		}
	}
	if err := Unmap(nil); !errors.Is(err, ErrSize) {
		t.Error(err)
	}
}

func TestHugePages(t *testing.T) {
	for text, good := range map[string]bool{"always [madvise] never": true, "[always] madvise never": true, "always madvise [never]": false, "": true} {
		root := writeTree(t, map[string]string{"/sys/kernel/mm/transparent_hugepage/enabled": text + "\n"})
		if err := hugePagesUnder(root); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := hugePagesUnder(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
