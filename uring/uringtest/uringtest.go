// Package uringtest is the contract of uring.Device as a suite of tests.
package uringtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// File is a file of the suite: on disk, and what it contains.
type File struct {
	Path string
	Data []byte
}

// Open makes the device under test for files and regions. Its alignment divides 4096, its depth is at least 5.
type Open func(t *testing.T, files []File, regions [][]byte) uring.Device

const (
	page       = 4096
	regionSize = 64 * page
	untouched  = 0xa5
)

// Run runs the suite. Every test has a thread of its own, on which the device is opened, used and closed, and which ends
// with the test.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(*bench)
	}{
		{"Ranges", ranges},
		{"EndOfFile", endOfFile},
		{"Depth", depth},
		{"Many", many},
		{"Random", random},
		{"NothingToWaitFor", nothingToWaitFor},
		{"SmallDone", smallDone},
		{"Cancel", cancel},
		{"Impossible", impossible},
		{"CloseInFlight", closeInFlight},
		{"NoAllocation", noAllocation},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			b := setUp(t, open)
			c.test(b)
			b.close()
		})
	}
}

// bench is a device with two files and two regions.
type bench struct {
	*testing.T
	dev     uring.Device
	files   []File
	regions [][]byte
	closed  bool
}

func setUp(t *testing.T, open Open) *bench {
	t.Helper()
	b := &bench{T: t}
	// the second ends inside a page and inside a sector
	for i, size := range []int{100 * page, 9*page + 700} {
		f := File{Path: filepath.Join(t.TempDir(), fmt.Sprintf("file-%d", i)), Data: make([]byte, size)}
		r := rand.NewChaCha8([32]byte{byte(i)})
		_, _ = r.Read(f.Data) // never fails
		if err := os.WriteFile(f.Path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
		b.files = append(b.files, f)
	}
	for range 2 {
		block, err := mem.Alloc("uringtest", regionSize)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = block.Free() })
		b.regions = append(b.regions, block.Bytes())
	}
	b.wipe()
	b.dev = open(t, b.files, b.regions)
	t.Cleanup(b.close) // before the memory is freed, also after a failure
	return b
}

func (b *bench) close() {
	if b.closed {
		return
	}
	b.closed = true
	if err := b.dev.Close(); err != nil {
		b.Error("close:", err)
	}
}

func (b *bench) wipe() {
	for _, r := range b.regions {
		for i := range r {
			r[i] = untouched
		}
	}
}

// submit hands in all reads, waiting for room and calling fn with what is done meanwhile.
func (b *bench) submit(reads []uring.Read, fn func(uring.Done)) {
	b.Helper()
	var done [4]uring.Done
	for len(reads) > 0 {
		n, err := b.dev.Submit(reads)
		if err != nil {
			b.Fatal("submit:", err)
		}
		reads = reads[n:]
		if n == 0 {
			if b.wait(1, done[:], fn) == 0 {
				b.Fatal("no room, and nothing to wait for")
			}
		}
	}
}

func (b *bench) wait(least int, done []uring.Done, fn func(uring.Done)) int {
	b.Helper()
	n, err := b.dev.Wait(least, done)
	if err != nil {
		b.Fatal("wait:", err)
	}
	for _, d := range done[:n] {
		fn(d)
	}
	return n
}

// drain waits until nothing is in flight.
func (b *bench) drain(fn func(uring.Done)) {
	b.Helper()
	var done [4]uring.Done
	for b.wait(1, done[:], fn) > 0 {
	}
}

// check compares what a good read brought.
func (b *bench) check(r uring.Read, d uring.Done) {
	b.Helper()
	if d.Err != nil || d.N < r.Need || d.N > r.Length {
		b.Errorf("%+v: %d bytes, %v", r, d.N, d.Err)
		return
	}
	data := b.files[r.File].Data[r.Offset:]
	if got := b.regions[r.Region][r.RegionOffset:][:d.N]; !bytes.Equal(got, data[:d.N]) {
		b.Errorf("%+v: other bytes than the file's", r)
	}
}

// slot is a read of n pages into slot i of a region cut in pages.
func slot(file uring.FileID, region, i, n int, offset int64) uring.Read {
	return uring.Read{File: file, Region: region, RegionOffset: int64(i) * page, Offset: offset, Length: n * page, Need: n * page, Tag: uint64(1000*region + i)}
}

