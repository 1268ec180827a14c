package fake

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/uringtest"
)

// clock is a time that passes when somebody sleeps, and a little with every look.
type clock struct{ now time.Time }

func (c *clock) read() time.Time {
	c.now = c.now.Add(time.Microsecond)
	return c.now
}
func (c *clock) sleep(d time.Duration) { c.now = c.now.Add(d) }

func TestWrappedContract(t *testing.T) {
	for name, opt := range map[string]WrapOptions{
		"as it is": {},
		"slow":     {LatencyMin: time.Millisecond, LatencyMean: time.Millisecond, Seed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			uringtest.Run(t, func(t *testing.T, files []uringtest.File, regions [][]byte) uring.Device {
				var list []File
				for _, f := range files {
					list = append(list, File{Name: f.Path, Data: f.Data})
				}
				c, opt := &clock{}, opt
				opt.Now, opt.Sleep = c.read, c.sleep
				return Wrap(New(Options{Files: list, LatencyMean: time.Millisecond, Reorder: true}, regions), opt)
			})
		})
	}
}

func TestWrappedFaults(t *testing.T) {
	c := &clock{}
	disk, region := big(Options{})
	d := Wrap(disk, WrapOptions{Now: c.read, Sleep: c.sleep, Faults: []Fault{
		{To: page, Times: 1, Errno: syscall.EIO},
		{From: page, To: 2 * page, Short: 100},
		{From: 2 * page, To: 3 * page, Delay: time.Second},
		{From: 3 * page, To: 4 * page, Misdirect: page},
	}})
	reads := []uring.Read{read(0), read(1), read(2), read(3), read(4)}
	submit(t, d, reads...)
	start := c.now
	all := map[uint64]uring.Done{}
	for _, e := range drain(t, d) {
		if all[e.Tag] = e; e.Tag == 2 && c.now.Sub(start) < time.Second {
			t.Error("not late")
		}
	}
	if e := all[0]; !errors.Is(e.Err, syscall.EIO) || e.N >= page {
		t.Errorf("EIO: %+v", e)
	}
	if e := all[1]; !errors.Is(e.Err, uring.ErrShort) || e.N != 100 {
		t.Errorf("short: %+v", e)
	}
	if all[2].Err != nil || all[3].Err != nil || all[4].Err != nil || len(all) != 5 {
		t.Errorf("%+v", all)
	}
	if region[3*page] != Byte(0, 4*page) || region[4*page] != Byte(0, 4*page) {
		t.Error("not misdirected, or the wrong one")
	}
	submit(t, d, read(0))
	if e := drain(t, d)[0]; e.Err != nil {
		t.Errorf("once: %v", e.Err)
	}
}

func TestWrappedBandwidth(t *testing.T) {
	c := &clock{}
	disk, _ := big(Options{})
	d := Wrap(disk, WrapOptions{Now: c.read, Sleep: c.sleep, BytesPerSecond: page * 1000})
	for range 2 { // the channel is free again after a rest
		start := c.now
		submit(t, d, read(0), read(1), read(2))
		drain(t, d)
		if took := c.now.Sub(start); took < 3*time.Millisecond || took > 4*time.Millisecond {
			t.Errorf("three pages of 1 ms each took %v", took)
		}
		c.sleep(time.Second)
	}
}
