package uring

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func preadOn(t *testing.T, files *Files, region []byte, threads int, pread func(int, []byte, int64) (int, error)) *preadDevice {
	t.Helper()
	d := newPread(newQueue(files, [][]byte{region}, 16), threads, Limits{}, pread)
	t.Cleanup(func() { d.Close() })
	return d
}

// The same treatment of results as in the ring.
func TestPreadResults(t *testing.T) {
	const length = 8 * sector
	files, data := oneFile(t, length)
	region := make([]byte, length)
	for name, c := range map[string]struct {
		pread func(call int, p []byte) (int, error) // 0, nil: do it
		got   int
		want  error
		calls string
	}{
		"short":       {func(call int, p []byte) (int, error) { return []int{700, 1300, 0}[min(call, 2)], nil }, length, nil, "[0 512 1536]"},
		"EINTR once":  {func(call int, p []byte) (int, error) { return 0, []error{unix.EINTR, nil}[min(call, 1)] }, length, nil, "[0 0]"},
		"EAGAIN once": {func(call int, p []byte) (int, error) { return 0, []error{unix.EAGAIN, nil}[min(call, 1)] }, length, nil, "[0 0]"},
		"no progress": {func(int, []byte) (int, error) { return 5, nil }, 5, ErrShort, "[0 0]"},
		"EIO later":   {func(call int, p []byte) (int, error) { return []int{1024, 0}[call], []error{nil, unix.EIO}[call] }, 1024, unix.EIO, "[0 1024]"},
		"no errno":    {func(int, []byte) (int, error) { return -1, errors.New("strange") }, 0, unix.EIO, "[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []int64
			d := preadOn(t, files, region, 1, func(fd int, p []byte, offset int64) (int, error) {
				n, err := c.pread(len(calls), p)
				calls = append(calls, offset)
				if err != nil {
					return -1, err
				}
				if n > 0 {
					p = p[:n]
				}
				return unix.Pread(fd, p, offset)
			})
			clear(region)
			e := run(t, d, []Read{{Length: length, Need: length, Tag: 1}})[1]
			if !errors.Is(e.Err, c.want) || (e.Err == nil) != (c.want == nil) || e.N != c.got || fmt.Sprint(calls) != c.calls {
				t.Errorf("%d bytes, %v, calls at %v", e.N, e.Err, calls)
			}
			if !bytes.Equal(region[:e.N], data[:e.N]) {
				t.Error("other bytes than the file's")
			}
		})
	}
}

// One thread is held; meanwhile guesses and demands queue up, and the demands go first.
func TestPreadDemandOvertakes(t *testing.T) {
	files, _ := oneFile(t, 8*sector)
	var mu sync.Mutex
	var order []int64
	entered, hold := make(chan bool), make(chan bool)
	d := preadOn(t, files, make([]byte, 8*sector), 1, func(fd int, p []byte, offset int64) (int, error) {
		mu.Lock()
		order = append(order, offset/sector)
		first := len(order) == 1
		mu.Unlock()
		if first {
			entered <- true
			<-hold
		}
		return unix.Pread(fd, p, offset)
	})
	read := func(i int64, class Class) Read {
		return Read{Offset: i * sector, RegionOffset: i * sector, Length: sector, Need: sector, Tag: uint64(i), Class: class}
	}
	submit := func(reads ...Read) {
		if n, err := d.Submit(reads); n != len(reads) || err != nil {
			t.Fatal(n, err)
		}
	}
	submit(read(0, Prefetch))
	<-entered
	submit(read(1, Prefetch), read(2, Prefetch), read(3, Demand))
	submit(read(4, Demand))
	d.Cancel(2)
	close(hold)
	var done [8]Done
	if n, err := d.Wait(5, done[:]); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if fmt.Sprint(order) != "[0 3 4 1]" {
		t.Errorf("order %v", order)
	}
	if done[0].Tag != 2 || !errors.Is(done[0].Err, ErrCanceled) {
		t.Errorf("cancelled: %+v", done[0])
	}
}
