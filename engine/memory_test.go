package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
)

func TestBudgets(t *testing.T) {
	limits := []mem.Limit{
		{Bytes: 8 << 30, By: "cgroup", Where: "/a", Charged: true},
		{Bytes: 7 << 30, By: "rlimit", Where: "RLIMIT_DATA"},
		{Bytes: 9 << 30, By: "memory", Where: "MemAvailable"},
	}
	for _, c := range []struct {
		ram  string
		want []budget
	}{
		{"auto", []budget{
			{bytes: 8 << 30, boundBy: "cgroup (/a)", physical: true},
			{bytes: 7 << 30, boundBy: "rlimit (RLIMIT_DATA)"},
			{bytes: 9 << 30, boundBy: "memory (MemAvailable)", physical: true},
		}},
		{"12GiB", []budget{
			{bytes: 12 << 30, boundBy: "flag (--ram)"},
			{bytes: 8 << 30, boundBy: "cgroup (/a), which leaves less than --ram 12GiB", physical: true},
			{bytes: 7 << 30, boundBy: "rlimit (RLIMIT_DATA), which leaves less than --ram 12GiB"},
		}},
		{"min", []budget{
			{boundBy: "flag (--ram min)", minimal: true},
			{bytes: 8 << 30, boundBy: "cgroup (/a), smaller than --ram min takes", physical: true},
			{bytes: 7 << 30, boundBy: "rlimit (RLIMIT_DATA), smaller than --ram min takes"},
		}},
	} {
		if got, err := budgetsOf(c.ram, limits); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", c.ram, got, err, c.want)
		}
	}
	if _, err := budgetsOf("lots", limits); !errors.Is(err, ErrOption) {
		t.Error(err)
	}
}

func TestResidentRuns(t *testing.T) {
	tensor := func(shard int, offset, size int64) gguf.Tensor {
		return gguf.Tensor{Extent: gguf.Extent{Shard: shard, Offset: offset, Size: size}}
	}
	got := residentRuns([]gguf.Tensor{
		tensor(1, 5000, 10), tensor(0, 1<<20, 100), tensor(0, 100, 5000), tensor(0, 5100, 32), tensor(0, 5100, 32), tensor(0, 9000, 0),
		tensor(0, 8192+runGap, 1),
	})
	want := []run{{0, 0, 8192 + runGap + 4096}, {0, 1 << 20, 1<<20 + 4096}, {1, 4096, 8192}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A run is read whole whatever its length is in pieces and pages, and a file that ends early is an error.
func TestReadRun(t *testing.T) {
	content := make([]byte, copyPiece+3*pageBytes+777)
	for i := range content {
		content[i] = byte(i * 7 >> 3)
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	const from = pageBytes
	block, err := mem.Alloc("test", copyPiece+3*pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer block.Free()
	ctx, shard := context.Background(), gguf.Shard{Path: path, Size: int64(len(content))}
	if err := readRun(ctx, shard, from, block.Bytes(), 3); err != nil || !bytes.HasPrefix(block.Bytes(), content[from:]) {
		t.Errorf("%v, or other bytes than the file's", err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := readRun(stopped, shard, from, block.Bytes(), 3); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	cut := gguf.Shard{Path: path, Size: shard.Size + 5000}
	if err := readRun(ctx, cut, from, block.Bytes(), 3); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut since its header was read: %v", err)
	}
	if _, err := mapRun(cut, run{0, from, cut.Size}); !errors.Is(err, mem.ErrSize) {
		t.Errorf("mapped although cut: %v", err)
	}
	g, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := readPiece(g, from, int64(len(content))+5000, block.Bytes()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if err := readRun(ctx, gguf.Shard{Path: path + "-gone"}, 0, block.Bytes(), 1); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
