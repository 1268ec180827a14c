package prefetch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/uring/fake"
)

const (
	testLayers  = 6
	testExperts = 64
	testUsed    = 2
	part        = 4096
	partTime    = 10 * time.Microsecond
	expertTime  = 3 * partTime
	routerTime  = time.Microsecond
)

func testCatalog(t testing.TB, layers, experts, used int) *expert.Catalog {
	t.Helper()
	var all []expert.Layer
	offset := int64(0)
	for b := range layers {
		l := expert.Layer{Block: b, Experts: experts, Used: used}
		for i := range 3 {
			l.Parts = append(l.Parts, expert.Part{Tensor: fmt.Sprintf("blk.%d.%d", b, i), Offset: offset, Size: part})
			offset += part * int64(experts)
		}
		all = append(all, l)
	}
	cat, err := expert.Build(all, []string{"model.gguf"}, []int{part})
	if err != nil {
		t.Fatal(err)
	}
	return cat
}

// machine is a model without arithmetic on a disk of virtual time: a layer computes for a while, looking at the disk now
// and then, and uses its experts. It joins pager and prefetcher like the engine does.
type machine struct {
	t     *testing.T
	cat   *expert.Catalog
	disk  *fake.Disk
	pager *pager.Pager
	ahead *Prefetcher // nil: off
	mixer time.Duration

	token, layer int
	route        func(token, layer int) []int32
	state        State
	before       pager.Stats
}

// newMachine has a disk that reads an expert in expertTime, one after the other, and an arena of a tenth of the experts.
func newMachine(t *testing.T, mixer time.Duration, route func(token, layer int) []int32, opt Options) *machine {
	t.Helper()
	m := &machine{t: t, cat: testCatalog(t, testLayers, testExperts, testUsed), mixer: mixer, route: route}
	slots := []int{testLayers * testExperts / 10}
	arena, err := pager.NewArena(m.cat, slots)
	if err != nil {
		t.Fatal(err)
	}
	m.disk = fake.New(fake.Options{
		Files: []fake.File{{Name: "model.gguf", Size: testLayers * testExperts * 3 * part}}, Align: part,
		BytesPerSecond: int64(part * (time.Second / partTime)), Parallel: 1, Poll: 1,
	}, arena.Regions())
	now := func() time.Time { return time.Unix(0, 0).Add(m.disk.Now()) }
	if m.pager, err = pager.New(m.disk, m.cat, arena, pager.Options{Now: now, Started: m.started, GuessBytes: 6 * part}); err != nil {
		t.Fatal(err)
	}
	m.state.Room = make([]int, 1)
	if opt.Mode != Off {
		opt.Arena, opt.Now, opt.Score, opt.History = m.pager, now, m.score, make([]uint32, HistoryWords(m.cat))
		if m.ahead, err = New(m.cat, opt); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := m.pager.Close(); err != nil {
			t.Error(err)
		}
		if err := m.pager.Check(); err != nil {
			t.Error(err)
		}
		_ = arena.Free()
	})
	return m
}

// score is a router that sees the truth, for one microsecond a layer: the experts used are far above the others.
func (m *machine) score(first int, hidden []float32, scores [][]float32) {
	m.disk.Advance(time.Duration(len(scores)) * routerTime)
	for i, s := range scores {
		for e := range s {
			s[e] = float32((e*7+m.token)%testExperts) / testExperts
		}
		for rank, e := range m.route(m.token, first+i) {
			s[e] = float32(10 - rank)
		}
	}
}

func (m *machine) started() { m.guess(m.layer, m.route(m.token, m.layer)) }

func (m *machine) guess(layer int, ids []int32) {
	if m.ahead == nil {
		return
	}
	load := m.pager.Load()
	m.state.WaitTime, m.state.WaitBytes, m.state.BytesRead = load.WaitTime, load.WaitBytes, load.BytesRead
	m.state.OnTheirWay = m.pager.Outlook(m.state.Room)
	m.pager.Prefetch(m.ahead.Guess(layer, ids, nil, &m.state))
}

