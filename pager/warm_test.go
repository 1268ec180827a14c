package pager

import (
	"math/rand/v2"
	"testing"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring/fake"
)

func warmUp(t *testing.T, r *rig, hot []expert.Guess) {
	t.Helper()
	r.Warm(hot)
	for more := true; more; {
		var err error
		if more, err = r.Warming(); err != nil {
			t.Fatal(err)
		}
		r.check()
	}
}

// What was hot is there before it is asked for, hottest first, in free slots only, and lasts when its layer passes.
func TestWarm(t *testing.T) {
	cat := testCatalog(t, 2, 8, 2, 512, 512, 512, 512)
	r := newRig(t, cat, []int{6}, Options{}, fake.Options{Align: 512})
	r.mustUse(0, 6, 7)
	key := func(layer, id int32) expert.Key { return expert.Key{Layer: layer, Expert: id} }
	warmUp(t, r, []expert.Guess{{Key: key(0, 0), P: 0.9}, {Key: key(0, 6), P: 0.8}, {Key: key(5, 1), P: 0.8}, {Key: key(1, 1), P: 0.7}, {Key: key(0, 2), P: 0.6}, {Key: key(1, 3), P: 0.5}, {Key: key(1, 4), P: 0.4}})
	if s := r.Stats(); s.Warmed != 4 || s.Evictions != 0 || s.Misses != 2 {
		t.Errorf("after warming: %+v", s)
	}
	r.mustUse(0, 6, 7)
	r.mustUse(1, 1, 3)
	r.mustUse(0, 0, 2)
	if s := r.Stats(); s.Hits != 6 || s.Misses != 2 || s.Guess.Issued != 0 || s.ColdHits != 4 {
		t.Errorf("after uses: %+v", s)
	}
	r.mustUse(1, 4, 5)
	if s := r.Stats(); s.Misses != 4 || s.Evictions != 2 {
		t.Errorf("what found no slot is not there: %+v", s)
	}
}

// Demands do not wait for the warm-up: with a list that would take all slots, a use finds room at once.
func TestWarmYields(t *testing.T) {
	cat := testCatalog(t, 4, 16, 2, 512, 900, 900, 900)
	r := newRig(t, cat, []int{10}, Options{GuessBytes: 1}, fake.Options{Align: 512})
	var hot []expert.Guess
	for i := range 64 {
		hot = append(hot, expert.Guess{Key: cat.KeyAt(i), P: 0.5})
	}
	r.Warm(hot)
	r.mustUse(3, 14, 15)
	if s := r.Stats(); s.Evictions != 0 || s.Misses != 2 || s.Warmed > 8 {
		t.Errorf("%+v", s)
	}
	r.Warm(nil)
	r.settle()
	before := r.Stats().Reads
	if more, err := r.Warming(); more || err != nil || r.Stats().Reads != before {
		t.Errorf("it goes on after its end: %v, %v", more, err)
	}
}

// However reads land and in whatever groups experts are given, the same uses evict the same experts, in arenas too small
// for one use as well.
func TestTimingDoesNotDecide(t *testing.T) {
	cat := testCatalog(t, 3, 20, 3, 512, 700, 700, 700)
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		slots := 3 + rnd.IntN(25)
		opt := Options{Policy: Policies()[seed%uint64(len(Policies()))]}
		still, err := NewReplay(cat, []int{slots}, []int64{fileSize(cat, 0)}, opt)
		if err != nil {
			t.Fatal(err)
		}
		r := newRig(t, cat, []int{slots}, opt, fake.Options{Align: 512, Reorder: true, Parallel: 5, Depth: 7, Seed: seed, LatencyMean: 100000})
		for step := range 60 {
			layer, n := step%3, 3
			if step%10 < 3 {
				n = 12
			}
			var ids []int32
			for _, id := range rnd.Perm(20)[:n] {
				ids = append(ids, int32(id))
			}
			if err := still.Use(layer, ids, 0, func([]expert.Ready) error { return nil }); err != nil {
				t.Fatal(err)
			}
			err := r.Use(layer, ids, 1+rnd.IntN(4), func(ready []expert.Ready) error {
				for _, w := range ready {
					if _, err := w.Down(); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			r.check()
			if layer == 2 {
				r.Tick()
				still.Tick()
			}
		}
		got, want := r.Stats(), still.Stats()
		got.WaitTime, want.WaitTime = 0, 0
		if got != want || got.Evictions == 0 {
			t.Errorf("seed %d, %d slots: \n got %+v\nwant %+v", seed, slots, got, want)
		}
	}
}
