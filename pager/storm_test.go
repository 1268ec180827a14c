package pager

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "storm: repeat this schedule only (0: fresh ones)")
	stormFlag = flag.Int("storms", 300, "storm: schedules")
)

// TestStorm drives the pager through random schedules of uses, guesses, cancels and faults on the fake disk, which
// overwrites the target of a read at once and writes the bytes only with the Done. Every byte lent is compared with the
// file, Check runs after each step, and a naive model holds what was given and what must have been read.
//
//	go test ./pager -run Storm -seed 42
func TestStorm(t *testing.T) {
	first, n := *seedFlag, 1
	if first == 0 {
		first, n = rand.Uint64()|1, *stormFlag
		if testing.Short() {
			n /= 10
		}
	}
	var sum Stats
	for seed := first; seed < first+uint64(n); seed++ {
		s := newStorm(t, seed)
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v\nrepeat: go test ./pager -run Storm -seed %d", seed, err, seed)
		}
		s.close()
		sum = add(sum, s.Stats())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if n > 100 && (sum.Hits == 0 || sum.Joined == 0 || sum.Evictions == 0 || sum.Retries == 0 || sum.Failures == 0 || sum.Guess.Useful == 0 || sum.Guess.Late == 0 || sum.Guess.Wasted == 0 || sum.Guess.Cancelled == 0 ||
		sum.Displaced == 0 || sum.AskedAgain == 0) {
		t.Errorf("something never happened: %+v", sum)
	}
	t.Logf("%d schedules from seed %d: %+v", n, first, sum)
}

func add(a, b Stats) Stats {
	a.Hits, a.Joined, a.Misses, a.Reads, a.Evictions = a.Hits+b.Hits, a.Joined+b.Joined, a.Misses+b.Misses, a.Reads+b.Reads, a.Evictions+b.Evictions
	a.Retries, a.Failures, a.Displaced, a.AskedAgain = a.Retries+b.Retries, a.Failures+b.Failures, a.Displaced+b.Displaced, a.AskedAgain+b.AskedAgain
	a.Guess.add(b.Guess)
	return a
}

type storm struct {
	*rig
	rnd      *rand.Rand
	faulty   bool
	named    int64               // experts named in uses
	everUsed map[expert.Key]bool // the different ones
}

var errStop = errors.New("the request was cancelled")

func newStorm(t *testing.T, seed uint64) *storm {
	rnd := rand.New(rand.NewPCG(seed, 17))
	align := []int{512, 4096}[rnd.IntN(2)]
	cat := stormCatalog(t, rnd, align)
	slots := cat.MinSlots()
	for i, k := range cat.Classes {
		if rnd.IntN(4) > 0 {
			slots[i] += rnd.IntN(k.Experts - slots[i] + 1)
		}
	}
	s := &storm{rnd: rnd, everUsed: map[expert.Key]bool{}}
	disk := fake.Options{
		Align: align, Depth: 1 + rnd.IntN(20), Seed: seed, Reorder: rnd.IntN(2) == 0, Parallel: 1 + rnd.IntN(8),
		LatencyMin: time.Duration(rnd.IntN(100)) * time.Microsecond, LatencyMean: time.Duration(rnd.IntN(300)) * time.Microsecond,
		Files: []fake.File{{Name: "a", Size: fileSize(cat, 0)}, {Name: "b", Size: fileSize(cat, 1)}},
	}
	if s.faulty = rnd.IntN(2) == 0; s.faulty {
		disk.Faults = []fake.Fault{
			{File: fake.AnyFile, Probability: 0.1 * rnd.Float64(), Errno: syscall.EIO},
			{File: fake.AnyFile, Probability: 0.05 * rnd.Float64(), Short: 1},
			{File: fake.AnyFile, Probability: 0.05 * rnd.Float64(), Delay: time.Second},
			{File: fake.AnyFile, Probability: 0.05 * rnd.Float64(), Misdirect: 4096},
		}
	}
	opt := Options{
		Policy: Policies()[rnd.IntN(len(Policies()))], StaleTokens: rnd.IntN(4), Retries: rnd.IntN(4) - 1, GuessBytes: 1 + rnd.IntN(40000),
		Verify:  func(k expert.Key, part int, b []byte) error { return stormVerify(cat, k, part, b) },
		Started: func() { s.other() },
	}
	s.rig = openRig(t, cat, slots, opt, disk)
	return s
}

