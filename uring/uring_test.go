package uring_test

import (
	"os"
	"testing"

	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/uringtest"
)

// noRing is set where the tests run on a machine that is known to refuse io_uring. Without it a refusal is a failure: a
// machine must not test pread alone in silence.
const noRing = "EPQ_NO_RING"

func needRing(t *testing.T) {
	t.Helper()
	if os.Getenv(noRing) != "" {
		t.Skip(noRing + " is set: no ring here")
	}
}

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
		"ring":           {uring.Options{Backend: "ring"}, uring.DirectPreferred},
		"ring, shallow":  {uring.Options{Backend: "ring", Depth: 5}, uring.DirectPreferred},
		"ring, buffered": {uring.Options{Backend: "ring"}, uring.DirectOff},
		"pread":          {uring.Options{Backend: "pread"}, uring.DirectPreferred},
		"pread, one":     {uring.Options{Backend: "pread", Threads: 1, Depth: 5}, uring.DirectOff},
	} {
		t.Run(name, func(t *testing.T) {
			if c.opt.Backend == "ring" {
				needRing(t)
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
