// Package fake is a disk for tests: a uring.Device on virtual time with seeded latency, bandwidth, reordering and
// faults. The same seed and the same calls give the same completions. It needs no files and no kernel, so a test can
// drive millions of schedules through the code that pages.
//
// A disk is as unkind as a kernel may be: it overwrites the target of a read with garbage when the read is accepted, and
// writes the bytes at the moment of the Done, whatever the memory is used for by then.
package fake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// File is the content of a file: Data, or where that is nil Size bytes of Fill.
type File struct {
	Name string
	Size int64
	Data []byte
}

// Options describe a disk. Zero values: alignment 4096, depth 64, no latency, endless bandwidth, one after another.
type Options struct {
	Files []File
	Align int
	Depth int
	Seed  uint64

	// A read is served in LatencyMin plus an exponential time of the mean LatencyMean, then moves its bytes through a
	// channel of BytesPerSecond that all reads share.
	LatencyMin, LatencyMean time.Duration
	BytesPerSecond          int64
	// Parallel is how many reads are served at once (0: Depth); the others wait, Demand before Prefetch.
	Parallel int
	// Reorder lets reads overtake each other where their latencies say so, and shuffles what is ready at the same time.
	Reorder bool
	// Poll is what one Wait costs on the clock, so that a loop that only looks gets on (0: 1 us).
	Poll time.Duration

	Faults []Fault
}

// Stats counts what a disk did.
type Stats struct {
	Reads, Failed, Canceled int
	Bytes                   int64
	MaxInFlight             int
}

// Disk is a uring.Device.
type Disk struct {
	opt      Options
	regions  [][]byte
	rand     *rand.Rand
	faults   []armed
	now      time.Duration
	channel  time.Duration // when the shared channel is free
	last     time.Duration // latest completion of the disk that keeps order
	waiting  []op
	serving  []op
	finished []op
	stats    Stats
	closed   bool
}

type op struct {
	uring.Read
	due      time.Duration
	canceled bool
	effect
}

var _ uring.Device = (*Disk)(nil)

// New makes a disk that reads into regions.
func New(opt Options, regions [][]byte) *Disk {
	if opt.Align == 0 {
		opt.Align = 4096
	}
	if opt.Depth == 0 {
		opt.Depth = 64
	}
	if opt.Parallel == 0 {
		opt.Parallel = opt.Depth
	}
	if opt.Poll == 0 {
		opt.Poll = time.Microsecond
	}
	d := &Disk{opt: opt, regions: regions, rand: rand.New(rand.NewPCG(opt.Seed, 0x9e3779b97f4a7c15)), faults: arm(opt.Faults)}
	d.waiting, d.serving, d.finished = make([]op, 0, opt.Depth), make([]op, 0, opt.Depth), make([]op, 0, opt.Depth)
	return d
}

// Now is the virtual time.
func (d *Disk) Now() time.Duration { return d.now }

// Advance lets the time pass that something else took.
func (d *Disk) Advance(t time.Duration) {
	until := d.now + t
	d.settle(until)
	d.now = max(d.now, until)
}

// Stats returns the counts so far.
func (d *Disk) Stats() Stats { return d.stats }

// InFlight is the number of accepted reads whose Done was not yet given.
func (d *Disk) InFlight() int { return len(d.waiting) + len(d.serving) + len(d.finished) }

// Submit accepts reads up to the depth.
func (d *Disk) Submit(reads []uring.Read) (int, error) {
	if d.closed {
		return 0, fmt.Errorf("fake: submit: %w", uring.ErrClosed)
	}
	n := min(len(reads), d.opt.Depth-d.InFlight())
	for i := range reads[:n] {
		if err := d.check(&reads[i]); err != nil {
			return 0, err
		}
	}
	for i := range reads[:n] {
		d.waiting = append(d.waiting, op{Read: reads[i], effect: d.meet(&reads[i])})
		garbage(d.target(&reads[i]))
	}
	d.stats.MaxInFlight = max(d.stats.MaxInFlight, d.InFlight())
	d.serve(d.now)
	return n, nil
}

func (d *Disk) check(r *uring.Read) error {
	if r.File < 0 || int(r.File) >= len(d.opt.Files) || r.Region < 0 || r.Region >= len(d.regions) {
		return fmt.Errorf("fake: read at %d: file %d of %d, region %d of %d: %w", r.Offset, r.File, len(d.opt.Files), r.Region, len(d.regions), uring.ErrRead)
	}
	return r.Check(d.opt.Align, int64(len(d.regions[r.Region])))
}

// Wait gives finished reads, moving the clock as far as it takes to have the least number of them.
func (d *Disk) Wait(least int, done []uring.Done) (int, error) {
	if d.closed {
		return 0, fmt.Errorf("fake: wait: %w", uring.ErrClosed)
	}
	d.Advance(d.opt.Poll)
	least = min(least, len(done))
	for len(d.finished) < least && len(d.serving) > 0 {
		d.settle(d.serving[d.next()].due)
	}
	n := min(len(done), len(d.finished))
	for i := range n {
		if d.opt.Reorder {
			j := i + d.rand.IntN(len(d.finished)-i)
			d.finished[i], d.finished[j] = d.finished[j], d.finished[i]
		}
		done[i] = d.finish(&d.finished[i])
	}
	d.finished = append(d.finished[:0], d.finished[n:]...)
	return n, nil
}