// stormCatalog has layers of different numbers, sizes and forms of experts in two files.
func stormCatalog(t *testing.T, rnd *rand.Rand, align int) *expert.Catalog {
	var layers []expert.Layer
	offset := []int64{int64(rnd.IntN(5000)), int64(rnd.IntN(5000))}
	for b := range 1 + rnd.IntN(5) {
		l := expert.Layer{Block: b, Experts: 1 + rnd.IntN(24), Merged: rnd.IntN(3) == 0}
		l.Used = 1 + rnd.IntN(min(l.Experts, 6))
		parts := 3
		if l.Merged {
			parts = 2
		}
		for i := range parts {
			size := int64(1+rnd.IntN(3)) * 1000
			shard := rnd.IntN(2)
			l.Parts = append(l.Parts, expert.Part{Tensor: fmt.Sprintf("blk.%d.%d", b, i), Shard: shard, Offset: offset[shard], Size: size})
			offset[shard] += size*int64(l.Experts) + int64(rnd.IntN(100))
		}
		layers = append(layers, l)
	}
	cat, err := expert.Build(layers, []string{"a", "b"}, []int{align, align})
	if err != nil {
		t.Fatal(err)
	}
	return cat
}

func stormVerify(cat *expert.Catalog, k expert.Key, part int, b []byte) error {
	piece := cat.Piece(k, part)
	want := make([]byte, len(b))
	fake.Fill(want, uring.FileID(piece.Shard), piece.Offset)
	if !slices.Equal(b, want) {
		return errors.New("other bytes than the file's")
	}
	return nil
}

func (s *storm) run() error {
	for range 40 {
		if err := s.step(); err != nil {
			return err
		}
		if err := s.Check(); err != nil {
			return err
		}
	}
	if err := s.quiet(); err != nil {
		return err
	}
	st := s.Stats()
	switch {
	case st.Hits+st.Joined+st.Misses != s.named:
		return fmt.Errorf("%d experts named, counted %+v", s.named, st)
	case st.ColdHits+st.ColdJoined+st.ColdMisses != int64(len(s.everUsed)):
		return fmt.Errorf("%d different experts named, counted %+v", len(s.everUsed), st)
	case !s.faulty && (st.Failures > 0 || st.Retries > 0):
		return fmt.Errorf("failures without faults: %+v", st)
	}
	return nil
}

func (s *storm) step() error {
	switch s.rnd.IntN(13) {
	case 0:
		s.Tick()
	case 1:
		return s.Poll()
	case 2:
		s.cancelGuesses()
	case 3, 4, 5:
		s.guess()
	case 6:
		return s.quiet()
	case 7:
		return s.warmUp()
	default:
		return s.useSome()
	}
	return nil
}

// warmUp names random experts as hot, some of which do not exist, and waits for a few of them.
func (s *storm) warmUp() error {
	var hot []expert.Guess
	for range s.rnd.IntN(30) {
		hot = append(hot, expert.Guess{Key: expert.Key{Layer: int32(s.rnd.IntN(len(s.cat.Layers) + 1)), Expert: int32(s.rnd.IntN(25))}, P: s.rnd.Float32()})
	}
	s.Warm(hot)
	evictions := s.Stats().Evictions
	for range s.rnd.IntN(4) {
		if _, err := s.Warming(); err != nil {
			return err
		}
	}
	if s.Stats().Evictions != evictions {
		return errors.New("warming evicted an expert")
	}
	return nil
}

func (s *storm) guess() {
	var g []expert.Guess
	for range 1 + s.rnd.IntN(4) {
		l := s.rnd.IntN(len(s.cat.Layers) + 1) // the last does not exist
		g = append(g, expert.Guess{Key: expert.Key{Layer: int32(l), Expert: int32(s.rnd.IntN(25))}, P: s.rnd.Float32()})
	}
	read := s.Prefetch
	if s.rnd.IntN(2) == 0 {
		read = s.ReadUnion
	}
	if n := read(g); n < 0 || n > len(g) {
		s.t.Errorf("accepted %d of %d", n, len(g))
	}
}

// useSome uses random experts of a layer, often as many as a token, sometimes all of them.
func (s *storm) useSome() error {
	layer := s.rnd.IntN(len(s.cat.Layers))
	l := s.cat.Layers[layer]
	n := l.Used
	if s.rnd.IntN(3) == 0 {
		n = s.rnd.IntN(l.Experts + 1)
	}
	var ids []int32
	for _, id := range s.rnd.Perm(l.Experts)[:n] {
		ids = append(ids, int32(id))
	}
	return s.useThese(layer, ids)
}

