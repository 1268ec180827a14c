package uring

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

const sector = 512

// oneFile writes a file of random bytes and opens it.
func oneFile(t *testing.T, size int) (*Files, []byte) {
	t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	name := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := OpenFiles([]string{name}, DirectOff) // any alignment will do for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	files.list[0].align = sector
	return files, data
}

// ringOn opens a ring on a thread of its own.
func ringOn(t *testing.T, files *Files, region []byte, depth int) (*ringDevice, *ring) {
	t.Helper()
	needRing(t)
	runtime.LockOSThread()
	d, refused, err := openRingDevice(newQueue(files, [][]byte{region}, depth), Limits{Depth: depth}, Options{PrefetchBytes: DefaultInFlight})
	if err != nil || refused != nil {
		t.Fatal(err, refused)
	}
	rd := d.(*ringDevice)
	r := rd.kernel.(*ring)
	t.Cleanup(func() {
		if err := rd.Close(); err != nil {
			t.Error(err)
		}
	})
	return rd, r
}

// run submits reads as there is room and returns what came, by tag.
func run(t *testing.T, d Device, reads []Read) map[uint64]Done {
	t.Helper()
	got := map[uint64]Done{}
	var done [16]Done
	for want := len(reads); len(got) < want; {
		n, err := d.Submit(reads)
		if err != nil {
			t.Fatal(err)
		}
		reads = reads[n:]
		if n, err = d.Wait(1, done[:]); err != nil {
			t.Fatal(err)
		}
		for _, e := range done[:n] {
			if _, ok := got[e.Tag]; ok {
				t.Fatalf("tag %d twice", e.Tag)
			}
			got[e.Tag] = e
		}
	}
	if n, err := d.Wait(1, done[:]); n != 0 || err != nil {
		t.Fatalf("something is left: %d, %v", n, err)
	}
	return got
}

// shaky puts faults between the device and the kernel.
type shaky struct {
	kernel
	calls  int
	refuse func(call int) error               // of enter and send; nil: let it pass
	change func(user uint64, res int32) int32 // of a completion
	pushed []int64                            // offsets
}

func (s *shaky) push(file FileID, region int, target []byte, offset int64, user uint64) bool {
	ok := s.kernel.push(file, region, target, offset, user)
	if ok {
		s.pushed = append(s.pushed, offset)
	}
	return ok
}

func (s *shaky) enter(wait int) error {
	if s.calls++; s.refuse != nil {
		if err := s.refuse(s.calls); err != nil {
			return err
		}
	}
	return s.kernel.enter(wait)
}

func (s *shaky) send() error {
	if s.calls++; s.refuse != nil {
		if err := s.refuse(s.calls); err != nil {
			return err
		}
	}
	return s.kernel.send()
}

func (s *shaky) pop() (uint64, int32, bool) {
	user, res, ok := s.kernel.pop()
	if ok && s.change != nil {
		res = s.change(user, res)
	}
	return user, res, ok
}

// Every third call into the kernel is refused with a passing errno: no read fails, none is submitted twice.
func TestPassingShortages(t *testing.T) {
	files, data := oneFile(t, 64*sector)
	for _, errno := range []unix.Errno{unix.EINTR, unix.EAGAIN, unix.EBUSY} {
		t.Run(unix.ErrnoName(errno), func(t *testing.T) {
			region := make([]byte, 64*sector+sector)
			region = region[-addr(region)&(sector-1):][:64*sector]
			d, _ := ringOn(t, files, region, 8)
			s := &shaky{kernel: d.kernel, refuse: func(call int) error {
				if call%3 == 0 {
					return errno
				}
				return nil
			}}
			d.kernel = s
			var reads []Read
			for i := range 300 {
				reads = append(reads, Read{Offset: int64(i % 64 * sector), RegionOffset: int64(i % 64 * sector), Length: sector, Need: sector, Tag: uint64(i)})
			}
			for tag, e := range run(t, d, reads) {
				if e.Err != nil {
					t.Errorf("tag %d: %v", tag, e.Err)
				}
			}
			if len(s.pushed) != len(reads) {
				t.Errorf("%d requests for %d reads", len(s.pushed), len(reads))
			}
			if !bytes.Equal(region, data) {
				t.Error("other bytes than the file's")
			}
		})
	}
}