// Cancel is heard for what waits, and by chance for what is being served; the Done comes when it would have come.
func (d *Disk) Cancel(tag uint64) {
	for i := range d.waiting {
		if d.waiting[i].Tag == tag {
			d.waiting[i].canceled = true
		}
	}
	for i := range d.serving {
		if d.serving[i].Tag == tag && d.rand.IntN(2) == 0 {
			d.serving[i].canceled = true
		}
	}
}

// Limits describes the disk.
func (d *Disk) Limits() uring.Limits {
	return uring.Limits{Backend: "fake", Depth: d.opt.Depth, Fixed: true}
}

// Close finishes everything: the memory is written as by a kernel, the Dones are lost.
func (d *Disk) Close() error {
	for len(d.serving) > 0 {
		d.settle(d.serving[d.next()].due)
	}
	for i := range d.finished {
		d.finish(&d.finished[i])
	}
	d.finished, d.closed = d.finished[:0], true
	return nil
}

// serve starts waiting reads at a time, Demand first, while there is room.
func (d *Disk) serve(at time.Duration) {
	for len(d.waiting) > 0 && len(d.serving) < d.opt.Parallel {
		i := 0
		for j := range d.waiting {
			if d.waiting[j].Class == uring.Demand {
				i = j
				break
			}
		}
		o := d.waiting[i]
		d.waiting = append(d.waiting[:i], d.waiting[i+1:]...)
		o.due = d.duration(&o, at)
		d.serving = append(d.serving, o)
	}
}

func (d *Disk) duration(o *op, at time.Duration) time.Duration {
	ready := at + d.opt.LatencyMin + time.Duration(d.rand.ExpFloat64()*float64(d.opt.LatencyMean))
	if d.opt.BytesPerSecond > 0 {
		ready = max(ready, d.channel) + time.Duration(float64(o.Length)/float64(d.opt.BytesPerSecond)*1e9)
		d.channel = ready
	}
	if !d.opt.Reorder {
		ready = max(ready, d.last)
		d.last = ready
	}
	return ready + o.delay
}

// next is the index of the read that is served first; the earliest submitted of equals.
func (d *Disk) next() int {
	least := 0
	for i := range d.serving {
		if d.serving[i].due < d.serving[least].due {
			least = i
		}
	}
	return least
}

// settle moves the clock to a time and lets everything happen that is due until then.
func (d *Disk) settle(until time.Duration) {
	for len(d.serving) > 0 {
		i := d.next()
		o := d.serving[i]
		if o.due > until {
			break
		}
		d.now = max(d.now, o.due)
		d.serving = append(d.serving[:i], d.serving[i+1:]...)
		d.finished = append(d.finished, o)
		d.serve(d.now)
	}
}

// finish writes the bytes of a read and says how it ended.
func (d *Disk) finish(o *op) uring.Done {
	f := d.opt.Files[o.File]
	got := o.Length
	if left := max(0, d.size(o.File)-o.Offset); int64(got) > left {
		got = int(left)
	}
	if o.short > 0 {
		got = min(got, o.short)
	}
	err := o.err
	switch {
	case err != nil:
		got = min(got, o.Need/2)
	case o.canceled:
		err, got = uring.ErrCanceled, min(got, o.Need/2)
	case got < o.Need:
		err = uring.ErrShort
	}
	d.content(d.target(&o.Read)[:got], o.File, o.Offset+o.misdirect)
	d.count(got, err)
	if err != nil {
		err = &uring.ReadError{File: f.Name, Offset: o.Offset, Want: o.Need, Got: got, Err: err}
	}
	return uring.Done{Tag: o.Tag, N: got, Err: err}
}

func (d *Disk) count(got int, err error) {
	d.stats.Reads++
	d.stats.Bytes += int64(got)
	switch {
	case err == nil:
	case errors.Is(err, uring.ErrCanceled):
		d.stats.Canceled++
	default:
		d.stats.Failed++
	}
}

func (d *Disk) target(r *uring.Read) []byte {
	return d.regions[r.Region][r.RegionOffset : r.RegionOffset+int64(r.Length)]
}

func (d *Disk) size(id uring.FileID) int64 {
	if f := d.opt.Files[id]; f.Data == nil {
		return f.Size
	}
	return int64(len(d.opt.Files[id].Data))
}

// content fills dst with what lies at an offset; outside the file (a misdirected read) with zeros.
func (d *Disk) content(dst []byte, id uring.FileID, offset int64) {
	data := d.opt.Files[id].Data
	switch {
	case data == nil:
		Fill(dst, id, offset)
	case offset < 0 || offset >= int64(len(data)):
		clear(dst)
	default:
		clear(dst[copy(dst, data[offset:]):])
	}
}

// Fill writes the bytes that a File without Data has from an offset on: a function of file and offset, without a period.
func Fill(dst []byte, id uring.FileID, offset int64) {
	for len(dst) > 0 && offset%8 != 0 {
		dst[0] = Byte(id, offset)
		dst, offset = dst[1:], offset+1
	}
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, word(id, offset/8))
		dst, offset = dst[8:], offset+8
	}
	for i := range dst {
		dst[i] = Byte(id, offset+int64(i))
	}
}

// Byte is one byte of Fill.
func Byte(id uring.FileID, offset int64) byte { return byte(word(id, offset>>3) >> (offset & 7 * 8)) }

// word is the finishing mix of splitmix64 (Steele, Lea, Flood 2014) over file and word number.
func word(id uring.FileID, i int64) uint64 {
	x := (uint64(i) + uint64(id)<<48 + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// garbage makes early use visible.
func garbage(b []byte) {
	b[0] = 0xdb
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