func (s *storm) useThese(layer int, ids []int32) error {
	group := s.rnd.IntN(4)
	stopAt := -1
	if s.rnd.IntN(10) == 0 {
		stopAt = s.rnd.IntN(len(ids) + 1)
	}
	complete := map[int32]bool{}
	for _, id := range ids {
		if s.Poll() == nil && s.table[s.cat.Index(expert.Key{Layer: int32(layer), Expert: id})] >= 0 {
			complete[id] = true
		}
	}
	given := map[int32]bool{}
	before := s.Stats()
	err := s.Use(layer, ids, group, func(ready []expert.Ready) error {
		if len(ready) == 0 || group > 0 && len(ready) > group {
			return fmt.Errorf("%d experts given, at most %d asked for", len(ready), group)
		}
		for _, r := range ready {
			id := ids[r.Index]
			if given[id] {
				return fmt.Errorf("expert %d given twice", id)
			}
			given[id] = true
			if hits := s.Stats().Hits - before.Hits; complete[id] && int64(len(given)) > hits {
				return fmt.Errorf("expert %d was there, but was given after %d others, %d of them hits", id, len(given)-1, hits)
			}
			if err := s.compute(expert.Key{Layer: int32(layer), Expert: id}, r); err != nil {
				return err
			}
		}
		if stopAt >= 0 && len(given) >= stopAt {
			return errStop
		}
		return nil
	})
	s.named += int64(len(ids))
	for _, id := range ids {
		s.everUsed[expert.Key{Layer: int32(layer), Expert: id}] = true
	}
	return s.judge(err, ids, given, complete, before)
}

// compute looks at the bytes twice, with other work of the loop in between.
func (s *storm) compute(k expert.Key, r expert.Ready) error {
	if err := verify(s.cat, k, r); err != nil {
		return err
	}
	if err := s.other(); err != nil {
		return err
	}
	return verify(s.cat, k, r)
}

// other is what the loop does while a Use computes.
func (s *storm) other() error {
	switch s.rnd.IntN(8) {
	case 0:
		if err := s.Poll(); err != nil {
			return err
		}
	case 1: // so long that reads arrive
		for range s.rnd.IntN(s.pending + 1) {
			if err := s.reap(min(1, s.pending)); err != nil {
				return err
			}
		}
	case 2:
		s.guess()
	case 3:
		s.cancelGuesses()
	default:
		return nil
	}
	return s.Check()
}

func (s *storm) judge(err error, ids []int32, given, complete map[int32]bool, before Stats) error {
	after := s.Stats()
	switch {
	case errors.Is(err, errStop):
		return nil
	case errors.Is(err, ErrRead):
		if !s.faulty || after.Failures == before.Failures {
			return err
		}
		return nil
	case err != nil:
		return err
	case len(given) != len(ids):
		return fmt.Errorf("asked for %d experts, given %v", len(ids), slices.Collect(maps.Keys(given)))
	case after.Hits-before.Hits < int64(len(complete)):
		return fmt.Errorf("%d of %d experts were there, counted as hits: %d", len(complete), len(ids), after.Hits-before.Hits)
	}
	return nil
}

// TestLRUAgainstNaive compares hits, misses and evictions of the lru policy with a list that is searched from the start.
func TestLRUAgainstNaive(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		layers, experts, used := 1+rnd.IntN(5), 8+rnd.IntN(20), 1+rnd.IntN(4)
		cat := testCatalog(t, layers, experts, used, 512, 600, 600, 600)
		slots := used + rnd.IntN(layers*experts-used+1)
		p, err := NewReplay(cat, []int{slots}, nil, Options{Policy: "lru"})
		if err != nil {
			t.Fatal(err)
		}
		var list []expert.Key // the oldest first
		var want Stats
		for range 60 {
			layer := rnd.IntN(layers)
			var ids []int32
			for _, id := range rnd.Perm(experts)[:used] {
				ids = append(ids, int32(id))
			}
			if err := p.Use(layer, ids, 0, func([]expert.Ready) error { return nil }); err != nil {
				t.Fatal(err)
			}
			list = naiveLRU(list, layer, ids, slots, &want)
			if rnd.IntN(3) == 0 {
				p.Tick()
			}
		}
		if got := p.Stats(); got.Hits != want.Hits || got.Misses != want.Misses || got.Evictions != want.Evictions {
			t.Fatalf("%d slots, %d used: got %+v, want %+v", slots, used, got, want)
		}
	}
}

func naiveLRU(list []expert.Key, layer int, ids []int32, slots int, s *Stats) []expert.Key {
	for _, id := range ids {
		k := expert.Key{Layer: int32(layer), Expert: id}
		if i := slices.Index(list, k); i >= 0 {
			s.Hits++
			list = slices.Delete(list, i, i+1)
		} else {
			s.Misses++
		}
		list = append(list, k)
	}
	for len(list) > slots {
		s.Evictions++
		list = list[1:]
	}
	return list
}
