package pager

import (
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring"
)

// NewReplay makes a Pager without memory and without a disk: every read is there at once, and the weights lent have no
// bytes. It keeps the same books as a real one, so a recorded run can be replayed through the very same code.
func NewReplay(cat *expert.Catalog, slots []int, opt Options) (*Pager, error) {
	arena, _, err := layoutArena(cat, slots)
	if err != nil {
		return nil, err
	}
	return New(&instant{}, cat, arena, opt)
}

// instant is a device that finishes every read when asked.
type instant struct {
	done [batchReads]uring.Done
	n    int
}

func (d *instant) Submit(reads []uring.Read) (int, error) {
	reads = reads[:min(len(reads), len(d.done)-d.n)]
	for i := range reads {
		d.done[d.n] = uring.Done{Tag: reads[i].Tag, N: reads[i].Length}
		d.n++
	}
	return len(reads), nil
}

func (d *instant) Wait(_ int, done []uring.Done) (int, error) {
	n := copy(done, d.done[:d.n])
	d.n = copy(d.done[:], d.done[n:d.n])
	return n, nil
}

func (d *instant) Cancel(uint64) {}

func (d *instant) Limits() uring.Limits {
	return uring.Limits{Backend: "replay", Depth: len(d.done)}
}

func (d *instant) Close() error { return nil }
