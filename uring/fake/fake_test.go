package fake

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/uringtest"
)

const page = 4096

// drain waits for everything and returns it in order.
func drain(t *testing.T, d uring.Device) (all []uring.Done) {
	t.Helper()
	var buf [3]uring.Done
	for {
		n, err := d.Wait(1, buf[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		all = append(all, buf[:n]...)
	}
}

func read(i int) uring.Read {
	return uring.Read{Offset: int64(i) * page, RegionOffset: int64(i) * page, Length: page, Need: page, Tag: uint64(i)}
}

func submit(t *testing.T, d uring.Device, reads ...uring.Read) {
	t.Helper()
	if n, err := d.Submit(reads); err != nil || n != len(reads) {
		t.Fatal(n, err)
	}
}

func big(opt Options) (*Disk, []byte) {
	region := make([]byte, 32*page)
	opt.Files = []File{{Name: "big", Size: 1 << 50}}
	return New(opt, [][]byte{region}), region
}

func TestFill(t *testing.T) {
	whole := make([]byte, 100)
	Fill(whole, 1, 1<<40+3)
	for i, b := range whole {
		if b != Byte(1, 1<<40+3+int64(i)) {
			t.Fatalf("byte %d", i)
		}
	}
	part := make([]byte, 31)
	Fill(part, 1, 1<<40+3+20)
	if string(part) != string(whole[20:51]) {
		t.Error("a part differs from the whole")
	}
	if Byte(0, 5) == Byte(1, 5) && Byte(0, 6) == Byte(1, 6) && Byte(0, 7) == Byte(1, 7) {
		t.Error("files do not differ")
	}
}

// One channel of 4096 bytes per ms after 10 ms of latency: the n-th read is there after 10 + n ms.
func TestTime(t *testing.T) {
	d, _ := big(Options{LatencyMin: 10 * time.Millisecond, BytesPerSecond: page * 1000, Poll: 1})
	submit(t, d, read(0), read(1), read(2))
	var done [8]uring.Done
	if n, _ := d.Wait(0, done[:]); n != 0 {
		t.Error("there at once")
	}
	d.Advance(10 * time.Millisecond)
	if n, _ := d.Wait(2, done[:]); n != 2 || d.Now() != 12*time.Millisecond {
		t.Errorf("%d reads after %v", n, d.Now())
	}
	if n, _ := d.Wait(5, done[:]); n != 1 || d.Now() != 13*time.Millisecond {
		t.Errorf("%d reads after %v", n, d.Now())
	}
}

func TestSeed(t *testing.T) {
	order := func(seed uint64) (s string) {
		d, _ := big(Options{Seed: seed, LatencyMean: time.Millisecond, Reorder: true})
		for i := range 20 {
			submit(t, d, read(i))
		}
		for _, e := range drain(t, d) {
			s += string(rune('a' + e.Tag))
		}
		return s
	}
	first, again, other := order(1), order(1), order(2)
	if first != again || first == other || first == "abcdefghijklmnopqrst" {
		t.Error(first, again, other)
	}
}

func TestDemandOvertakes(t *testing.T) {
	d, _ := big(Options{LatencyMin: time.Millisecond, Parallel: 1})
	guess, other, wanted := read(0), read(1), read(2)
	guess.Class, other.Class = uring.Prefetch, uring.Prefetch
	submit(t, d, guess, other)
	submit(t, d, wanted)
	all := drain(t, d)
	if all[0].Tag != 0 || all[1].Tag != 2 || all[2].Tag != 1 {
		t.Error(all)
	}
}

func TestBytesComeWithTheDone(t *testing.T) {
	d, region := big(Options{LatencyMin: time.Millisecond})
	submit(t, d, read(1))
	if region[page] != 0xdb || region[2*page-1] != 0xdb || region[2*page] != 0 {
		t.Error("the target of an accepted read was not overwritten")
	}
	drain(t, d)
	if region[page] != Byte(0, page) || region[2*page-1] != Byte(0, 2*page-1) {
		t.Error("wrong bytes")
	}
}

func TestFaults(t *testing.T) {
	type want struct {
		n   int
		err error
	}
	good := want{page, nil}
	for name, c := range map[string]struct {
		fault Fault
		want  [4]want // of reads of page 0, 1, 2 and page 1 again
	}{
		"once":     {Fault{From: page, To: 2 * page, Times: 1, Errno: syscall.EIO}, [4]want{good, {page / 2, syscall.EIO}, good, good}},
		"always":   {Fault{From: page + 5, To: page + 6, Errno: syscall.EIO}, [4]want{good, {page / 2, syscall.EIO}, good, {page / 2, syscall.EIO}}},
		"short":    {Fault{From: 2 * page, Short: 17}, [4]want{good, good, {17, uring.ErrShort}, good}},
		"all":      {Fault{File: AnyFile, Short: page - 1}, [4]want{{page - 1, uring.ErrShort}, {page - 1, uring.ErrShort}, {page - 1, uring.ErrShort}, {page - 1, uring.ErrShort}}},
		"other":    {Fault{File: 1, Errno: syscall.EIO}, [4]want{good, good, good, good}},
		"unlikely": {Fault{Probability: 1e-300, Errno: syscall.EIO}, [4]want{good, good, good, good}},
	} {
		d, _ := big(Options{Faults: []Fault{c.fault}})
		for i, r := range []uring.Read{read(0), read(1), read(2), read(1)} {
			submit(t, d, r)
			e := drain(t, d)[0]
			if e.N != c.want[i].n || !errors.Is(e.Err, c.want[i].err) {
				t.Errorf("%s: read %d: %d, %v, want %v", name, i, e.N, e.Err, c.want[i])
			}
		}
	}
}

func TestLateAndMisdirected(t *testing.T) {
	d, region := big(Options{Faults: []Fault{{To: page, Delay: time.Second}, {From: page, Misdirect: 512}}})
	submit(t, d, read(0), read(1))
	all := drain(t, d)
	if all[0].Tag != 1 || all[1].Tag != 0 || d.Now() < time.Second {
		t.Error(all, d.Now())
	}
	if all[0].Err != nil || region[page] != Byte(0, page+512) {
		t.Error("not misdirected")
	}
}

func TestCancel(t *testing.T) {
	d, _ := big(Options{LatencyMin: time.Millisecond, Parallel: 1})
	submit(t, d, read(0), read(1))
	d.Cancel(1)
	d.Cancel(99)
	all := drain(t, d)
	if len(all) != 2 || all[0].Err != nil || !errors.Is(all[1].Err, uring.ErrCanceled) {
		t.Error(all)
	}
	if s := d.Stats(); s.Canceled != 1 || s.Reads != 2 || s.Failed != 0 || s.MaxInFlight != 2 {
		t.Errorf("%+v", s)
	}
}

func TestContract(t *testing.T) {
	for name, opt := range map[string]Options{
		"plain":  {},
		"slow":   {LatencyMin: time.Millisecond, LatencyMean: 5 * time.Millisecond, BytesPerSecond: 1 << 30, Parallel: 3, Seed: 1},
		"chaos":  {LatencyMean: 5 * time.Millisecond, Reorder: true, Seed: 2, Depth: 40},
		"narrow": {LatencyMean: time.Millisecond, Reorder: true, Seed: 3, Depth: 33, Parallel: 1},
	} {
		t.Run(name, func(t *testing.T) {
			uringtest.Run(t, func(t *testing.T, files []uringtest.File, regions [][]byte) uring.Device {
				opt := opt
				for _, f := range files {
					opt.Files = append(opt.Files, File{Name: f.Path, Data: f.Data})
				}
				return New(opt, regions)
			})
		})
	}
}
