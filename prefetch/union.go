package prefetch

import (
	"math"
	"slices"

	"github.com/epq-uring/epq-uring/expert"
)

const (
	// unionSample is how many tokens of a batch are asked where they go next: 16 name a third of what 128 will use, more
	// than a disk can read before that layer begins.
	unionSample = 16
	// unionMost bounds what is read ahead for a batch: 64 experts of 1.7 MB take a disk of 3 GB/s 36 ms, longer than the
	// mixer of a layer computes for 128 tokens.
	unionMost = 64
	// namedChance is how often a token uses what the next layer's router named for it a layer before (docs/prefetch.md).
	namedChance = 0.75
	// unionChance is how probable an expert must be to be read ahead for a batch: with a disk that is never idle, which a
	// prompt's mostly is, a read for nothing delays all others, and one that is begun early gains nothing.
	unionChance = 0.9
)

// union is the scratch of Union.
type union struct {
	scores [1][]float32
	ids    []int32
	count  []int32
	order  []int32
	out    []expert.Guess
}

func newUnion(experts, used int) union {
	u := union{ids: make([]int32, used), count: make([]int32, experts), order: make([]int32, 0, experts), out: make([]expert.Guess, 0, unionMost)}
	u.scores[0] = make([]float32, experts)
	return u
}

// Union guesses what a batch of tokens will use of the layer after layer (-1: their embeddings are all there is), the most
// probable first, and leaves out what need not be read. hidden holds the tokens' states, width numbers each. The next
// layer's router is asked for some of the tokens, each of which stands for its share of the batch: a batch uses what any of its
// tokens does. What it returns is valid until the next call; without a function that scores experts it is empty.
func (p *Prefetcher) Union(layer int, hidden []float32, width int) []expert.Guess {
	target := layer + 1
	if p.opt.Score == nil || target >= len(p.cat.Layers) {
		return nil
	}
	from := p.opt.Now()
	u, l := &p.union, p.cat.Layers[target]
	tokens := len(hidden) / width
	sample := min(tokens, unionSample)
	u.scores[0], u.ids, u.count = u.scores[0][:l.Experts], u.ids[:l.Used], u.count[:l.Experts]
	clear(u.count)
	for i := range sample {
		t := i * tokens / sample
		p.opt.Score(target, hidden[t*width:(t+1)*width], u.scores[:])
		for _, id := range u.ids[:expert.Top(u.ids, u.scores[0])] {
			u.count[id]++
		}
	}
	u.order = u.order[:0]
	for e, n := range u.count {
		if n > 0 && !p.opt.Arena.Has(expert.Key{Layer: int32(target), Expert: int32(e)}) {
			u.order = append(u.order, int32(e))
		}
	}
	slices.SortStableFunc(u.order, func(a, b int32) int { return int(u.count[b] - u.count[a]) })
	u.out = u.out[:0]
	for _, e := range u.order[:min(len(u.order), unionMost)] {
		chance := 1 - math.Pow(1-namedChance, float64(u.count[e])*float64(tokens)/float64(sample))
		if chance < unionChance {
			break
		}
		u.out = append(u.out, expert.Guess{Key: expert.Key{Layer: int32(target), Expert: e}, P: float32(chance)})
	}
	p.stats.Time += p.opt.Now().Sub(from)
	return u.out
}
