package engine

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
)

// number reads a JSON number, or "nan", "inf" and "-inf".
type number float32

func (n *number) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"nan"`:
		*n = number(math.NaN())
	case `"inf"`:
		*n = number(math.Inf(1))
	case `"-inf"`:
		*n = number(math.Inf(-1))
	default:
		return json.Unmarshal(b, (*float32)(n))
	}
	return nil
}

func floats(in []number) []float32 {
	out := make([]float32, len(in))
	for i, v := range in {
		out[i] = float32(v)
	}
	return out
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(path, err)
	}
}

func draws(t *testing.T, s *Sampler, logits []float32, n int) []int32 {
	t.Helper()
	out := make([]int32, n)
	for i := range out {
		id, err := s.Next(logits)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = id
	}
	return out
}

func newSampler(t *testing.T, set Sampling, vocab int, banned ...int32) *Sampler {
	t.Helper()
	s, err := NewSampler(set, vocab, banned)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSamplingEdges runs the table of testdata: which tokens may come out at the edges of each setting.
func TestSamplingEdges(t *testing.T) {
	var file struct {
		Logits []number
		Cases  []struct {
			Name, Error string
			Logits      []number
			Set         struct {
				Temperature number
				TopK        int      `json:"top_k"`
				TopP        *float32 `json:"top_p"`
				MinP        float32  `json:"min_p"`
				Seed        int64
			}
			Allowed []int32
		}
	}
	readJSON(t, "testdata/b51_sampling.json", &file)
	if len(file.Cases) < 18 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			set := Sampling{Temperature: float32(c.Set.Temperature), TopK: c.Set.TopK, TopP: 1, MinP: c.Set.MinP, Seed: c.Set.Seed}
			if c.Set.TopP != nil {
				set.TopP = *c.Set.TopP
			}
			logits := floats(c.Logits)
			if len(logits) == 0 {
				logits = floats(file.Logits)
			}
			s, err := NewSampler(set, len(logits), nil)
			if c.Error != "" {
				kind := ErrSampling
				if err == nil {
					_, err = s.Next(logits)
					kind = ErrNaN
				}
				if !errors.Is(err, kind) || !strings.Contains(err.Error(), c.Error) {
					t.Fatalf("got %v, want an error with %q", err, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range draws(t, s, logits, 10000) {
				if !slices.Contains(c.Allowed, id) {
					t.Fatalf("token %d, allowed %v", id, c.Allowed)
				}
			}
		})
	}
}

func TestSeeds(t *testing.T) {
	logits := []float32{2, 1, 0.5, 0, -1, -30}
	run := func(seed int64) ([]int32, int64) {
		s := newSampler(t, Sampling{Temperature: 1, TopP: 1, Seed: seed}, 6)
		return draws(t, s, logits, 50), s.Seed()
	}
	a, seed := run(7)
	if b, _ := run(7); !slices.Equal(a, b) || seed != 7 {
		t.Error("seed 7 twice gives two answers")
	}
	if b, _ := run(8); slices.Equal(a, b) {
		t.Error("seeds 7 and 8 give one answer")
	}
	c, used := run(-1)
	if d, other := run(-1); used == other || slices.Equal(c, d) {
		t.Error("two random seeds are one")
	}
	if d, _ := run(used); !slices.Equal(c, d) {
		t.Error("the seed reported does not give the same answer again")
	}
}

// randomLogits are like a model's: a few large ones, many ties (rounded), some banned.
func randomLogits(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(math.Round(r.NormFloat64()*24) / 8)
		if r.IntN(50) == 0 {
			out[i] = float32(math.Inf(-1))
		}
	}
	out[r.IntN(n)] = 9
	return out
}

// reference runs the chain the plain way, over a sorted list of everything: the probabilities of what is kept.
func reference(logits []float32, set Sampling) map[int32]float64 {
	var c []candidate
	for i, v := range logits {
		if !math.IsInf(float64(v), -1) {
			c = append(c, candidate{int32(i), v})
		}
	}
	sort.SliceStable(c, func(i, j int) bool { return c[i].logit > c[j].logit })
	if k := set.TopK; k > 0 && k < len(c) {
		c = c[:k]
	}
	p := func(t float64) []float64 {
		var sum float64
		w := make([]float64, len(c))
		for i := range c {
			w[i] = math.Exp((float64(c[i].logit) - float64(c[0].logit)) / t)
			sum += w[i]
		}
		for i := range w {
			w[i] /= sum
		}
		return w
	}
	if set.TopP < 1 {
		var sum float64
		for i, x := range p(1) {
			if sum += x; sum >= float64(set.TopP) {
				c = c[:i+1]
				break
			}
		}
	}
	for i, x := range p(1) {
		if x < float64(set.MinP)*p(1)[0]*(1-1e-12) {
			c = c[:i]
			break
		}
	}
	out := map[int32]float64{}
	for i, x := range p(float64(set.Temperature)) {
		out[c[i].id] = x
	}
	return out
}

// TestChainAgainstSorting compares kept sets and frequencies with the plain way, with and without top-k.
func TestChainAgainstSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		set := Sampling{Temperature: 0.3 + 2*r.Float32(), TopP: 1, Seed: int64(round)}
		n := 20 + r.IntN(60)
		set.TopK = []int{0, 1 + r.IntN(n), 2 * n}[r.IntN(3)]
		if r.IntN(3) > 0 {
			set.TopP = r.Float32()
		}
		if r.IntN(2) > 0 {
			set.MinP = r.Float32() * 0.2
		}
		logits := randomLogits(r, n)
		before := slices.Clone(logits)
		want := reference(logits, set)
		const draw = 4000
		got := map[int32]float64{}
		s := newSampler(t, set, n)
		s.near = 1 + r.IntN(n) // so that it is often not enough
		for _, id := range draws(t, s, logits, draw) {
			got[id] += 1.0 / draw
		}
		for id := range got {
			if want[id] == 0 {
				t.Fatalf("round %d %+v: token %d is outside of what is kept", round, set, id)
			}
		}
		for id, p := range want {
			// Six standard deviations, and six draws for the tokens that hardly ever come.
			if math.Abs(got[id]-p) > 6*math.Sqrt(p*(1-p)/draw)+6.0/draw {
				t.Errorf("round %d %+v: token %d came with %.4f, probability %.4f", round, set, id, got[id], p)
			}
		}
		if !slices.Equal(before, logits) {
			t.Fatalf("round %d: the row was changed", round)
		}
	}
}

func TestPenalties(t *testing.T) {
	logits := []float32{3, 2.9, -1, 0}
	for _, c := range []struct {
		name    string
		set     Sampling
		history []int32
		want    int32
	}{
		{"none", Sampling{RepeatLastN: 4}, []int32{0, 0}, 0},
		{"repeat", Sampling{RepeatLastN: 4, RepeatPenalty: 1.2}, []int32{0}, 1},
		{"presence", Sampling{RepeatLastN: 4, PresencePenalty: 0.5}, []int32{0}, 1},
		{"frequency counts", Sampling{RepeatLastN: 4, FrequencyPenalty: 0.06}, []int32{0, 0}, 1},
		{"frequency once is not enough", Sampling{RepeatLastN: 4, FrequencyPenalty: 0.06}, []int32{0}, 0},
		{"forgotten after the last n", Sampling{RepeatLastN: 2, PresencePenalty: 0.5}, []int32{0, 2, 3}, 0},
		{"all count", Sampling{RepeatLastN: -1, PresencePenalty: 0.5}, []int32{0, 2, 3, 2, 3}, 1},
		{"last n of 0", Sampling{RepeatLastN: 0, PresencePenalty: 5}, []int32{0}, 0},
		{"last n that no memory holds", Sampling{RepeatLastN: math.MaxInt, PresencePenalty: 0.5}, []int32{0}, 1},
		{"bias", Sampling{LogitBias: map[int32]float32{3: 100, 2: -100}}, nil, 3},
		{"bias and penalty on one token", Sampling{RepeatLastN: 4, PresencePenalty: 98, LogitBias: map[int32]float32{3: 100}}, []int32{3}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSampler(t, c.set, len(logits))
			for _, id := range c.history {
				s.Accept(id)
			}
			before := slices.Clone(logits)
			if got := draws(t, s, logits, 1)[0]; got != c.want {
				t.Errorf("token %d, want %d", got, c.want)
			}
			if !slices.Equal(before, logits) {
				t.Errorf("the row was changed: %v", logits)
			}
		})
	}
}

func TestRepeatPenaltySinks(t *testing.T) {
	s := newSampler(t, Sampling{RepeatLastN: 4, RepeatPenalty: 1.5}, 4)
	for id := range int32(3) {
		s.Accept(id)
	}
	logits := []float32{3, 0, -1, 2}
	s.change(logits)
	if want := []float32{2, 0, -1.5, 2}; !slices.Equal(logits, want) {
		t.Errorf("logits %v, want %v", logits, want)
	}
}

// TestHistoryCounts compares the running counts with counting anew.
func TestHistoryCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	h := history{n: 7}
	var all []int32
	for range 500 {
		id := int32(r.IntN(5))
		h.add(id)
		all = append(all, id)
		want := map[int32]int32{}
		for _, x := range all[max(0, len(all)-7):] {
			want[x]++
		}
		if len(h.counts) != len(want) {
			t.Fatalf("%d tokens counted, want %d", len(h.counts), len(want))
		}
		for _, c := range h.counts {
			if want[c.id] != c.n {
				t.Fatalf("token %d: %d, want %d", c.id, c.n, want[c.id])
			}
		}
	}
}

func TestBanned(t *testing.T) {
	for _, set := range []Sampling{{}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.99, TopK: 3}, {Temperature: 1e30, TopP: 0.9999}} {
		s := newSampler(t, set, 4, 1, 99, -1)
		for _, id := range draws(t, s, []float32{1, 50, 0, 0.5}, 1000) {
			if id == 1 {
				t.Fatalf("%+v: the banned token came", set)
			}
		}
	}
	s := newSampler(t, Sampling{}, 2, 0, 1)
	if _, err := s.Next([]float32{1, 2}); !errors.Is(err, ErrNaN) {
		t.Errorf("everything banned: %v", err)
	}
}

// TestNotFinite puts each bad value at each place of a row, for each way through the chain.
func TestNotFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, set := range []Sampling{{}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopP: 0.9, TopK: 2}} {
		for _, bad := range []float32{float32(math.NaN()), inf} {
			for at := range 20 { // rows are looked at by eights
				logits := make([]float32, 20)
				for i := range logits {
					logits[i] = float32((i * 7) % 20)
				}
				logits[at] = bad
				s := newSampler(t, set, len(logits))
				if _, err := s.Next(logits); !errors.Is(err, ErrNaN) {
					t.Errorf("%v at %d, %+v: %v", bad, at, set, err)
				}
				if _, err := s.Logprob(logits, 0); !errors.Is(err, ErrNaN) {
					t.Errorf("%v at %d: log-probability: %v", bad, at, err)
				}
			}
		}
	}
}

func TestBadSettings(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for param, sets := range map[string][]Sampling{
		"temperature":       {{Temperature: -1}, {Temperature: nan}, {Temperature: inf}},
		"top_p":             {{TopP: -0.1}, {TopP: 1.1}, {TopP: nan}},
		"min_p":             {{MinP: -0.1}, {MinP: 2}, {MinP: nan}},
		"repeat_penalty":    {{RepeatPenalty: -1}, {RepeatPenalty: nan}},
		"presence_penalty":  {{PresencePenalty: nan}, {PresencePenalty: inf}},
		"frequency_penalty": {{FrequencyPenalty: nan}},
		"repeat_last_n":     {{RepeatLastN: -2}},
		"top_logprobs":      {{TopLogprobs: -1}},
		"logit_bias":        {{LogitBias: map[int32]float32{9: 1}}, {LogitBias: map[int32]float32{-1: 1}}, {LogitBias: map[int32]float32{0: nan}}},
	} {
		for _, set := range sets {
			_, err := NewSampler(set, 9, nil)
			var e *SamplingError
			if !errors.As(err, &e) || e.Param != param || !errors.Is(err, ErrSampling) {
				t.Errorf("%+v: %v, want an error on %s", set, err, param)
			}
		}
	}
	d := DefaultSampling()
	if err := d.Validate(9); err != nil {
		t.Error(err)
	}
}

func TestLogprobs(t *testing.T) {
	inf := float32(math.Inf(-1))
	logits := []float32{1, 3, inf, 2, 3}
	s := newSampler(t, Sampling{TopLogprobs: 20, LogitBias: map[int32]float32{0: 50}}, 5)
	if id := draws(t, s, logits, 1)[0]; id != 0 {
		t.Fatalf("token %d", id)
	}
	got, err := s.Logprob(logits, 0)
	if err != nil {
		t.Fatal(err)
	}
	norm := math.Log(math.Exp(1) + 2*math.Exp(3) + math.Exp(2))
	near := func(got float32, want float64) bool { return math.Abs(float64(got)-want) < 1e-5 }
	if !near(got.Logprob, 1-norm) {
		t.Errorf("log-probability %v, want %v", got.Logprob, 1-norm)
	}
	want := []candidate{{1, 3}, {4, 3}, {3, 2}, {0, 1}} // equals: the lower token first
	if len(got.Top) != len(want) {
		t.Fatalf("alternatives %v", got.Top)
	}
	for i, w := range want {
		if got.Top[i].Token != w.id || !near(got.Top[i].Logprob, float64(w.logit)-norm) {
			t.Errorf("alternative %d is %v, want token %d", i, got.Top[i], w.id)
		}
	}
	if got, err = s.Logprob(logits, 2); err != nil || got.Logprob != LogprobFloor {
		t.Errorf("log-probability of minus infinity: %v, %v", got.Logprob, err)
	}
	if _, err = s.Logprob(logits, 5); err == nil {
		t.Error("a token outside of the row has a log-probability")
	}
}

func TestExp(t *testing.T) {
	for x := 0.0; x > -600; x -= 0.00731 {
		if got, want := exp(x), math.Exp(x); math.Abs(got-want) > 1e-11*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	for _, x := range []float64{-600.1, -1e300, math.Inf(-1)} {
		if exp(x) != 0 {
			t.Errorf("exp(%v) = %v", x, exp(x))
		}
	}
}

// settings are the ways through the chain, over a vocabulary of size.
var settings = map[string]Sampling{
	"greedy":   {},
	"default":  {Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1.1, RepeatLastN: 64},
	"top_p":    {Temperature: 0.8, TopP: 0.95},
	"flat":     {Temperature: 0.8, TopP: 0.95}, // where the largest logits are not enough
	"no limit": {Temperature: 0.8, TopP: 1},
}

func TestNoAllocation(t *testing.T) {
	logits := randomLogits(rand.New(rand.NewPCG(5, 6)), 5000)
	for name, set := range settings {
		s := newSampler(t, set, len(logits), 3)
		next := func() {
			id, err := s.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
		}
		for range 100 {
			next()
		}
		if n := testing.AllocsPerRun(200, next); n != 0 {
			t.Errorf("%s: %v allocations per token", name, n)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	logits := make([]float32, 248320)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 2.5)
	}
	for i := range 50 { // what fits the text stands out
		logits[r.IntN(len(logits))] = 24 - float32(i)/4
	}
	for name, set := range settings {
		b.Run(name, func(b *testing.B) {
			s, err := NewSampler(set, len(logits), nil)
			if err != nil {
				b.Fatal(err)
			}
			if name == "flat" {
				s.near = 1
			}
			for b.Loop() {
				id, err := s.Next(logits)
				if err != nil {
					b.Fatal(err)
				}
				s.Accept(id)
			}
		})
	}
	b.Run("logprobs", func(b *testing.B) {
		s, err := NewSampler(Sampling{TopLogprobs: 20}, len(logits), nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := s.Logprob(logits, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
