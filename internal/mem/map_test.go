package mem

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Large mappings stand to 2 MiB as their offset does, so that huge pages of the file can be mapped; all bytes are right
// at any offset, also beyond a lead of a part of a page.
func TestMapAligns(t *testing.T) {
	content := make([]byte, 3*hugePage+12345)
	for i := range content {
		content[i] = byte(i >> 4)
	}
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, from := range []int{0, 1, 4096, 5000, hugePage - 1, hugePage, hugePage + 4097} {
		for _, size := range []int{1, 5000, hugePage, len(content) - from} {
			size = min(size, len(content)-from)
			b, err := Map(f, int64(from), int64(size))
			if err != nil {
				t.Fatal(err)
			}
			if err := Populate(context.Background(), b, 2); err != nil {
				t.Error(err)
			}
			if !bytes.Equal(b, content[from:from+size]) {
				t.Errorf("%d bytes from %d: other bytes", size, from)
			}
			at := uintptr(unsafe.Pointer(&b[0]))
			if size >= hugePage && (at-uintptr(from))%hugePage != 0 {
				t.Errorf("%d bytes from %d at %x", size, from, at)
			}
			if err := Lock(b); err != nil && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN) {
				t.Error(err)
			}
			if err := Unmap(b); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestHugePart(t *testing.T) {
	block, err := Alloc("test", 4*hugePage)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Free()
	all := block.Bytes()
	for _, c := range []struct{ from, to, low, high int }{
		{0, 4 * hugePage, 0, 4 * hugePage}, {1, 4*hugePage - 1, hugePage, 3 * hugePage},
		{hugePage - 4096, 2 * hugePage, hugePage, 2 * hugePage}, {4096, 2*hugePage - 4096, 0, 0},
	} {
		got := hugePart(all[c.from:c.to])
		if len(got) != c.high-c.low || len(got) > 0 && &got[0] != &all[c.low] {
			t.Errorf("%d to %d: %d bytes, want %d to %d", c.from, c.to, len(got), c.low, c.high)
		}
	}
}
