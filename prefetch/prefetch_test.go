package prefetch

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/epq-uring/epq-uring/expert"
)

// holds is an arena of some experts.
type holds map[expert.Key]bool

func (h holds) Has(k expert.Key) bool { return h[k] }

func TestPlan(t *testing.T) {
	c := func(layer, id int32, p float32, ahead int) Candidate {
		return Candidate{Guess: expert.Guess{Key: expert.Key{Layer: layer, Expert: id}, P: p}, Bytes: 10, Ahead: ahead}
	}
	all := []Candidate{c(2, 0, 0.99, 2), c(1, 1, 0.5, 1), c(1, 2, 0.9, 1), c(1, 3, 0.3, 1), c(2, 4, 0.8, 2)}
	wide := Limits{Bytes: [MaxAhead]int64{100, 100}, Waste: 100, Slots: []int{10}}
	with := func(change func(l *Limits)) *Limits {
		l := wide
		change(&l)
		return &l
	}
	for _, tc := range []struct {
		name string
		lim  *Limits
		want []int32
	}{
		{"all, the nearest layer first, the more probable first", &wide, []int32{2, 1, 3, 0, 4}},
		{"chance", with(func(l *Limits) { l.MinP = 0.8 }), []int32{2, 0, 4}},
		{"bytes of the first layer", with(func(l *Limits) { l.Bytes[0] = 15 }), []int32{2, 0, 4}},
		{"bytes of both", with(func(l *Limits) { l.Bytes = [MaxAhead]int64{25, 35} }), []int32{2, 1, 0}},
		{"nothing is free", with(func(l *Limits) { l.Bytes = [MaxAhead]int64{-5, 5} }), nil},
		{"waste", with(func(l *Limits) { l.Waste = 6 }), []int32{2, 1, 0}},
		{"slots", with(func(l *Limits) { l.Slots = []int{3} }), []int32{2, 1, 3}},
		{"no slots", with(func(l *Limits) { l.Slots = []int{0} }), nil},
	} {
		in := slices.Clone(all)
		var got []int32
		for _, g := range Plan(nil, in, tc.lim) {
			got = append(got, g.Key.Expert)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
		if again := Plan(nil, slices.Clone(all), tc.lim); len(again) != len(tc.want) {
			t.Errorf("%s: another plan from the same arguments: %v", tc.name, again)
		}
	}
}

// The probability of a bucket is the share that was used, soon after it changed too; and a new bucket is not worth a read.
func TestCalibration(t *testing.T) {
	c := newCalibration(3)
	if p := c.chance(0, near, 5); p >= minChance {
		t.Errorf("unknown: %v", p)
	}
	rnd := rand.New(rand.NewPCG(4, 5))
	for _, share := range []float64{0.9, 0.15, 0.6} {
		for range 3000 {
			c.learn(1, near, 40, rnd.Float64() < share)
		}
		if p := c.chance(1, near, 40); math.Abs(float64(p)-share) > 0.08 {
			t.Errorf("layer 1: %v, want %v", p, share)
		}
		if p := c.chance(2, near, 40); math.Abs(float64(p)-share) > 0.12 {
			t.Errorf("layer 2, which knows it from the others: %v, want %v", p, share)
		}
	}
	if p := c.chance(1, far, 40); p >= minChance {
		t.Errorf("another kind of list: %v", p)
	}
}

// What follows is learned, over the token's end as well, and forgotten when something else follows.
func TestHistory(t *testing.T) {
	cat := testCatalog(t, 3, 50, 2)
	h := newHistory(cat, make([]uint32, HistoryWords(cat)))
	rnd := rand.New(rand.NewPCG(6, 7))
	follows := func(id, shift int32) int32 { return (id*3 + shift) % 50 }
	lists := make([][kinds]list, 3)
	for l := range lists {
		for k := range lists[l] {
			lists[l][k] = newList(4, 50)
		}
	}
	for _, shift := range []int32{1, 20} {
		ids := []int32{3, 4}
		for range 6000 {
			for layer := range 3 {
				h.began(layer, ids, true)
				ids = []int32{follows(ids[0], shift), follows(ids[1], shift)}
				if ids[0] == ids[1] || rnd.IntN(10) == 0 { // something unforeseen
					ids = []int32{rnd.Int32N(25), 25 + rnd.Int32N(25)}
				}
			}
		}
		for layer := range 3 {
			h.name(layer, []int32{7, 30}, nil, 1, lists)
			l := &lists[(layer+1)%3][near]
			if layer == 2 {
				l = &lists[0][beyond]
			}
			for _, want := range []int32{follows(7, shift), follows(30, shift)} {
				if !slices.Contains(l.ids[:min(2, l.n)], want) {
					t.Errorf("after layer %d: %v, want %d first", layer, l.ids[:l.n], want)
				}
			}
		}
	}
	words := slices.Clone(h.words)
	h.began(0, []int32{1, 2}, false) // of several tokens: nothing follows from it
	h.began(1, []int32{5, 6}, true)
	if !slices.Equal(words, h.words) {
		t.Error("learned from a batch")
	}
	for i := range h.words { // a kept history may hold anything
		h.words[i] = rnd.Uint32()
	}
	for layer := range 3 {
		h.name(layer, []int32{7, 30}, nil, 1, lists)
		h.began(layer, []int32{7, 30}, true)
	}
}

// The oracle knows the run that was recorded, over tokens' ends, and is silent once this one takes another way.
func TestOracle(t *testing.T) {
	cat := testCatalog(t, 2, 10, 2)
	future := []Use{{0, []int32{1, 2}}, {1, []int32{3, 4}}, {0, []int32{5, 6}}, {1, []int32{7, 8}}, {0, []int32{9, 0}}}
	p, err := New(cat, Options{Mode: Oracle, Future: future, Arena: holds{{Layer: 1, Expert: 3}: true}})
	if err != nil {
		t.Fatal(err)
	}
	s := &State{WaitTime: 1e6, WaitBytes: 1 << 30, BytesRead: 1 << 40, Room: []int{10}}
	p.budget.gaps[0], p.budget.gaps[1] = 1e9, 1e9
	step := func(layer int, ids []int32, want ...int32) {
		t.Helper()
		p.Begin(layer, ids, true, p.opt.Now())
		p.budget.gaps[0], p.budget.gaps[1] = 1e9, 1e9
		var got []int32
		for _, g := range p.Guess(layer, ids, nil, s) {
			if got = append(got, g.Key.Expert); g.P != 1 {
				t.Errorf("%+v", g)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("at layer %d: %v, want %v", layer, got, want)
		}
	}
	step(0, []int32{1, 2}, 4)
	step(1, []int32{3, 4}, 5, 6)
	step(0, []int32{5, 6}, 7, 8)
	step(1, []int32{7, 1}) // another way
	step(0, []int32{9, 0})
}

func TestNewRefuses(t *testing.T) {
	cat := testCatalog(t, 2, 10, 2)
	score := func(int, []float32, [][]float32) {}
	history := make([]uint32, HistoryWords(cat))
	for _, c := range []struct {
		o    Options
		kind error
	}{
		{Options{Mode: "nosuch"}, ErrMode}, {Options{Mode: Off}, ErrMode}, {Options{}, ErrMode},
		{Options{Mode: Router}, ErrOptions}, {Options{Mode: Hybrid, Score: score}, ErrOptions},
		{Options{Mode: History, History: history[1:]}, ErrOptions}, {Options{Mode: Oracle}, ErrOptions},
	} {
		if _, err := New(cat, c.o); !errors.Is(err, c.kind) {
			t.Errorf("%q: %v, want %v", c.o.Mode, err, c.kind)
		}
	}
	for _, mode := range Modes() {
		if _, err := New(cat, Options{Mode: mode, Score: score, History: history, Future: []Use{{}}}); (err != nil) != (mode == Off) {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// A router whose scores are all the same, or masked but for one, is sorted into buckets all the same.
func TestFillByScore(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, n := range []int{2, 4} {
		l := newList(n, 4)
		fillByScore(&l, []float32{2, 2, 2, 2}) // no spread
		if l.n != n || slices.Min(l.bucket[:n]) != slices.Max(l.bucket[:n]) {
			t.Errorf("%d names in buckets %v, want %d in one", l.n, l.bucket, n)
		}
		fillByScore(&l, []float32{-inf, 1, -inf, -inf})
		if l.n != 1 || l.ids[0] != 1 {
			t.Errorf("%d names, the first %d, want 1 alone", l.n, l.ids[0])
		}
	}
}

// After New nothing is allocated, whatever guesses.
func TestQuiet(t *testing.T) {
	cat := testCatalog(t, 4, 32, 4)
	rnd := rand.New(rand.NewPCG(8, 9))
	score := func(first int, _ []float32, scores [][]float32) {
		for _, s := range scores {
			for e := range s {
				s[e] = rnd.Float32()
			}
		}
	}
	for _, mode := range []string{Auto, On, Router, History} {
		p, err := New(cat, Options{Mode: mode, Score: score, History: make([]uint32, HistoryWords(cat)), Arena: holds{}})
		if err != nil {
			t.Fatal(err)
		}
		s := &State{Room: []int{4}}
		ids := make([]int32, 4)
		token := func() {
			p.Guess(-1, nil, nil, s)
			for layer := range 4 {
				for i := range ids {
					ids[i] = int32(i*8) + rnd.Int32N(8)
				}
				p.Begin(layer, ids, true, p.opt.Now())
				s.WaitTime, s.WaitBytes, s.BytesRead = s.WaitTime+1e6, s.WaitBytes+1<<20, s.BytesRead+1<<24
				p.Guess(layer, ids, nil, s)
			}
			p.Token(1e6, 1e3, 1) // too little waiting for a trial, whose verdict is text
		}
		if n := testing.AllocsPerRun(200, token); n > 0 {
			t.Errorf("%s: %v allocations per token", mode, n)
		}
	}
}

// Of a batch's next layer only what is nearly certain is read: what two of a few tokens name, or one that stands for many.
func TestUnion(t *testing.T) {
	const used, width = 2, 1
	cat := testCatalog(t, 2, 8, used)
	score := func(_ int, hidden []float32, scores [][]float32) { // names the expert of that number, and expert 7
		clear(scores[0])
		scores[0][7], scores[0][int(hidden[0])] = 1, 2
	}
	p, err := New(cat, Options{Mode: On, Score: score, Arena: holds{{Layer: 1, Expert: 3}: true}, History: make([]uint32, HistoryWords(cat))})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		hidden []float32
		want   []int32
	}{
		{"each of four tokens names another one", []float32{0, 1, 2, 4}, []int32{7}},
		{"two name the same", []float32{1, 1, 2, 4}, []int32{7, 1}},
		{"what is in memory is not read", []float32{3, 3, 3, 3}, []int32{7}},
		{"one asked stands for two", append([]float32{5, 5, 6, 6}, slices.Repeat([]float32{5}, 2*unionSample-4)...), []int32{7, 5, 6}},
		{"nothing lies behind the last layer", nil, nil},
	} {
		layer := 0
		if tc.hidden == nil {
			layer, tc.hidden = 1, []float32{1}
		}
		var got []int32
		for _, g := range p.Union(layer, tc.hidden, width) {
			got = append(got, g.Key.Expert)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
