package uring

import (
	"bytes"
	"errors"
	"testing"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

func addr(b []byte) int { return int(uintptr(unsafe.Pointer(&b[0]))) }

// giouring registers files as 64-bit numbers; then file 1 would be descriptor 0.
func TestSecondFileIsRegistered(t *testing.T) {
	a, _ := oneFile(t, 4096)
	b, data := oneFile(t, 3*4096)
	two := &Files{list: []file{a.list[0], b.list[0]}}
	region := make([]byte, 3*4096)
	d, r := ringOn(t, two, region, 4)
	if !r.files {
		t.Fatal("files are not registered")
	}
	e := run(t, d, []Read{{File: 1, Length: 3 * 4096, Need: 3 * 4096}})[0]
	if e.Err != nil || e.N != 3*4096 || !bytes.Equal(region, data) {
		t.Errorf("%d bytes, %v", e.N, e.Err)
	}
}

// giouring leaves an entry's old flags in place; a read with the flag of a datasync is EINVAL.
func TestEntriesAreCleared(t *testing.T) {
	files, _ := oneFile(t, 8*sector)
	d, r := ringOn(t, files, make([]byte, 8*sector), 4)
	for range 2 * 4 {
		e := r.r.GetSQE()
		e.PrepareFsync(files.list[0].fd, 1)
		e.Addr3 = 12345
		if err := retry(func() error { return r.enter(1) }); err != nil {
			t.Fatal(err)
		}
		if _, res, ok := r.pop(); !ok {
			t.Fatal("fsync gave", res)
		}
	}
	var reads []Read
	for i := range 8 {
		reads = append(reads, Read{Offset: int64(i) * sector, RegionOffset: int64(i) * sector, Length: sector, Need: sector, Tag: uint64(i)})
	}
	for tag, e := range run(t, d, reads) {
		if e.Err != nil {
			t.Errorf("read %d: %v", tag, e.Err)
		}
	}
}

// giouring's PeekBatchCQE hands out entries of former rounds; what was taken once must not come again.
func TestCompletionsComeOnce(t *testing.T) {
	files, _ := oneFile(t, 4096)
	_, r := ringOn(t, files, make([]byte, 4096), 4)
	for round := range 10 {
		for i := range 3 {
			e := r.r.GetSQE()
			*e = giouring.SubmissionQueueEntry{}
			e.PrepareNop()
			e.UserData = uint64(10*round + i)
		}
		if err := retry(func() error { return r.enter(3) }); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if user, res, ok := r.pop(); !ok || res != 0 || user != uint64(10*round+i) {
				t.Fatal(round, i, user, res, ok)
			}
		}
		if user, _, ok := r.pop(); ok {
			t.Fatalf("round %d: %d again", round, user)
		}
	}
}

// The completion queue has room for everything that may fly: twice the depth in the kernel, measured by filling it.
func TestCompletionQueueHoldsDepth(t *testing.T) {
	files, _ := oneFile(t, 4096)
	for _, depth := range []int{1, 3, 4, 128, 200} {
		_, r := ringOn(t, files, make([]byte, 4096), depth)
		for range depth {
			e := r.r.GetSQE()
			if e == nil {
				t.Fatalf("depth %d: the submission queue is full early", depth)
			}
			*e = giouring.SubmissionQueueEntry{}
			e.PrepareNop()
		}
		if err := retry(func() error { return r.enter(depth) }); err != nil {
			t.Fatal(err)
		}
		if n := int(r.r.CQReady()); n != depth || r.r.CQHasOverflow() {
			t.Errorf("depth %d: %d completions ready, overflow %v", depth, n, r.r.CQHasOverflow())
		}
		for range depth {
			r.pop()
		}
	}
}

// A region larger than a registered buffer may be: every read is right, those across a border too.
func TestPieces(t *testing.T) {
	const piece, size = 4 * sector, 11 * sector
	files, data := oneFile(t, size)
	region := make([]byte, size+4096)
	region = region[-addr(region)&4095:][:size]
	other := make([]byte, sector)
	d, r := ringOn(t, files, region, 4)
	if _, err := r.r.UnregisterBuffers(); err != nil {
		t.Fatal(err)
	}
	r.shift, r.regions, r.first = 11, [][]byte{other, region, region}, make([]int, 3)
	d.regions = r.regions
	if err := r.registerBuffers(); err != nil {
		t.Fatal(err)
	}
	if r.first[1] != 1 || r.first[2] != 4 {
		t.Fatalf("first pieces %v", r.first)
	}
	if _, ok := r.piece(1, uintptr(addr(region)+piece-sector), 2*sector); ok {
		t.Error("a range across a border is in no piece")
	}
	if n, ok := r.piece(2, uintptr(addr(region)+2*piece), 3*sector); !ok || n != 6 {
		t.Errorf("the last piece is number %d, %v", n, ok)
	}
	for at := range 11 {
		for n := 1; at+n <= 11; n++ {
			clear(region)
			rd := Read{Region: 1 + at%2, RegionOffset: int64(at) * sector, Offset: int64(at) * sector, Length: n * sector, Need: n * sector}
			e := run(t, d, []Read{rd})[0]
			if e.Err != nil || !bytes.Equal(region[at*sector:][:n*sector], data[at*sector:][:n*sector]) {
				t.Fatalf("%d sectors from %d: %v", n, at, e.Err)
			}
		}
	}
}

// repeated is so many bytes of addresses behind which the same piece of memory lies over and over, so that the size of a
// region can be tried without having the memory.
func repeated(t *testing.T, size, piece int) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("region", 0)
	if err == nil {
		err = unix.Ftruncate(fd, int64(piece))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	all, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.MunmapPtr(all, uintptr(size)); err != nil {
			t.Error(err)
		}
	})
	for at := 0; at < size; at += piece {
		if _, err := unix.MmapPtr(fd, 0, unsafe.Add(all, at), uintptr(min(piece, size-at)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
	}
	return unsafe.Slice((*byte)(all), size)
}

// More than 3 GiB are registered as pieces that the kernel takes, and reads at every border of two are right.
func TestBordersOfPieces(t *testing.T) {
	const size, length = 3<<30 + 4096, 4 * sector
	files, data := oneFile(t, length)
	region := repeated(t, size, 4<<20)
	d, r := ringOn(t, files, region, 4)
	if !r.buffers {
		t.Skip("not registered: " + memlock())
	}
	if n := pieces(region); n != 4 {
		t.Errorf("%d pieces", n)
	}
	for border := 1 << 30; border < size; border += 1 << 30 {
		for before := 0; before <= length; before += sector {
			at := border - before
			target := region[at : at+length]
			if _, ok := r.piece(0, uintptr(addr(target)), length); ok != (before == 0 || before == length) {
				t.Errorf("%d bytes before a border: in one piece %v", before, ok)
			}
			clear(target)
			e := run(t, d, []Read{{RegionOffset: int64(at), Length: length, Need: length}})[0]
			if e.Err != nil || !bytes.Equal(target, data) {
				t.Errorf("%d bytes before the border at %d: %v, or other bytes than the file's", before, border, e.Err)
			}
		}
	}
}

// Flags of a later kernel are given up one by one.
func TestSetupFlags(t *testing.T) {
	needRing(t)
	d, err := openRing(8, []uint32{1 << 30, 1 << 31, 0})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Error(err)
	}
	if _, err := openRing(8, []uint32{1 << 30}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a flag of no kernel: %v", err)
	}
}
