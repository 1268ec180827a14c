package uring_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// BenchmarkRead reads random slices of 576 KiB, 24 in flight (8 experts), from a file of 256 MiB that was just written.
// One operation is one read; cpu-s/GB is user and system time of the process.
func BenchmarkRead(b *testing.B) {
	const size, slice, flying = 256 << 20, 576 << 10, 24
	name := filepath.Join(b.TempDir(), "model")
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(data)
	if err := os.WriteFile(name, data, 0o600); err != nil {
		b.Fatal(err)
	}
	unix.Sync()
	for _, backend := range []string{"ring", "pread", "null"} {
		for _, direct := range []uring.DirectMode{uring.DirectPreferred, uring.DirectOff} {
			b.Run(fmt.Sprintf("%s/direct=%v", backend, direct == uring.DirectPreferred), func(b *testing.B) {
				runtime.LockOSThread()
				files, err := uring.OpenFiles([]string{name}, direct)
				if err != nil {
					b.Fatal(err)
				}
				defer files.Close()
				block, err := mem.Alloc("bench", flying*slice)
				if err != nil {
					b.Fatal(err)
				}
				defer block.Free()
				block.Touch(1)
				d, err := uring.Open(files, [][]byte{block.Bytes()}, uring.Options{Backend: backend})
				if err != nil {
					b.Fatal(err)
				}
				defer d.Close()
				b.SetBytes(slice)
				readAll(b, d, size, slice, flying)
			})
		}
	}
}

func readAll(b *testing.B, d uring.Device, size int64, slice, flying int) {
	r := rand.New(rand.NewPCG(1, 2))
	read := func(slot uint64) []uring.Read {
		offset := r.Int64N((size-int64(slice))/4096) * 4096
		return []uring.Read{{Offset: offset, RegionOffset: int64(slot) * int64(slice), Length: slice, Need: slice, Tag: slot}}
	}
	done := make([]uring.Done, flying)
	before := cpuSeconds()
	b.ResetTimer()
	left := b.N
	for slot := range min(flying, left) {
		if _, err := d.Submit(read(uint64(slot))); err != nil {
			b.Fatal(err)
		}
	}
	for finished := 0; finished < b.N; {
		n, err := d.Wait(1, done)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range done[:n] {
			if e.Err != nil {
				b.Fatal(e.Err)
			}
			if finished++; finished+flying <= b.N {
				if _, err := d.Submit(read(e.Tag)); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.StopTimer()
	b.ReportMetric((cpuSeconds()-before)/(float64(b.N)*float64(slice)*1e-9), "cpu-s/GB")
}

func cpuSeconds() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()+u.Stime.Nano()) * 1e-9
}
