package sim

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
)

// routes describe a router that does not exist but behaves like those that were measured: the score of an expert is a
// constant, a topic that drifts over some hundred tokens, something local of a few tokens, and noise.
type routes struct {
	layers, experts, used, tokens int
	fixed, topic, local, noise    float64 // weights
	topicTokens, localTokens      float64
	prompt                        int // tokens of the first batch
}

// Shaped after hit rates measured with real models (share of experts in memory: LRU, LFU, Belady in percent): 128 experts,
// 6 used (17 %: 71, 71, 88; 23 %: 80, 81, 93), here 72, 70, 86 and 80, 79, 90; and 64 experts, 8 used (12.5 %: LRU 28;
// 37.5 %: LRU 68, Belady 84), here 29, and 63, 84.
var shapes = map[string]routes{
	"skewed": {layers: 24, experts: 128, used: 6, tokens: 400, fixed: 0.7, topic: 0.7, local: 0.5, noise: 0.7, topicTokens: 120, localTokens: 4, prompt: 32},
	"flat":   {layers: 12, experts: 64, used: 8, tokens: 400, fixed: 0.4, topic: 0.5, local: 0.5, noise: 0.9, topicTokens: 150, localTokens: 4, prompt: 32},
}

func testCatalog(t testing.TB, layers, experts, used int) *expert.Catalog {
	t.Helper()
	var all []expert.Layer
	offset := int64(100)
	for b := range layers {
		l := expert.Layer{Block: b + 1, Experts: experts, Used: used}
		for i := range 3 {
			size := int64(9000 + i/2*b%2*5000)
			l.Parts = append(l.Parts, expert.Part{Tensor: fmt.Sprintf("blk.%d.%d", b, i), Offset: offset, Size: size})
			offset += size * int64(experts)
		}
		all = append(all, l)
	}
	cat, err := expert.Build(all, []string{"/some/where/model.gguf"}, []int{512})
	if err != nil {
		t.Fatal(err)
	}
	return cat
}

// fileSize is where the last expert ends.
func fileSize(cat *expert.Catalog) (end int64) {
	for _, l := range cat.Layers {
		for _, p := range l.Parts {
			end = max(end, p.Offset+p.Size*int64(l.Experts))
		}
	}
	return end
}

// record writes a trace of routes as a run would.
func record(t testing.TB, w io.Writer, r routes, seed uint64) *expert.Catalog {
	t.Helper()
	cat := testCatalog(t, r.layers, r.experts, r.used)
	plan, err := expert.NewPlan(1<<40, "flag", []expert.Term{{Name: "kv", Bytes: 12345, Kind: expert.Anonymous, Counted: true}, {Name: "w", Bytes: 99, Kind: expert.File}}, cat)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := NewRecorder(w, cat, plan, []int64{fileSize(cat)})
	if err != nil {
		t.Fatal(err)
	}
	r.run(rec, seed)
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	return cat
}

func (r routes) run(rec *Recorder, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	n := r.layers * r.experts
	fixed, topic, local := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		fixed[i], topic[i], local[i] = rnd.NormFloat64(), rnd.NormFloat64(), rnd.NormFloat64()
	}
	drift := func(x []float64, tokens float64) {
		a := math.Exp(-1 / tokens)
		for i := range x {
			x[i] = a*x[i] + math.Sqrt(1-a*a)*rnd.NormFloat64()
		}
	}
	chosen := make([][]int32, r.layers)
	for token := range r.tokens {
		drift(topic, r.topicTokens)
		drift(local, r.localTokens)
		for l := range r.layers {
			score := make([]float64, r.experts)
			ids := make([]int32, r.experts)
			for e := range score {
				i := l*r.experts + e
				score[e], ids[e] = r.fixed*fixed[i]+r.topic*topic[i]+r.local*local[i]+r.noise*rnd.NormFloat64(), int32(e)
			}
			slices.SortFunc(ids, func(a, b int32) int { return cmp.Compare(score[b], score[a]) })
			chosen[l] = append(chosen[l], ids[:r.used]...)
		}
		if token < r.prompt-1 {
			continue
		}
		for l := range chosen {
			slices.Sort(chosen[l])
			rec.Use(l, slices.Compact(chosen[l]))
			chosen[l] = chosen[l][:0]
		}
		if token == r.prompt-1 {
			rec.Batch(r.prompt)
		} else {
			rec.Batch(1)
		}
	}
}

