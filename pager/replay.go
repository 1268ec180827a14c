package pager

import (
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring"
)

// NewReplay makes a Pager without memory and without a disk: every read is there at once, and the weights lent have no
// bytes. It keeps the same books as a real one, so a recorded run can be replayed through the very same code. sizes are
// the shards' in bytes, for reads that end with the file; nil: none does.
func NewReplay(cat *expert.Catalog, slots []int, sizes []int64, opt Options) (*Pager, error) {
	arena, _, err := layoutArena(cat, slots)
	if err != nil {
		return nil, err
	}
	return New(&instant{sizes: sizes}, cat, arena, opt)
}

// instant is a device that finishes every read when asked.
type instant struct {
	sizes []int64
	done  [batchReads]uring.Done
	n     int
}

func (d *instant) Submit(reads []uring.Read) (int, error) {
	reads = reads[:min(len(reads), len(d.done)-d.n)]
	for i := range reads {
		r := &reads[i]
		n := int64(r.Length)
		if d.sizes != nil {
			n = min(n, d.sizes[r.File]-r.Offset)
		}
		d.done[d.n] = uring.Done{Tag: r.Tag, N: int(n)}
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
