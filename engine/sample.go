package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling says how the next token is chosen from the logits. The zero value is greedy.
//
// The chain has the order of llama.cpp: logit bias, penalties, top-k, top-p, min-p, temperature.
// Each step works on what the one before kept; at least one token is always kept.
type Sampling struct {
	Temperature      float32 // 0: the most probable token, the first of equals
	TopK             int     // keep the K most probable; 0 and below: off
	TopP             float32 // keep the fewest most probable whose probabilities reach P; 0: one, 1: off
	MinP             float32 // keep what has at least this share of the best one's probability; 0: off
	RepeatPenalty    float32 // positive logits of recent tokens are divided by it, others multiplied; 0 and 1: off
	PresencePenalty  float32 // taken once from the logit of every recent token
	FrequencyPenalty float32 // taken from the logit of a recent token for each time it occurred
	RepeatLastN      int     // tokens that count as recent; 0: none, -1: all
	Seed             int64   // -1: a random one, see Sampler.Seed
	LogitBias        map[int32]float32
	TopLogprobs      int // alternatives listed beside each chosen token
}

// DefaultSampling is what a request gets that says nothing.
func DefaultSampling() Sampling {
	return Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, RepeatPenalty: 1, RepeatLastN: 64, Seed: -1}
}

// LogprobFloor stands for a log-probability of minus infinity, which JSON cannot say.
const LogprobFloor = -9999.0

var (
	// ErrNaN is the kind of a row of logits that nothing can be chosen from: it holds NaN or
	// +Inf, or nothing above -Inf. The computation that made it is broken.
	ErrNaN = errors.New("engine: logits are not finite")
	// ErrSampling is the kind of a setting that cannot be.
	ErrSampling = errors.New("engine: bad sampling")
)

// SamplingError names the setting that cannot be, by its name in requests; its kind is ErrSampling.
type SamplingError struct {
	Param string
	Why   string
}

func (e *SamplingError) Error() string { return fmt.Sprintf("engine: %s %s", e.Param, e.Why) }

func (e *SamplingError) Unwrap() error { return ErrSampling }

// Validate refuses settings that cannot be with a *SamplingError. vocab is the number of tokens.
func (s *Sampling) Validate(vocab int) error {
	for _, c := range []struct {
		param  string
		v      float32
		lo, hi float64
		want   string
	}{
		{"temperature", s.Temperature, 0, math.MaxFloat32, "a finite number, 0 or above"},
		{"top_p", s.TopP, 0, 1, "between 0 and 1"},
		{"min_p", s.MinP, 0, 1, "between 0 and 1"},
		{"repeat_penalty", s.RepeatPenalty, 0, math.MaxFloat32, "a finite number, 0 or above"},
		{"presence_penalty", s.PresencePenalty, -math.MaxFloat32, math.MaxFloat32, "a finite number"},
		{"frequency_penalty", s.FrequencyPenalty, -math.MaxFloat32, math.MaxFloat32, "a finite number"},
	} {
		// Negated, so that NaN fails too.
		if v := float64(c.v); !(v >= c.lo && v <= c.hi) {
			return &SamplingError{c.param, fmt.Sprintf("is %v, must be %s", c.v, c.want)}
		}
	}
	if s.RepeatLastN < -1 {
		return &SamplingError{"repeat_last_n", fmt.Sprintf("is %d, must be -1 (all) or above", s.RepeatLastN)}
	}
	if s.TopLogprobs < 0 {
		return &SamplingError{"top_logprobs", fmt.Sprintf("is %d, must be 0 or above", s.TopLogprobs)}
	}
	for id, b := range s.LogitBias {
		if id < 0 || int(id) >= vocab {
			return &SamplingError{"logit_bias", fmt.Sprintf("names token %d, the vocabulary has %d", id, vocab)}
		}
		if b != b || math.IsInf(float64(b), 1) {
			return &SamplingError{"logit_bias", fmt.Sprintf("of token %d is %v, must be a number", id, b)}
		}
	}
	return nil
}

// candidate is a token and its logit.
type candidate struct {
	id    int32
	logit float32
}

// Sampler chooses the tokens of one request. After its first token it allocates nothing, apart
// from log-probabilities. It is not safe for concurrent use.
type Sampler struct {
	set    Sampling
	seed   int64
	rng    *rand.Rand
	bias   []candidate // added; -Inf bans
	recent history
	undo   []candidate // what the logits were before bias and penalties
	kept   []candidate
	near   int       // see chooseNear
	sums   []float64 // weights by bucket, see nucleus
}