// A shortage that does not pass, and an errno that means the ring is broken, end the device with an error, not a hang.
func TestBrokenRing(t *testing.T) {
	files, _ := oneFile(t, 4096)
	for _, errno := range []unix.Errno{unix.EFAULT, unix.EBADF, unix.EBADFD, unix.EBADR, unix.ENXIO, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOMEM, unix.EPERM, unix.EEXIST, unix.EIO} {
		d, _ := ringOn(t, files, make([]byte, 8192), 8)
		real := d.kernel
		d.kernel = &shaky{kernel: real, refuse: func(int) error { return errno }}
		_, err := d.Submit([]Read{{Length: sector, Need: 1}})
		if !errors.Is(err, errno) || !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), unix.ErrnoName(errno)) {
			t.Errorf("%v: %v", errno, err)
		}
		if errors.Is(err, ErrThread) != (errno == unix.EEXIST) {
			t.Errorf("%v: %v", errno, err)
		}
		if _, err := d.Wait(1, make([]Done, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("%v: wait: %v", errno, err)
		}
		if err := d.Close(); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "may still write") {
			t.Errorf("%v: close: %v", errno, err)
		}
	}
}

// One short read of every length: the rest is asked for from the last aligned offset.
func TestShortReads(t *testing.T) {
	const length = 8 * sector
	files, data := oneFile(t, length)
	for name, need := range map[string]int{"all needed": length, "widened": length - 100} {
		t.Run(name, func(t *testing.T) {
			region := make([]byte, 2*length)
			d, _ := ringOn(t, files, region, 1)
			s := &shaky{kernel: d.kernel}
			d.kernel = s
			for short := 1; short < length; short++ {
				first := true
				s.pushed = s.pushed[:0]
				s.change = func(_ uint64, res int32) int32 {
					if first {
						first = false
						clear(region[short:length]) // what did not come is not there
						return int32(short)
					}
					return res
				}
				e := run(t, d, []Read{{Length: length, Need: need, Tag: 3}})[3]
				if e.Err != nil || e.N < need || !bytes.Equal(region[:e.N], data[:e.N]) {
					t.Fatalf("short by %d: %d bytes, %v", length-short, e.N, e.Err)
				}
				want := fmt.Sprint([]int64{0, int64(short &^ (sector - 1))})
				if short >= need {
					want = "[0]"
				}
				if fmt.Sprint(s.pushed) != want {
					t.Fatalf("short by %d: requests at %v, want %v", length-short, s.pushed, want)
				}
			}
		})
	}
}

// Results that repeat, fail or get nowhere.
func TestResults(t *testing.T) {
	const length = 8 * sector
	files, _ := oneFile(t, length)
	d, _ := ringOn(t, files, make([]byte, length+4096), 4)
	s := &shaky{kernel: d.kernel}
	d.kernel = s
	once := func(errno unix.Errno) func(uint64, int32) int32 {
		n := 0
		return func(_ uint64, res int32) int32 {
			if n++; n == 1 {
				return -int32(errno)
			}
			return res
		}
	}
	always := func(v int32) func(uint64, int32) int32 { return func(uint64, int32) int32 { return v } }
	for name, c := range map[string]struct {
		change   func(uint64, int32) int32
		got      int
		want     error
		requests int
	}{
		"EAGAIN once":   {once(unix.EAGAIN), length, nil, 2},
		"EINTR once":    {once(unix.EINTR), length, nil, 2},
		"EBUSY once":    {once(unix.EBUSY), length, nil, 2},
		"EAGAIN always": {always(-int32(unix.EAGAIN)), 0, unix.EAGAIN, maxTries},
		"nothing":       {always(0), 0, ErrShort, 1},
		"no progress":   {always(100), 100, ErrShort, 2},
		"a sector each": {always(sector), length, nil, 8},
		"EIO":           {always(-int32(unix.EIO)), 0, unix.EIO, 1},
		"EINVAL":        {always(-int32(unix.EINVAL)), 0, unix.EINVAL, 1},
		"ENOMEM":        {always(-int32(unix.ENOMEM)), 0, unix.ENOMEM, 1},
		"EFAULT":        {always(-int32(unix.EFAULT)), 0, unix.EFAULT, 1},
		"EBADF":         {always(-int32(unix.EBADF)), 0, unix.EBADF, 1},
		"EOPNOTSUPP":    {always(-int32(unix.EOPNOTSUPP)), 0, unix.EOPNOTSUPP, 1},
		"ECANCELED":     {always(-int32(unix.ECANCELED)), 0, ErrCanceled, 1},
	} {
		s.change, s.pushed = c.change, nil
		e := run(t, d, []Read{{Length: length, Need: length, Tag: 5}})[5]
		if !errors.Is(e.Err, c.want) || (e.Err == nil) != (c.want == nil) || e.N != c.got || len(s.pushed) != c.requests {
			t.Errorf("%s: %d bytes in %d requests, %v", name, e.N, len(s.pushed), e.Err)
		}
		var re *ReadError
		if c.want != nil && (!errors.As(e.Err, &re) || re.Want != length || re.Got != c.got || strings.Contains(e.Err.Error(), "\n") || !strings.Contains(e.Err.Error(), "model.gguf: read at 0: wanted 4096 bytes")) {
			t.Errorf("%s: %v", name, e.Err)
		}
	}
}