// ranges: bytes of the right file at the right place, nothing beside it, one Done each.
func ranges(b *bench) {
	reads := []uring.Read{
		slot(0, 0, 0, 1, 0), slot(1, 0, 2, 3, page), slot(0, 1, 7, 16, 84*page), slot(1, 1, 63, 1, 8*page), slot(0, 1, 40, 1, 99*page),
	}
	want := map[uint64]uring.Read{}
	inside := [2][regionSize]bool{}
	for _, r := range reads {
		want[r.Tag] = r
		for i := range r.Length {
			inside[r.Region][r.RegionOffset+int64(i)] = true
		}
	}
	b.submit(reads, nil)
	b.drain(func(d uring.Done) {
		r, ok := want[d.Tag]
		if !ok {
			b.Errorf("a Done of tag %d, unknown or seen before", d.Tag)
			return
		}
		delete(want, d.Tag)
		b.check(r, d)
	})
	if len(want) > 0 {
		b.Errorf("no Done of %v", want)
	}
	for i, r := range b.regions {
		for j, x := range r {
			if x != untouched && !inside[i][j] {
				b.Fatalf("region %d: byte %d was written", i, j)
			}
		}
	}
}

// endOfFile: widening may pass the end, what is needed may not.
func endOfFile(b *bench) {
	last := slot(1, 0, 0, 2, 9*page) // 700 bytes are there
	for _, c := range []struct {
		need int
		err  error
	}{{1, nil}, {699, nil}, {700, nil}, {701, uring.ErrShort}, {page, uring.ErrShort}, {page + 1, uring.ErrShort}} {
		r := last
		r.Need = c.need
		b.submit([]uring.Read{r}, nil)
		b.drain(func(d uring.Done) {
			if c.err == nil {
				b.check(r, d)
				return
			}
			var e *uring.ReadError
			if !errors.Is(d.Err, c.err) || d.N != 700 || !errors.As(d.Err, &e) || e.Want != c.need || e.Got != 700 || e.Offset != r.Offset {
				b.Errorf("need %d: %d bytes, %v", c.need, d.N, d.Err)
			}
		})
	}
	beyond := slot(1, 0, 0, 1, 20*page)
	b.submit([]uring.Read{beyond}, nil)
	b.drain(func(d uring.Done) {
		if !errors.Is(d.Err, uring.ErrShort) || d.N != 0 {
			b.Errorf("past the end: %d bytes, %v", d.N, d.Err)
		}
	})
}

// depth: no more is taken than Limits says, and room comes back.
func depth(b *bench) {
	limit := b.dev.Limits().Depth
	reads := make([]uring.Read, limit+5)
	for i := range reads {
		reads[i] = slot(0, 0, i%64, 1, int64(i%100)*page)
		reads[i].Tag = uint64(i)
	}
	n, err := b.dev.Submit(reads)
	if err != nil || n != limit {
		b.Fatalf("%d reads taken of %d, depth %d, %v", n, len(reads), limit, err)
	}
	if n, err := b.dev.Submit(reads[limit:]); err != nil || n != 0 {
		b.Fatalf("%d reads taken beyond the depth, %v", n, err)
	}
	count := 0
	b.drain(func(d uring.Done) {
		if count++; d.Err != nil {
			b.Error(d.Err)
		}
	})
	if count != limit {
		b.Errorf("%d Dones of %d reads", count, limit)
	}
	if n, err := b.dev.Submit(reads[limit:]); err != nil || n != 5 {
		b.Errorf("%d reads taken after all were done, %v", n, err)
	}
	b.drain(func(uring.Done) { count++ })
	if count != len(reads) {
		b.Errorf("%d Dones of %d reads", count, len(reads))
	}
}

// many: 3,000 reads handed in as fast as they are taken, every tag once.
func many(b *bench) {
	reads := make([]uring.Read, 3000)
	for i := range reads {
		reads[i] = slot(0, i%2, i%64, 1, int64(i%100)*page)
		reads[i].Tag, reads[i].Class = uint64(i), uring.Class(i%3%2)
	}
	seen := make([]int, len(reads))
	count := func(d uring.Done) {
		if seen[d.Tag]++; d.Err != nil {
			b.Error(d.Err)
		}
	}
	b.submit(reads, count)
	b.drain(count)
	for tag, n := range seen {
		if n != 1 {
			b.Fatalf("tag %d: %d Dones", tag, n)
		}
	}
}