// run computes tokens and returns how long each took.
func (m *machine) run(tokens int) (took []time.Duration) {
	m.t.Helper()
	for range tokens {
		from := m.disk.Now()
		for m.layer = range testLayers {
			for range 10 {
				m.disk.Advance(m.mixer / 10)
				if err := m.pager.Poll(); err != nil {
					m.t.Fatal(err)
				}
			}
			ids := m.route(m.token, m.layer)
			if m.ahead != nil {
				m.ahead.Begin(m.layer, ids, true, m.pager.Load().Waited)
			}
			if err := m.pager.Use(m.layer, ids, 0, whole); err != nil {
				m.t.Fatal(err)
			}
		}
		d := m.disk.Now() - from
		took = append(took, d)
		now := m.pager.Stats()
		s := now.Sub(m.before)
		m.before = now
		if m.ahead != nil {
			m.ahead.Token(d, s.WaitTime, int(s.Misses+s.Guess.Late+s.Guess.Useful-s.AskedAgain))
		}
		m.pager.Tick()
		m.token++
	}
	return took
}

// whole waits for all parts, as arithmetic would.
func whole(ready []expert.Ready) error {
	for _, r := range ready {
		if _, err := r.Down(); err != nil {
			return err
		}
	}
	return nil
}

// rounds uses the experts of every layer in turn: each is long gone when its turn comes again.
func rounds(token, layer int) []int32 {
	e := int32((token*testUsed + layer) % testExperts)
	return []int32{e, (e + 1) % testExperts}
}

func recorded(tokens int, route func(token, layer int) []int32) (uses []Use) {
	for t := range tokens {
		for l := range testLayers {
			uses = append(uses, Use{int32(l), route(t, l)})
		}
	}
	return uses
}

func near1(got, want time.Duration) bool {
	return got >= want-want/100 && got <= want+want/100
}

// median leaves out the tokens that trials slow down.
func median(took []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(took))
	return s[len(s)/2]
}

// A disk whose reads fit into one layer's compute: off, a layer takes its compute and its reads; with the future known,
// its compute alone. Every guess is useful and in time.
func TestFullOverlap(t *testing.T) {
	const mixer = 100 * time.Microsecond // > testUsed * expertTime
	off := newMachine(t, mixer, rounds, Options{Mode: Off})
	last := off.run(50)[49]
	if want := testLayers * (mixer + testUsed*expertTime); !near1(last, want) {
		t.Errorf("off: a token takes %v, want %v", last, want)
	}
	on := newMachine(t, mixer, rounds, Options{Mode: Oracle, Future: recorded(200, rounds)})
	took := on.run(200)
	for i, d := range took[50:] {
		if !near1(d, testLayers*mixer) {
			t.Fatalf("oracle: token %d takes %v, want %v", 50+i, d, testLayers*mixer)
		}
	}
	s := on.pager.Stats()
	if g := s.Guess; g.Issued < 150*testLayers*testUsed || g.Wasted+g.Cancelled+g.WastedBytes > 0 || g.Late > 50*testLayers*testUsed {
		t.Errorf("%+v", s)
	}
	if r := on.ahead.Stats().Recall(); r < 0.99 {
		t.Errorf("the oracle's recall is %v", r)
	}
}

// The same with routers instead of the oracle: they see the truth, and the governor finds that it pays.
func TestGovernorTurnsUp(t *testing.T) {
	m := newMachine(t, 100*time.Microsecond, rounds, Options{Mode: Auto})
	took := m.run(600)
	s := m.ahead.Stats()
	if s.Depth == 0 {
		t.Errorf("depth 0: %s", s.Reason)
	}
	// All but the first layer, which no router knows before the token begins.
	want := testLayers*100*time.Microsecond + testUsed*expertTime + testLayers*2*routerTime
	if middle := median(took[300:]); middle > want {
		t.Errorf("the middle token takes %v, want at most %v: %s", middle, want, s.Reason)
	}
	if g := m.pager.Stats().Guess; g.WastedBytes > m.pager.Load().BytesRead/20 {
		t.Errorf("wasted %d of %d bytes: %+v", g.WastedBytes, m.pager.Load().BytesRead, g)
	}
}

