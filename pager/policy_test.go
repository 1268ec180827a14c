package pager

import "testing"

// TestSoonestLooksAsFarAsSlotsKeep: where slots keep experts for many tokens, the one that is used more often stays; where
// they keep them for less than one, the one whose layer comes first.
func TestSoonestLooksAsFarAsSlotsKeep(t *testing.T) {
	for _, c := range []struct {
		slots int
		often bool // the one used more often stays
	}{{1000, true}, {1, false}} {
		h := newHistory(testCatalog(t, 4, 8, 2, 512, 1000, 500))
		for n := range int64(50) {
			h.tick(2*n, c.slots) // two evictions a token
		}
		h.layer = 2
		soon, often := int32(3*8), int32(2*8) // of the next layer, and of this one, which is a whole round away
		for i, rate := range map[int32]float32{soon: 0.10, often: 0.15} {
			h.long[i], h.when[i] = rate*h.whole, h.token
		}
		if got := (soonest{}).rank(h, often) > (soonest{}).rank(h, soon); got != c.often {
			t.Errorf("%d slots: the one used more often stays: %v", c.slots, got)
		}
	}
}
