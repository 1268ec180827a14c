package pager

import (
	"context"
	"fmt"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
)

// regionBytes is the largest region: io_uring registers at most 1 GiB as one buffer.
const regionBytes = 1 << 30

// Arena is the memory of the slots: one anonymous block that starts at a multiple of 2 MiB, cut into regions at slot
// borders, class after class. It takes exactly the sum of slots x slot bytes.
type Arena struct {
	block   *mem.Block // nil in a replay, which needs the slots but not their bytes
	regions [][]byte
	places  []place
	first   []int32 // first slot of each class, and the number of slots at the end
}

// place is where a slot lies.
type place struct {
	region int32
	class  int32
	offset int // in the region
	bytes  int
}

// NewArena maps slots[i] slots for class i of cat and touches none of it. errors.Is finds ErrSlots and the errno.
func NewArena(cat *expert.Catalog, slots []int) (*Arena, error) {
	a, ends, err := layoutArena(cat, slots)
	if err != nil {
		return nil, err
	}
	a.block, err = mem.Alloc("arena", ends[len(ends)-1])
	if err != nil {
		return nil, fmt.Errorf("pager: %w", err)
	}
	from, all := 0, a.block.Bytes()
	for _, end := range ends {
		a.regions = append(a.regions, all[from:end:end])
		from = end
	}
	return a, nil
}

// layoutArena places the slots; ends are the regions' ends in the block.
func layoutArena(cat *expert.Catalog, slots []int) (a *Arena, ends []int, err error) {
	if len(slots) != len(cat.Classes) {
		return nil, nil, fmt.Errorf("pager: slots for %d classes, the model has %d: %w", len(slots), len(cat.Classes), ErrSlots)
	}
	a = &Arena{}
	start, end := 0, 0
	for i, k := range cat.Classes {
		if slots[i] < k.Used || slots[i] > k.Experts {
			return nil, nil, fmt.Errorf("pager: %d slots of %d bytes, one token needs %d and the model has %d experts of this size: %w",
				slots[i], k.SlotBytes, k.Used, k.Experts, ErrSlots)
		}
		a.first = append(a.first, int32(len(a.places)))
		for range slots[i] {
			if end+int(k.SlotBytes)-start > regionBytes {
				ends, start = append(ends, end), end
			}
			a.places = append(a.places, place{region: int32(len(ends)), class: int32(i), offset: end - start, bytes: int(k.SlotBytes)})
			end += int(k.SlotBytes)
		}
	}
	a.first = append(a.first, int32(len(a.places)))
	return a, append(ends, end), nil
}

// Regions returns the memory as the device registers it: each at most 1 GiB. It is valid until Free.
func (a *Arena) Regions() [][]byte { return a.regions }

// Touch makes all pages present on several threads: registering untouched memory would fault it in on one. It stops, with
// its cause, when ctx ends.
func (a *Arena) Touch(ctx context.Context, threads int) error {
	return a.block.TouchWhile(ctx, threads)
}

// Free gives the memory back, after the device that may write to it was closed.
func (a *Arena) Free() error {
	a.regions = nil
	if a.block == nil {
		return nil
	}
	return a.block.Free()
}

// slot returns the bytes of a slot, nil in a replay.
func (a *Arena) slot(n int32) []byte {
	if a.block == nil {
		return nil
	}
	w := &a.places[n]
	return a.regions[w.region][w.offset : w.offset+w.bytes : w.offset+w.bytes]
}
