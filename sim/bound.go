package sim

import (
	"container/heap"
	"math"

	"github.com/epq-uring/epq-uring/expert"
)

// never is the next use of an expert that is not used again.
const never = math.MaxInt

// bound is Belady's rule over whole uses: after each, a class keeps of what it held and what it read the experts that are
// used again soonest. It may drop what it has just read, which the pager may not, and it does not lose slots to pins, so it
// bounds every policy that reads on demand. (Keeping what comes soonest is best for equal costs; sizes are equal within a
// class.)
func (t *Trace) bound(slots []int) Cell {
	next := t.nextUses()
	classes := make([]beladyClass, len(slots))
	for i := range classes {
		classes[i] = beladyClass{slots: slots[i], next: map[int]int{}}
	}
	seen := map[expert.Key]bool{}
	var hits, all, bytes, evictions int64
	for _, u := range t.uses {
		if u.layer < 0 {
			continue
		}
		c := &classes[t.Catalog.Layers[u.layer].Class]
		for at := u.from; at < u.to; at++ {
			k := expert.Key{Layer: u.layer, Expert: t.ids[at]}
			all++
			seen[k] = true
			if c.use(t.Catalog.Index(k), next[at]) {
				hits++
			} else {
				bytes += t.readBytes(k)
			}
		}
		evictions += c.shrink()
	}
	warm := max(1, all-int64(len(seen)))
	return Cell{HitRate: float64(hits) / float64(max(1, all)), HitRateCold: float64(hits) / float64(warm), MiBPerToken: t.perToken(bytes), Evictions: evictions}
}

// nextUses gives for every entry of t.ids the position of the record that uses the same expert next.
func (t *Trace) nextUses() []int {
	next, seen := make([]int, len(t.ids)), map[int]int{}
	for i := len(t.uses) - 1; i >= 0; i-- {
		u := t.uses[i]
		for at := u.from; at < u.to; at++ {
			index := t.Catalog.Index(expert.Key{Layer: u.layer, Expert: t.ids[at]})
			next[at] = never
			if later, ok := seen[index]; ok {
				next[at] = later
			}
			seen[index] = i
		}
	}
	return next
}

// beladyClass is the cache of one class; the heap has the latest next use on top, and entries that are out of date.
type beladyClass struct {
	slots int
	next  map[int]int // expert in the cache -> its next use
	heap  entries
}

type entry struct{ expert, next int }

func (c *beladyClass) use(index, next int) (hit bool) {
	_, hit = c.next[index]
	c.next[index] = next
	heap.Push(&c.heap, entry{index, next})
	return hit
}

// shrink drops what is used last until the rest fits.
func (c *beladyClass) shrink() (dropped int64) {
	for len(c.next) > c.slots {
		e := heap.Pop(&c.heap).(entry)
		if next, ok := c.next[e.expert]; ok && next == e.next {
			delete(c.next, e.expert)
			dropped++
		}
	}
	return dropped
}

type entries []entry

func (h entries) Len() int           { return len(h) }
func (h entries) Less(i, j int) bool { return h[i].next > h[j].next }
func (h entries) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *entries) Push(x any)        { *h = append(*h, x.(entry)) }
func (h *entries) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
