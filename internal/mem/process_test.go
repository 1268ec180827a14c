package mem

import (
	"errors"
	"os"
	"testing"
)

func TestReadProcess(t *testing.T) {
	before, err := ReadProcess()
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	b, err := Alloc("test", size)
	if err != nil {
		t.Fatal(err)
	}
	b.Touch(1)
	with, err := ReadProcess()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Free(); err != nil {
		t.Fatal(err)
	}
	after, err := ReadProcess()
	if err != nil {
		t.Fatal(err)
	}
	const slack = 8 << 20 // the Go heap lives on
	if with.Anonymous < before.Anonymous+size-slack || after.Anonymous > with.Anonymous-size+slack {
		t.Errorf("anonymous %d, with 64 MiB %d, without %d", before.Anonymous, with.Anonymous, after.Anonymous)
	}
	if after.PeakAnonymous < with.Anonymous || after.PeakRSS < with.RSS-slack || with.RSS < with.Anonymous {
		t.Errorf("peaks %+v of %+v", after, with)
	}
}

func TestReadProcessFields(t *testing.T) {
	status := "Name:\tx\nVmHWM:\t 300 kB\nVmRSS:\t 200 kB\nRssAnon:\t 90 kB\nVmSwap:\t 5 kB\n"
	root := writeTree(t, map[string]string{"/proc/self/status": status})
	if p, err := readProcess(root); err != nil || p != (Process{Anonymous: 90 << 10, RSS: 200 << 10, PeakRSS: 300 << 10, Swap: 5 << 10}) {
		t.Errorf("%+v, %v", p, err)
	}
	roll := "55d9-7ffd ---p 00000000 00:00 0   [rollup]\nRss:  310 kB\nAnonymous: 95 kB\nSwap: 6 kB\n"
	root = writeTree(t, map[string]string{"/proc/self/status": status, "/proc/self/smaps_rollup": roll})
	if p, err := readProcess(root); err != nil || p != (Process{Anonymous: 95 << 10, RSS: 310 << 10, PeakRSS: 310 << 10, Swap: 6 << 10}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := readProcess(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