// random: a pager's life: slots of 4 pages, both classes, looks and waits of any length, some cancelled.
func random(b *bench) {
	const slots, slotPages = 2 * 16, 4
	r := rand.New(rand.NewPCG(7, 7))
	var flying [slots]*uring.Read
	finished := 0
	finish := func(d uring.Done) {
		read := flying[d.Tag]
		if read == nil {
			b.Fatalf("a Done of tag %d, which is not in flight", d.Tag)
		}
		flying[d.Tag] = nil
		finished++
		if !errors.Is(d.Err, uring.ErrCanceled) {
			b.check(*read, d)
		}
	}
	var done [5]uring.Done
	for range 3000 {
		i := r.IntN(slots)
		switch {
		case r.IntN(4) == 0:
			b.wait(r.IntN(4), done[:r.IntN(6)], finish)
		case flying[i] != nil:
			if r.IntN(8) == 0 {
				b.dev.Cancel(uint64(i))
			}
		default:
			n := 1 + r.IntN(slotPages)
			read := slot(0, i%2, i/2*slotPages, n, int64(r.IntN(100-n))*page)
			read.Tag, read.Class, read.Need = uint64(i), uring.Class(r.IntN(2)), 1+r.IntN(n*page)
			if got, err := b.dev.Submit([]uring.Read{read}); err != nil {
				b.Fatal(err)
			} else if got == 1 {
				flying[i] = &read
			}
		}
	}
	b.drain(finish)
	for i, f := range flying {
		if f != nil {
			b.Errorf("tag %d never came back", i)
		}
	}
	if finished < 500 {
		b.Errorf("only %d reads finished", finished)
	}
}

// nothingToWaitFor: waiting for more than is in flight ends.
func nothingToWaitFor(b *bench) {
	var done [8]uring.Done
	for _, least := range []int{0, 1, 8, 100} {
		if n, err := b.dev.Wait(least, done[:]); n != 0 || err != nil {
			b.Errorf("least %d: %d, %v", least, n, err)
		}
	}
	if n, err := b.dev.Submit(nil); n != 0 || err != nil {
		b.Errorf("nothing submitted: %d, %v", n, err)
	}
	b.submit([]uring.Read{slot(0, 0, 0, 1, 0), slot(0, 0, 1, 1, 0)}, nil)
	if n, err := b.dev.Wait(100, done[:]); n != 2 || err != nil {
		b.Errorf("2 in flight, waited for 100: %d, %v", n, err)
	}
	// looking alone brings completions out, sooner or later
	b.submit([]uring.Read{slot(0, 0, 0, 1, 0)}, nil)
	for {
		n, err := b.dev.Wait(0, done[:])
		if err != nil {
			b.Fatal(err)
		}
		if n == 1 {
			return
		}
		runtime.Gosched()
	}
}

// smallDone: what does not fit in done comes with the next Wait.
func smallDone(b *bench) {
	var reads []uring.Read
	for i := range 5 {
		reads = append(reads, slot(0, 0, i, 1, int64(i)*page))
	}
	b.submit(reads, nil)
	if n, err := b.dev.Wait(5, nil); n != 0 || err != nil {
		b.Errorf("no room for any: %d, %v", n, err)
	}
	var done [2]uring.Done
	for _, want := range []int{2, 2, 1, 0} {
		if n, err := b.dev.Wait(9, done[:]); n != want || err != nil {
			b.Errorf("%d, %v, want %d", n, err, want)
		}
	}
}

// cancel: the Done comes all the same, good or of kind ErrCanceled.
func cancel(b *bench) {
	var reads []uring.Read
	for i := range min(32, b.dev.Limits().Depth) {
		r := slot(0, i%2, i, 1, int64(i)*page)
		r.Class, r.Tag = uring.Prefetch, uint64(i)
		reads = append(reads, r)
	}
	b.submit(reads, nil)
	for i := range reads {
		if i%3 == 0 {
			b.dev.Cancel(uint64(i))
		}
	}
	b.dev.Cancel(12345)
	count := 0
	b.drain(func(d uring.Done) {
		count++
		if errors.Is(d.Err, uring.ErrCanceled) && d.Tag%3 == 0 {
			return
		}
		b.check(reads[d.Tag], d)
	})
	if count != len(reads) {
		b.Errorf("%d Dones of %d reads", count, len(reads))
	}
	b.submit(reads[:1], nil) // the tag is as good as before
	b.drain(func(d uring.Done) { b.check(reads[0], d) })
}

