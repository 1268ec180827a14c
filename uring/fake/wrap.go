package fake

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// WrapOptions say what a wrapped device does worse. Delays of faults count here too, on the real clock.
type WrapOptions struct {
	Seed                    uint64
	Faults                  []Fault
	LatencyMin, LatencyMean time.Duration // added to every read: at least, and an exponential time of this mean more
	BytesPerSecond          int64         // of a channel that all reads share, one after another (0: endless)

	// Now and Sleep are the clock (nil: that of the machine).
	Now   func() time.Time
	Sleep func(time.Duration)
}

// Wrap makes a device slower and worse. A read that meets a fault is done by the device all the same, so that its bytes
// are in memory, but its Done comes late or says that it failed; a misdirected read is of kind uring.ErrRead unless the
// distance is a multiple of the alignment. Closing it closes the device.
func Wrap(dev uring.Device, opt WrapOptions) uring.Device {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Sleep == nil {
		opt.Sleep = time.Sleep
	}
	w := &wrapped{Device: dev, opt: opt, rand: rand.New(rand.NewPCG(opt.Seed, 1)), faults: arm(opt.Faults)}
	depth := dev.Limits().Depth
	w.slots, w.free, w.held = make([]slot, depth), make([]int, depth), make([]int, 0, depth)
	for i := range w.free {
		w.free[i] = depth - 1 - i
	}
	w.reads, w.done = make([]uring.Read, depth), make([]uring.Done, depth)
	return w
}

// wrapped gives every read a slot, whose number is the tag that the device sees.
type wrapped struct {
	uring.Device
	opt    WrapOptions
	rand   *rand.Rand
	faults []armed
	slots  []slot
	free   []int
	held   []int     // done by the device, not yet given
	inside int       // in the device
	busy   time.Time // until when the channel is taken
	reads  []uring.Read
	done   []uring.Done
}

type slot struct {
	read uring.Read
	effect
	due    time.Time
	done   uring.Done
	inside bool
}

func (w *wrapped) Submit(reads []uring.Read) (int, error) {
	n := min(len(reads), len(w.free))
	now := w.opt.Now()
	for i, r := range reads[:n] {
		at := w.free[len(w.free)-1-i]
		s := &w.slots[at]
		*s = slot{read: r, effect: meet(w.faults, w.rand, &r)}
		s.due = w.moved(now, r.Length).Add(s.delay + w.opt.LatencyMin + time.Duration(w.rand.ExpFloat64()*float64(w.opt.LatencyMean)))
		w.reads[i] = r
		w.reads[i].Tag = uint64(at)
		w.reads[i].Offset += s.misdirect
	}
	n, err := w.Device.Submit(w.reads[:n])
	for range n {
		at := w.free[len(w.free)-1]
		w.free = w.free[:len(w.free)-1]
		w.slots[at].inside = true
		w.inside++
	}
	return n, err
}

// moved is when so many bytes have passed the channel.
func (w *wrapped) moved(now time.Time, bytes int) time.Time {
	if w.opt.BytesPerSecond <= 0 {
		return now
	}
	if now.After(w.busy) {
		w.busy = now
	}
	w.busy = w.busy.Add(time.Duration(float64(bytes) / float64(w.opt.BytesPerSecond) * float64(time.Second)))
	return w.busy
}

func (w *wrapped) Wait(least int, done []uring.Done) (int, error) {
	least = min(least, len(done))
	n := 0
	for wait := 0; ; {
		if err := w.collect(wait); err != nil {
			return n, err
		}
		n += w.give(done[n:])
		if n >= least || w.inside+len(w.held) == 0 {
			return n, nil
		}
		if wait = 0; len(w.held) == 0 {
			wait = 1
			continue
		}
		w.opt.Sleep(w.pause())
	}
}

// collect takes from the device what is done.
func (w *wrapped) collect(least int) error {
	n, err := w.Device.Wait(least, w.done)
	for _, d := range w.done[:n] {
		s := &w.slots[d.Tag]
		s.done, s.inside = d, false
		w.held = append(w.held, int(d.Tag))
		w.inside--
	}
	return err
}

// give hands out what is due.
func (w *wrapped) give(done []uring.Done) (n int) {
	now := w.opt.Now()
	keep := w.held[:0]
	for _, at := range w.held {
		if n == len(done) || w.slots[at].due.After(now) {
			keep = append(keep, at)
			continue
		}
		done[n] = w.slots[at].end()
		w.free = append(w.free, at)
		n++
	}
	w.held = keep
	return n
}

// pause is the time to the next due, bounded while the device has more that may be due before.
func (w *wrapped) pause() time.Duration {
	next := w.slots[w.held[0]].due
	for _, at := range w.held[1:] {
		if t := w.slots[at].due; t.Before(next) {
			next = t
		}
	}
	t := max(0, next.Sub(w.opt.Now()))
	if w.inside > 0 {
		t = min(t, 100*time.Microsecond)
	}
	return t
}

// end is the Done as the fault wants it.
func (s *slot) end() uring.Done {
	d := s.done
	d.Tag = s.read.Tag
	err := s.err
	if s.short > 0 && d.N > s.short {
		if d.N = s.short; d.N < s.read.Need && err == nil {
			err = uring.ErrShort
		}
	}
	if err != nil && d.Err == nil {
		d.N = min(d.N, s.read.Need-1)
		d.Err = &uring.ReadError{File: fmt.Sprintf("file %d", s.read.File), Offset: s.read.Offset, Want: s.read.Need, Got: d.N, Err: err}
	}
	return d
}

func (w *wrapped) Cancel(tag uint64) {
	for i := range w.slots {
		if s := &w.slots[i]; s.inside && s.read.Tag == tag {
			w.Device.Cancel(uint64(i))
		}
	}
}