// A saturated disk: there is no gap between the demands of two layers, so nothing can be gained, and the governor reaches
// depth 0.
func TestGovernorTurnsDown(t *testing.T) {
	const mixer = 100 * time.Nanosecond
	off := newMachine(t, mixer, rounds, Options{Mode: Off})
	want := off.run(50)[49]
	m := newMachine(t, mixer, rounds, Options{Mode: Auto})
	took := m.run(600)
	if s := m.ahead.Stats(); s.Depth != 0 {
		t.Errorf("depth %d: %s", s.Depth, s.Reason)
	}
	if middle := median(took); middle != want {
		t.Errorf("the middle token takes %v, off %v", middle, want)
	}
}

// partly is rounds with a share of the experts replaced at random, the same ones whenever it is asked.
func partly(wrong float64) func(token, layer int) []int32 {
	rnd := rand.New(rand.NewPCG(1, 2))
	truth := map[[2]int][]int32{}
	return func(token, layer int) []int32 {
		k := [2]int{token, layer}
		if truth[k] == nil {
			truth[k] = slices.Clone(rounds(token, layer))
			for i := range truth[k] {
				if rnd.Float64() < wrong {
					truth[k][i] = int32(2*rnd.IntN(testExperts/2) + 1 - int(truth[k][1-i])%2)
				}
			}
			if truth[k][0] == truth[k][1] {
				truth[k][0] = (truth[k][1] + 2) % testExperts
			}
		}
		return truth[k]
	}
}

// believe makes the routers see rounds, whatever the truth is.
func (m *machine) believe() {
	m.ahead.by.(*router).score = func(first int, _ []float32, scores [][]float32) {
		m.disk.Advance(time.Duration(len(scores)) * routerTime)
		for i, s := range scores {
			for e := range s {
				s[e] = -float32(e)
			}
			for rank, e := range rounds(m.token, first+i) {
				s[e] = float32(100 - rank)
			}
		}
	}
}

// Where routes cannot be guessed, guesses are few, and what they waste stays in its bounds.
func TestWasteIsBounded(t *testing.T) {
	for _, wrong := range []float64{0.2, 0.5, 0.9} {
		m := newMachine(t, 100*time.Microsecond, partly(wrong), Options{Mode: On})
		m.believe()
		m.run(400)
		s := m.pager.Stats()
		waste := float64(s.Guess.WastedBytes) / float64(m.pager.Load().BytesRead)
		t.Logf("%.0f %% of the routes wrong: %.1f %% of all bytes wasted, %+v", 100*wrong, 100*waste, s.Guess)
		if waste > 0.15 || wrong < 0.3 && s.Guess.Issued == 0 {
			t.Errorf("%.0f %% of the routes wrong: %.1f %% of all bytes wasted, %+v", 100*wrong, 100*waste, s.Guess)
		}
	}
}

// Left to the governor, a predictor that is hardly ever right costs next to nothing, and a good one gains; on a disk that
// takes a third of the time.
func TestWrongGuessesCostNothing(t *testing.T) {
	const mixer = 100 * time.Microsecond
	for _, c := range []struct{ right, most float64 }{{0.1, 1.01}, {0.5, 1}, {0.9, 0.75}} {
		route := partly(1 - c.right)
		total := func(mode string) (sum time.Duration) {
			m := newMachine(t, mixer, route, Options{Mode: mode})
			if mode != Off {
				m.believe()
			}
			for _, d := range m.run(1500) {
				sum += d
			}
			return sum
		}
		off, auto := total(Off), total(Auto)
		t.Logf("right in %.0f %%: %.4f of the time without", 100*c.right, float64(auto)/float64(off))
		if float64(auto) > c.most*float64(off) {
			t.Errorf("right in %.0f %%: %v, without prefetch %v, want at most %g of it", 100*c.right, auto, off, c.most)
		}
	}
}