func recorded(t testing.TB, r routes, seed uint64) *Trace {
	t.Helper()
	var b bytes.Buffer
	record(t, &b, r, seed)
	trace, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

var small = routes{layers: 3, experts: 12, used: 3, tokens: 60, fixed: 0.5, topic: 0.5, local: 0.5, noise: 0.7, topicTokens: 30, localTokens: 4, prompt: 5}

func TestTraceKeepsTheCatalog(t *testing.T) {
	var b bytes.Buffer
	cat := record(t, &b, small, 1)
	if strings.Contains(b.String(), "some/where") {
		t.Error("the trace tells where the model lies")
	}
	trace, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if trace.Other != 12345 || trace.Tokens != 60-5+5 {
		t.Errorf("other %d, tokens %d", trace.Other, trace.Tokens)
	}
	if fmt.Sprint(trace.Catalog.Classes, trace.Catalog.Layers) != fmt.Sprint(cat.Classes, cat.Layers) {
		t.Errorf("got %+v\nwant %+v", trace.Catalog, cat)
	}
}

func TestReadRefuses(t *testing.T) {
	var b bytes.Buffer
	record(t, &b, small, 1)
	whole := b.Bytes()
	head := bytes.IndexByte(whole, '\n') + 1
	damaged := func(at int, x byte) []byte {
		d := slices.Clone(whole)
		d[at] = x
		return d
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("hello\n"), "json": []byte("{}\n"), "cut in the header": whole[:head/2], "cut": whole[:head+(len(whole)-head)/2],
		"cut at a record": whole[:head], "no end": whole[:len(whole)-1], "bad kind": damaged(head, 9), "bad layer": damaged(head+1, 100), "too many": damaged(head+2, 100),
		"bad expert":   damaged(head+3, 100),
		"huge":         bytes.Replace(whole, []byte(`"experts":12`), []byte(`"experts":1073741823`), 1),
		"past the end": bytes.Replace(whole, []byte(`"sizes":[`), []byte(`"sizes":[1,`), 1),
		"too small":    bytes.Replace(whole, []byte(fmt.Sprint(`"sizes":[`, fileSize(testCatalog(t, small.layers, small.experts, small.used)))), []byte(`"sizes":[5`), 1),
		"no such file": bytes.ReplaceAll(bytes.Replace(whole, []byte(`"align":[`), []byte(`"align":[512,`), 1), []byte(`"shard":0`), []byte(`"shard":1`)),
		"negative":     bytes.Replace(whole, []byte(`"other_bytes":12345`), []byte(`"other_bytes":-1`), 1),
	} {
		if _, err := Read(bytes.NewReader(data)); !errors.Is(err, ErrTrace) || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := bytes.Replace(whole, []byte(`"version":1`), []byte(`"version":2`), 1)
	if _, err := Read(bytes.NewReader(other)); !errors.Is(err, ErrVersion) {
		t.Errorf("other version: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	record(f, &b, small, 1)
	f.Add(b.Bytes()[:2000])
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		trace, err := Read(bytes.NewReader(data))
		if err != nil && !errors.Is(err, ErrTrace) && !errors.Is(err, ErrVersion) {
			t.Error(err)
		}
		if err == nil && trace.Catalog.Experts() < 10000 {
			_, _ = Simulate(trace, []int64{1 << 40}, []string{"lru", Belady}, pager.Options{})
		}
	})
}

// budget gives each class so many slots per hundred experts.
func budget(t *Trace, percent float64) int64 {
	bytes := float64(t.Other)
	for _, k := range t.Catalog.Classes {
		bytes += float64(k.SlotBytes) * float64(k.Experts) * percent / 100
	}
	return int64(bytes)
}

// TestBounds: for many traces and budgets no policy hits more than Belady or reads less than once per expert.
func TestBounds(t *testing.T) {
	for seed := range uint64(20) {
		r := small
		r.prompt = 1 + int(seed%9)
		trace := recorded(t, r, seed)
		ram := []int64{budget(trace, 30), budget(trace, 50), budget(trace, 80), budget(trace, 110)}
		cells, err := Simulate(trace, ram, Policies(), pager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]Cell{}
		for _, c := range cells {
			at[fmt.Sprint(c.Policy, c.RAM)] = c
		}
		if len(at) != len(ram)*len(Policies()) {
			t.Fatalf("%d cells", len(at))
		}
		for _, c := range cells {
			best, least := at[fmt.Sprint(Belady, c.RAM)], at[fmt.Sprint(Compulsory, c.RAM)]
			if c.Policy != Compulsory && c.HitRate > best.HitRate+1e-12 || c.MiBPerToken < least.MiBPerToken-1e-12 {
				t.Errorf("seed %d: %+v\nbelady %+v\ncompulsory %+v", seed, c, best, least)
			}
			if c.RAM == ram[3] && (c.Evictions != 0 || c.MiBPerToken != least.MiBPerToken) {
				t.Errorf("seed %d: everything fits, but %+v", seed, c)
			}
		}
	}
}

// TestBeladyIsBest compares the bound with a search over every choice of what to keep, on traces small enough for that.
func TestBeladyIsBest(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 9))
	for range 60 {
		cat := testCatalog(t, 1, 5, 1)
		trace := &Trace{Catalog: cat, Tokens: 1, Sizes: []int64{fileSize(cat)}}
		for range 7 {
			from := len(trace.ids)
			for _, id := range rnd.Perm(5)[:1+rnd.IntN(2)] {
				trace.ids = append(trace.ids, int32(id))
			}
			trace.uses = append(trace.uses, use{from: from, to: len(trace.ids)})
		}
		slots := 1 + rnd.IntN(3)
		want := float64(search(trace, 0, 0, slots)) / float64(len(trace.ids))
		if got := trace.bound([]int{slots}); math.Abs(got.HitRate-want) > 1e-12 {
			t.Fatalf("%d slots, %v %v: got %v, want %v", slots, trace.uses, trace.ids, got.HitRate, want)
		}
	}
}