// NewSampler makes a sampler for a vocabulary of vocab tokens; the tokens in banned are never
// chosen. Errors are of kind ErrSampling.
func NewSampler(set Sampling, vocab int, banned []int32) (*Sampler, error) {
	if err := set.Validate(vocab); err != nil {
		return nil, err
	}
	s := &Sampler{set: set, seed: set.Seed, near: nearest}
	if s.seed == -1 {
		s.seed = rand.Int64()
	}
	s.rng = rand.New(rand.NewPCG(uint64(s.seed), 0))
	for id, b := range set.LogitBias {
		if b != 0 {
			s.bias = append(s.bias, candidate{id, b})
		}
	}
	for _, id := range banned {
		if id >= 0 && int(id) < vocab {
			s.bias = append(s.bias, candidate{id, float32(math.Inf(-1))})
		}
	}
	s.recent.n = set.RepeatLastN
	return s, nil
}

// Seed is the seed in use, also where a random one was asked for: with it the same answer comes again.
func (s *Sampler) Seed() int64 { return s.seed }

func (s *Sampler) penalises() bool {
	r := s.set.RepeatPenalty
	return s.set.RepeatLastN != 0 && (r != 0 && r != 1 || s.set.PresencePenalty != 0 || s.set.FrequencyPenalty != 0)
}

// Accept tells the sampler of a token of the prompt or of the answer, for the penalties.
func (s *Sampler) Accept(id int32) {
	if s.penalises() {
		s.recent.add(id)
	}
}

// Next chooses a token from one row of logits. The row is changed while Next runs and left as it
// was. The error is of kind ErrNaN.
func (s *Sampler) Next(logits []float32) (int32, error) {
	s.change(logits)
	id, err := s.choose(logits)
	s.restore(logits)
	return id, err
}

// Best is the token that Next would choose from a row at temperature 0. It draws nothing: what Next chooses later is the same
// with and without it. The error is of kind ErrNaN.
func (s *Sampler) Best(logits []float32) (int32, error) {
	s.change(logits)
	best, err := largest(logits)
	s.restore(logits)
	return best.id, err
}

func (s *Sampler) choose(logits []float32) (int32, error) {
	if s.set.Temperature == 0 || s.set.TopK == 1 {
		best, err := largest(logits)
		return best.id, err
	}
	if k := s.set.TopK; k > 0 && k < len(logits) {
		return s.chooseFew(logits, k)
	}
	return s.chooseAll(logits)
}

// change applies bias and penalties to the few logits they touch, keeping what was there.
func (s *Sampler) change(logits []float32) {
	s.undo = s.undo[:0]
	for _, b := range s.bias {
		s.undo = append(s.undo, candidate{b.id, logits[b.id]})
		logits[b.id] += b.logit
	}
	repeat := s.set.RepeatPenalty
	for _, c := range s.recent.counts {
		if int(c.id) >= len(logits) || c.id < 0 {
			continue
		}
		v := logits[c.id]
		s.undo = append(s.undo, candidate{c.id, v})
		if repeat != 0 && repeat != 1 {
			if v > 0 {
				v /= repeat
			} else {
				v *= repeat
			}
		}
		logits[c.id] = v - s.set.PresencePenalty - float32(c.n)*s.set.FrequencyPenalty
	}
}

// restore undoes change, latest first: one token may have been changed twice.
func (s *Sampler) restore(logits []float32) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		logits[s.undo[i].id] = s.undo[i].logit
	}
}

// chooseFew runs the chain over the k largest logits.
func (s *Sampler) chooseFew(logits []float32, k int) (int32, error) {
	var err error
	if s.kept, err = topK(s.kept[:0], logits, k); err != nil {
		return -1, err
	}
	c := s.kept
	var total float64
	if s.set.TopP < 1 {
		for i := range c {
			total += exp(float64(c[i].logit) - float64(c[0].logit))
		}
		n, _ := keepTopP(c, s.set.TopP, total)
		c = c[:n]
	}
	return s.draw(c[:keepMinP(c, s.set.MinP)]), nil
}

// draw chooses one of the sorted candidates at the temperature.
func (s *Sampler) draw(c []candidate) int32 {
	best, t := float64(c[0].logit), float64(s.set.Temperature)
	var total float64
	for i := range c {
		total += exp((float64(c[i].logit) - best) / t)
	}
	at := s.rng.Float64() * total
	for i := range c {
		if at -= exp((float64(c[i].logit) - best) / t); at < 0 {
			return c[i].id
		}
	}
	return c[0].id // rounding left a rest
}

// keepTopP returns how many of the sorted candidates reach the share p of the weight total
// together, and whether they do. Weights are relative to the first one's.
func keepTopP(c []candidate, p float32, total float64) (int, bool) {
	var sum float64
	for i := range c {
		if sum += exp(float64(c[i].logit) - float64(c[0].logit)); sum >= float64(p)*total {
			return i + 1, true
		}
	}
	return len(c), false
}