// An answer that belongs to nothing ends the device.
func TestForeignCompletion(t *testing.T) {
	files, _ := oneFile(t, 4096)
	for _, user := range []uint64{0, 3, 1 << 32, 1<<32 | 3, 1 << 63} {
		d := &ringDevice{queue: newQueue(files, [][]byte{make([]byte, 8192)}, 2), kernel: &script{foreign: []uint64{user}}, owner: unix.Gettid()}
		if _, err := d.Wait(0, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("%#x: %v", user, err)
		}
	}
}

// script is a kernel that completes what the test says, in its order.
type script struct {
	sent, inside []uint64
	most         int
	foreign      []uint64
	ready        []uint64
}

func (s *script) push(_ FileID, _ int, _ []byte, _ int64, user uint64) bool {
	s.sent = append(s.sent, user)
	return true
}
func (s *script) unsent() int { return len(s.sent) }
func (s *script) send() error {
	s.inside, s.sent = append(s.inside, s.sent...), nil
	s.most = max(s.most, len(s.inside))
	return nil
}
func (s *script) enter(int) error { return s.send() }
func (s *script) pop() (uint64, int32, bool) {
	if len(s.foreign) > 0 {
		return s.foreign[0], 0, true
	}
	if len(s.ready) == 0 {
		return 0, 0, false
	}
	user := s.ready[0]
	s.ready = s.ready[1:]
	return user, 1 << 20, true
}
func (s *script) close() error { return nil }

// complete lets the i-th request inside be done.
func (s *script) complete(i int) {
	s.ready = append(s.ready, s.inside[i])
	s.inside = append(s.inside[:i], s.inside[i+1:]...)
}