// search returns the most hits from record i on with the experts of a bit set in the cache.
func search(t *Trace, i int, cached uint, slots int) int {
	if i == len(t.uses) {
		return 0
	}
	hits, all := 0, cached
	for _, id := range t.ids[t.uses[i].from:t.uses[i].to] {
		hits += int(cached >> id & 1)
		all |= 1 << id
	}
	best := 0
	for keep := range uint(1 << 5) {
		if keep&^all == 0 && popcount(keep) <= slots {
			best = max(best, search(t, i+1, keep, slots))
		}
	}
	return hits + best
}

func popcount(x uint) (n int) {
	for ; x > 0; x &= x - 1 {
		n++
	}
	return n
}

func TestTooSmallAndUnknown(t *testing.T) {
	trace := recorded(t, small, 3)
	var refused *expert.TooSmall
	if _, err := Simulate(trace, []int64{1000}, []string{"lru"}, pager.Options{}); !errors.As(err, &refused) || refused.Minimum <= 12345 {
		t.Errorf("%v", err)
	}
	if _, err := ParsePolicies("lru,nosuch"); !errors.Is(err, pager.ErrPolicy) {
		t.Errorf("%v", err)
	}
	if two, err := ParsePolicies("lru, belady"); err != nil || !slices.Equal(two, []string{"lru", "belady"}) {
		t.Errorf("%q, %v", two, err)
	}
	if all, err := ParsePolicies("all"); err != nil || len(all) != len(pager.Policies())+2 {
		t.Errorf("%v: %v", all, err)
	}
}

func TestSVG(t *testing.T) {
	trace := recorded(t, small, 4)
	cells, err := Simulate(trace, []int64{budget(trace, 40), budget(trace, 90)}, Policies(), pager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]Cell{cells, cells[:1], nil} {
		var b bytes.Buffer
		if err := WriteSVG(&b, list); err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(b.Bytes(), new(struct{})); err != nil {
			t.Errorf("%v in %s", err, b.String())
		}
		if n := strings.Count(b.String(), "<circle"); n != len(list) {
			t.Errorf("%d points for %d cells", n, len(list))
		}
	}
	var b bytes.Buffer
	if err := WriteSVG(&b, []Cell{{Policy: "lru", RAM: 115 << 20}, {Policy: "lru", RAM: 4 << 30}}); err != nil || !strings.Contains(b.String(), ">115 MiB<") || !strings.Contains(b.String(), ">4.00 GiB<") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// TestDefaultPolicy: on both shapes, from less than a token's experts to half of the model, no other policy hits half a
// point more than the default.
func TestDefaultPolicy(t *testing.T) {
	for name, r := range shapes {
		r.tokens = 150
		trace := recorded(t, r, 11)
		for _, percent := range []float64{7, 17, 37.5} {
			cells, err := Simulate(trace, []int64{budget(trace, percent)}, pager.Policies(), pager.Options{})
			if err != nil {
				t.Fatal(err)
			}
			best := slices.MaxFunc(cells, func(a, b Cell) int { return cmp.Compare(a.HitRate, b.HitRate) })
			if cells[0].Policy != pager.DefaultPolicy || cells[0].HitRate < best.HitRate-0.005 {
				t.Errorf("%s at %v %%: %s hits %.3f, %s %.3f", name, percent, cells[0].Policy, cells[0].HitRate, best.Policy, best.HitRate)
			}
		}
	}
}

// BenchmarkPolicies reports hit rates in percent: what chose the default policy and its constants.
func BenchmarkPolicies(b *testing.B) {
	for name, r := range shapes {
		trace := recorded(b, r, 12)
		for _, percent := range []float64{3, 7, 12.5, 17, 23, 37.5, 60} {
			for _, policy := range append(pager.Policies(), Belady) {
				b.Run(fmt.Sprintf("%s/%v%%/%s", name, percent, policy), func(b *testing.B) {
					var rate float64
					for b.Loop() {
						cells, err := Simulate(trace, []int64{max(budget(trace, percent), 12345+minimum(trace))}, []string{policy}, pager.Options{})
						if err != nil {
							b.Fatal(err)
						}
						rate = cells[0].HitRate
					}
					b.ReportMetric(100*rate, "hit%")
				})
			}
		}
	}
}

func minimum(t *Trace) (bytes int64) {
	for _, k := range t.Catalog.Classes {
		bytes += k.SlotBytes * int64(k.Used)
	}
	return bytes
}