// keepMinP returns how many of the sorted candidates have at least p of the best one's probability.
func keepMinP(c []candidate, p float32) int {
	low := minPLogit(c[0].logit, p)
	for i := 1; i < len(c); i++ {
		if float64(c[i].logit) < low {
			return i
		}
	}
	return len(c)
}

// minPLogit is the least logit that min-p keeps.
func minPLogit(best, p float32) float64 { return float64(best) + math.Log(float64(p)) }

// nearest is how many of the largest logits are looked at before all of them where top-k is off.
const nearest = 512

// chooseNear runs top-p and min-p over the largest logits only. It is done if they cut among those,
// which they nearly always do, and the outcome is the same as over all.
func (s *Sampler) chooseNear(logits []float32) (id int32, done bool, err error) {
	if s.kept, err = topK(s.kept[:0], logits, s.near); err != nil {
		return -1, false, err
	}
	c := s.kept
	n := keepMinP(c, s.set.MinP)
	done = n < len(c)
	if s.set.TopP < 1 {
		m, reached := keepTopP(c[:n], s.set.TopP, sumExp(logits, c[0].logit))
		n, done = m, done || reached
	}
	if !done {
		return -1, false, nil
	}
	return s.draw(c[:n]), true, nil
}

// chooseAll runs the chain without top-k. A list of the whole vocabulary would be megabytes, so
// where the largest logits are not enough, top-p and min-p become one least logit and the draw
// goes over the row itself.
func (s *Sampler) chooseAll(logits []float32) (int32, error) {
	if s.set.TopP < 1 || s.set.MinP > 0 {
		if id, done, err := s.chooseNear(logits); done || err != nil {
			return id, err
		}
	}
	best, err := largest(logits)
	if err != nil {
		return -1, err
	}
	low, ties := float32(math.Inf(-1)), len(logits)
	if s.set.TopP < 1 {
		low, ties = s.nucleus(logits, best.logit)
	}
	floor := minPLogit(best.logit, s.set.MinP)
	t, top := float64(s.set.Temperature), float64(best.logit)
	walk := func(at float64) (int32, float64) {
		var sum float64
		left := ties
		for i, v := range logits {
			if v < low || float64(v) < floor {
				continue
			}
			if v == low {
				if left == 0 {
					continue
				}
				left--
			}
			if sum += exp((float64(v) - top) / t); sum > at {
				return int32(i), sum
			}
		}
		return best.id, sum
	}
	_, total := walk(math.Inf(1))
	id, _ := walk(s.rng.Float64() * total)
	return id, nil
}

// Logprob is the log-probability of a chosen token and the TopLogprobs best, in the model's own
// distribution: before bias, penalties and temperature. Call it with the row given to Next.
func (s *Sampler) Logprob(logits []float32, id int32) (TokenLogprob, error) {
	best, err := largest(logits)
	if err != nil {
		return TokenLogprob{}, err
	}
	if id < 0 || int(id) >= len(logits) {
		return TokenLogprob{}, fmt.Errorf("engine: no log-probability of token %d, the row has %d", id, len(logits))
	}
	norm := float64(best.logit) + math.Log(sumExp(logits, best.logit))
	out := TokenLogprob{Token: id, Logprob: logprob(logits[id], norm)}
	if n := min(s.set.TopLogprobs, len(logits)); n > 0 {
		if s.kept, err = topK(s.kept[:0], logits, n); err != nil {
			return TokenLogprob{}, err
		}
		out.Top = make([]TokenLogprob, len(s.kept))
		for i, c := range s.kept {
			out.Top[i] = TokenLogprob{Token: c.id, Logprob: logprob(c.logit, norm)}
		}
	}
	return out, nil
}

func logprob(logit float32, norm float64) float32 {
	return float32(max(float64(logit)-norm, LogprobFloor))
}

// history counts the last n tokens. It holds memory for what was added, not for n.
type history struct {
	n      int     // -1: all
	ring   []int32 // the last n tokens, the oldest at next once it is full
	next   int
	counts []count // by token
}

type count struct{ id, n int32 }

func (h *history) add(id int32) {
	switch {
	case h.n < 0:
	case len(h.ring) < h.n:
		h.ring = append(h.ring, id)
	default:
		h.remove(h.ring[h.next])
		h.ring[h.next] = id
		h.next = (h.next + 1) % h.n
	}
	i, found := h.find(id)
	if !found {
		h.counts = slices.Insert(h.counts, i, count{id: id})
	}
	h.counts[i].n++
}

func (h *history) remove(id int32) {
	i, _ := h.find(id)
	if h.counts[i].n--; h.counts[i].n == 0 {
		h.counts = slices.Delete(h.counts, i, i+1)
	}
}

func (h *history) find(id int32) (int, bool) {
	return slices.BinarySearchFunc(h.counts, id, func(c count, id int32) int { return cmp.Compare(c.id, id) })
}
