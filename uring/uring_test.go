package uring_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/uringtest"
)

func openFiles(t *testing.T, files []uringtest.File, mode uring.DirectMode) *uring.Files {
	t.Helper()
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	set, err := uring.OpenFiles(paths, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	})
	return set
}

func TestContract(t *testing.T) {
	for name, c := range map[string]struct {
		opt  uring.Options
		mode uring.DirectMode
	}{
		"ring":               {uring.Options{Backend: "ring"}, uring.DirectPreferred},
		"ring, shallow":      {uring.Options{Backend: "ring", Depth: 5}, uring.DirectPreferred},
		"ring, buffered":     {uring.Options{Backend: "ring"}, uring.DirectOff},
		"ring, plain":        {uring.Options{Backend: "ring", Depth: 16}, uring.DirectPreferred},
		"ring, unregistered": {uring.Options{Backend: "ring", PlainBuffers: true, PlainFiles: true}, uring.DirectPreferred},
		"ring, polled":       {uring.Options{Backend: "ring", SQPoll: true}, uring.DirectPreferred},
		"pread":              {uring.Options{Backend: "pread"}, uring.DirectPreferred},
		"pread, one":         {uring.Options{Backend: "pread", Threads: 1, Depth: 5}, uring.DirectOff},
	} {
		t.Run(name, func(t *testing.T) {
			if c.opt.Backend == "ring" {
				uring.NeedRing(t)
			}
			if name == "ring, plain" {
				uring.PlainRing(t)
			}
			uringtest.Run(t, func(t *testing.T, files []uringtest.File, regions [][]byte) uring.Device {
				d, err := uring.Open(openFiles(t, files, c.mode), regions, c.opt)
				if err != nil {
					t.Fatal(err)
				}
				if got := d.Limits().Backend; got != c.opt.Backend {
					t.Fatalf("backend %s, asked for %s", got, c.opt.Backend)
				}
				return d
			})
		})
	}
}

// The ring is really in use: there is one among the descriptors, the memory is pinned, and nothing was lost.
func TestRingInUse(t *testing.T) {
	uring.NeedRing(t)
	runtime.LockOSThread()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	block, err := mem.Alloc("test", 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Free()
	files := openFiles(t, []uringtest.File{{Path: name}}, uring.DirectPreferred)
	before := pinned(t)
	d, err := uring.Open(files, [][]byte{block.Bytes()}, uring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := d.Limits()
	if l.Backend != "ring" || !l.Fixed || l.Depth != 128 {
		t.Errorf("%+v (set EPQ_NO_RING where the kernel refuses io_uring)", l)
	}
	for _, lost := range l.Lost {
		if lost.What != "O_DIRECT" { // the tests may lie in memory
			t.Errorf("%+v", lost)
		}
	}
	if n := ringDescriptors(t); n != 1 {
		t.Errorf("%d rings among the descriptors", n)
	}
	if n := pinned(t) - before; n != 4<<10 {
		t.Errorf("%d KiB pinned, want 4096", n)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if n := pinned(t) - before; n != 0 || ringDescriptors(t) != 0 {
		t.Errorf("after Close %d KiB pinned, %d rings", n, ringDescriptors(t))
	}
}

func ringDescriptors(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); target == "anon_inode:[io_uring]" {
			n++
		}
	}
	return n
}

// pinned is the memory of this process that the kernel may write to at any time, in KiB.
func pinned(t *testing.T) (kib int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmPin: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no VmPin in /proc/self/status")
	return 0
}

func TestNull(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	region := make([]byte, 8192)
	d, err := uring.Open(openFiles(t, []uringtest.File{{Path: name}}, uring.DirectOff), [][]byte{region}, uring.Options{Backend: "null", Depth: 2})
	if err != nil {
		t.Fatal(err)
	}
	region[0] = 7
	r := uring.Read{Length: 8192, Need: 5000, Tag: 9}
	for range 3 {
		if n, err := d.Submit([]uring.Read{r, r, r}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		var done [3]uring.Done
		if n, err := d.Wait(1, done[:]); n != 2 || err != nil || done[1] != (uring.Done{Tag: 9, N: 8192}) {
			t.Fatal(n, err, done)
		}
	}
	r.Region = 1
	if _, err := d.Submit([]uring.Read{r}); !errors.Is(err, uring.ErrRead) {
		t.Error(err)
	}
	if region[0] != 7 || d.Limits().Backend != "null" || d.Close() != nil {
		t.Error("null wrote, or does not close")
	}
	if _, err := d.Submit(nil); !errors.Is(err, uring.ErrClosed) {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	files := openFiles(t, []uringtest.File{{Path: name}}, uring.DirectOff)
	region := [][]byte{make([]byte, 4096)}
	for name, c := range map[string]struct {
		regions [][]byte
		opt     uring.Options
		want    error
	}{
		"backend":         {region, uring.Options{Backend: "mmap"}, uring.ErrBackend},
		"two backends":    {region, uring.Options{Backend: "auto ring"}, uring.ErrBackend},
		"depth":           {region, uring.Options{Backend: "null", Depth: 4097}, unix.EINVAL},
		"depth below":     {region, uring.Options{Backend: "null", Depth: -1}, unix.EINVAL},
		"threads":         {region, uring.Options{Backend: "pread", Threads: 65}, unix.EINVAL},
		"no region":       {nil, uring.Options{Backend: "null"}, unix.EINVAL},
		"empty region":    {[][]byte{{}}, uring.Options{Backend: "null"}, unix.EINVAL},
		"too many":        {make16385(region[0]), uring.Options{Backend: "null"}, unix.EINVAL},
		"as many as fits": {make16385(region[0])[1:], uring.Options{Backend: "null"}, nil},
	} {
		d, err := uring.Open(files, c.regions, c.opt)
		if !errors.Is(err, c.want) || c.want != nil && d != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func make16385(r []byte) (list [][]byte) {
	for range 16385 {
		list = append(list, r)
	}
	return list
}