// Guesses fly only while less than the window does; demand flies at once; a waiting guess can be cancelled.
func TestPrefetchWaits(t *testing.T) {
	runtime.LockOSThread()
	files, _ := oneFile(t, 4096)
	k := &script{}
	d := &ringDevice{queue: newQueue(files, [][]byte{make([]byte, 16<<20)}, 16), kernel: k, owner: unix.Gettid(), window: DefaultInFlight}
	read := func(tag uint64, class Class) Read {
		return Read{Length: 1 << 20, Need: 1 << 20, RegionOffset: int64(tag) << 20, Tag: tag, Class: class}
	}
	var reads []Read
	for tag := range uint64(7) {
		reads = append(reads, read(tag, Prefetch))
	}
	reads = append(reads, read(10, Demand))
	if n, err := d.Submit(reads); n != 8 || err != nil {
		t.Fatal(n, err)
	}
	tags := func() (list []uint64) {
		for _, user := range k.inside {
			list = append(list, d.ops[uint32(user)].Tag)
		}
		return list
	}
	if got := fmt.Sprint(tags()); got != "[10 0 1 2]" {
		t.Errorf("in flight: %s, want the demand and 3 MB of guesses", got)
	}
	if n, err := d.Submit([]Read{read(11, Demand), read(12, Demand)}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if got := fmt.Sprint(tags()); got != "[10 0 1 2 11 12]" {
		t.Errorf("in flight: %s, want both demands too", got)
	}
	d.Cancel(3)
	k.complete(0)
	k.complete(0)
	var done [4]Done
	if n, err := d.Wait(0, done[:]); n != 3 || err != nil || done[0].Tag != 3 || !errors.Is(done[0].Err, ErrCanceled) || done[1].Tag != 10 || done[2].Tag != 0 {
		t.Error(n, err, done)
	}
	k.complete(0)
	if n, err := d.Wait(0, done[:]); n != 1 || err != nil || fmt.Sprint(tags()) != "[2 11 12 4]" {
		t.Error(n, err, tags())
	}
}

// In flight never exceeds the depth, which the completion queue holds twice.
func TestInFlightBounded(t *testing.T) {
	runtime.LockOSThread()
	files, _ := oneFile(t, 4096)
	k := &script{}
	d := &ringDevice{queue: newQueue(files, [][]byte{make([]byte, 2<<20)}, 4), kernel: k, owner: unix.Gettid(), window: DefaultInFlight}
	r := Read{Length: 1 << 20, Need: 1 << 20}
	left, finished := 100, 0
	var done [3]Done
	for finished < 100 {
		n, err := d.Submit([]Read{r, r, r, r, r, r, r, r, r}[:min(9, left)])
		if err != nil {
			t.Fatal(err)
		}
		left -= n
		k.complete(len(k.inside) / 2)
		if n, err = d.Wait(0, done[:]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		finished += n
	}
	if k.most != 4 {
		t.Errorf("%d in flight at most, depth 4", k.most)
	}
}

// Another thread gets a clear error from every call, also where the kernel itself must find out: then the ring is lost.
func TestForeignThread(t *testing.T) {
	files, _ := oneFile(t, 4096)
	d, _ := ringOn(t, files, make([]byte, 8192), 4)
	d.single = false
	other := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			f()
		}()
		<-done
	}
	read := []Read{{Length: sector, Need: sector}}
	other(func() {
		if _, err := d.Submit(read); !errors.Is(err, ErrThread) {
			t.Errorf("submit: %v", err)
		}
		if _, err := d.Wait(1, make([]Done, 1)); !errors.Is(err, ErrThread) {
			t.Errorf("wait: %v", err)
		}
		if err := d.Close(); !errors.Is(err, ErrThread) {
			t.Errorf("close: %v", err)
		}
	})
	if e := run(t, d, read)[0]; e.Err != nil {
		t.Errorf("the owner after that: %v", e.Err)
	}
	deceived, _ := ringOn(t, files, make([]byte, 8192), 4)
	owner := deceived.owner
	other(func() {
		deceived.owner = unix.Gettid() // with the checks on
		if _, err := deceived.Wait(1, make([]Done, 1)); err != nil && !errors.Is(err, ErrThread) {
			t.Errorf("wait: %v", err)
		}
		if _, err := deceived.Submit(read); !errors.Is(err, ErrThread) {
			t.Errorf("submit: %v", err)
		}
	})
	deceived.owner, deceived.dead, deceived.flying = owner, nil, 0
}

// Signals interrupt the calls: a CPU profile and SIGURG as fast as another goroutine can send it.
func TestSignals(t *testing.T) {
	const reads, size = 2000, 128 << 10
	files, data := oneFile(t, size)
	d, _ := ringOn(t, files, make([]byte, size), 4)
	if err := pprof.StartCPUProfile(&bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	var stop atomic.Bool
	ended, owner := make(chan int), unix.Gettid()
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			_ = unix.Tgkill(unix.Getpid(), owner, unix.SIGURG)
			runtime.Gosched()
		}
		ended <- n
	}()
	var done [4]Done
	for range reads {
		if _, err := d.Submit([]Read{{Length: size, Need: size}}); err != nil {
			t.Fatal(err)
		}
		if n, err := d.Wait(1, done[:]); n != 1 || err != nil || done[0].Err != nil {
			t.Fatal(n, err, done[0].Err)
		}
	}
	stop.Store(true)
	if n := <-ended; n == 0 {
		t.Error("no signal was sent")
	}
	if !bytes.Equal(d.regions[0], data) {
		t.Error("other bytes than the file's")
	}
}