// impossible: what no device can do is an error of Submit, takes nothing and panics nowhere.
func impossible(b *bench) {
	for name, change := range map[string]func(*uring.Read){
		"file":              func(r *uring.Read) { r.File = 2 },
		"file below":        func(r *uring.Read) { r.File = -1 },
		"region":            func(r *uring.Read) { r.Region = 2 },
		"region below":      func(r *uring.Read) { r.Region = -1 },
		"offset":            func(r *uring.Read) { r.Offset = 100 },
		"offset below":      func(r *uring.Read) { r.Offset = -page },
		"offset huge":       func(r *uring.Read) { r.Offset = 1<<63 - page },
		"length":            func(r *uring.Read) { r.Length = page + 1 },
		"length 0":          func(r *uring.Read) { r.Length = 0 },
		"length below":      func(r *uring.Read) { r.Length, r.Need = -page, -page },
		"length huge":       func(r *uring.Read) { r.Length = 1 << 40 },
		"need 0":            func(r *uring.Read) { r.Need = 0 },
		"need above length": func(r *uring.Read) { r.Need = page + 1 },
		"region offset":     func(r *uring.Read) { r.RegionOffset = 8 },
		"region border":     func(r *uring.Read) { r.RegionOffset = regionSize },
		"region below 0":    func(r *uring.Read) { r.RegionOffset = -page },
		"region overflow":   func(r *uring.Read) { r.RegionOffset = 1<<63 - page },
	} {
		good, bad := slot(0, 0, 0, 1, 0), slot(0, 0, 1, 1, 0)
		change(&bad)
		if n, err := b.dev.Submit([]uring.Read{good, bad}); n != 0 || !errors.Is(err, uring.ErrRead) {
			b.Errorf("%s: %d taken, %v, want ErrRead", name, n, err)
		}
	}
	b.drain(func(d uring.Done) { b.Errorf("something was taken: %+v", d) })
}

// closeInFlight: Close waits; afterwards nothing is written and nothing is taken.
func closeInFlight(b *bench) {
	var reads []uring.Read
	for i := range 32 {
		reads = append(reads, slot(0, 0, i, 1, int64(i)*page))
	}
	if _, err := b.dev.Submit(reads); err != nil {
		b.Fatal(err)
	}
	b.close()
	b.wipe()
	if _, err := b.dev.Submit(reads[:1]); !errors.Is(err, uring.ErrClosed) {
		b.Errorf("submit after close: %v", err)
	}
	var done [1]uring.Done
	if _, err := b.dev.Wait(1, done[:]); !errors.Is(err, uring.ErrClosed) {
		b.Errorf("wait after close: %v", err)
	}
	if err := b.dev.Close(); err != nil {
		b.Errorf("second close: %v", err)
	}
	for i, x := range b.regions[0] {
		if x != untouched {
			b.Fatalf("byte %d was written after close", i)
		}
	}
}

// noAllocation: on average; the runtime itself may start a thread now and then.
func noAllocation(b *bench) {
	reads := make([]uring.Read, 24)
	for i := range reads {
		reads[i] = slot(0, i%2, i, 1, int64(i)*page)
		reads[i].Class = uring.Class(i % 2)
	}
	done := make([]uring.Done, len(reads))
	if n := testing.AllocsPerRun(100, func() {
		rest := reads
		for got := 0; got < len(reads); {
			n, err := b.dev.Submit(rest)
			if err != nil {
				b.Fatal(err)
			}
			rest = rest[n:]
			if n, err = b.dev.Wait(1, done); err != nil {
				b.Fatal(err)
			}
			got += n
			b.dev.Cancel(1 << 60)
		}
	}); n != 0 {
		b.Errorf("%v allocations for %d reads", n, len(reads))
	}
}
