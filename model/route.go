package model

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/kernels"
)

// routeTask selects the experts of one token a unit:
//
//	z = W_r a + bias      p = softmax(z) or sigmoid(z)      c = p + choice bias      without either: c = z
//	groups: the best ones by the sum of their two largest c stay
//	T = the largest c, of equals the lower index      w_e by Config.weigh
type routeTask struct {
	m   *Model
	l   *layer
	bad int32 // a token whose scores are not finite; -1: none
}

func (t *routeTask) Do(worker, i int) {
	m, s, c := t.m, &t.m.s, &t.m.Config
	z := s.scores[i*c.Experts : (i+1)*c.Experts]
	ids := s.ids[i*c.Used : (i+1)*c.Used]
	if t.l.routerBias != nil {
		m.set.Add(z, t.l.routerBias)
	}
	if !c.choose(m.set, ids, z, s.choice[i*c.Experts:(i+1)*c.Experts], t.l.choiceBias, &s.workers[worker]) {
		atomic.StoreInt32(&t.bad, int32(i))
		for r := range ids {
			ids[r] = int32(r)
		}
		return
	}
	c.weigh(ids, s.weights[i*c.Used:(i+1)*c.Used], z)
}

// choose selects the experts of one token by its scores z. They become probabilities where Gating is Sigmoid. It reports
// false when a score is NaN or +Inf, or when too few are above -Inf.
func (c *Config) choose(set *kernels.Set, ids []int32, z, choice, bias []float32, w *workerScratch) bool {
	by := c.selector(set, z, choice, bias, w)
	return by != nil && topK(ids, by)
}

// selector returns what experts are selected by, the larger first, -Inf never: z, or choice after filling it; nil when a
// score is NaN or +Inf.
func (c *Config) selector(set *kernels.Set, z, choice, bias []float32, w *workerScratch) []float32 {
	if c.Gating != Sigmoid && bias == nil && c.Groups == 1 {
		return z
	}
	for _, v := range z {
		if !(v <= math.MaxFloat32) {
			return nil
		}
	}
	copy(choice, z)
	if c.Gating == Sigmoid {
		set.Sigmoid(choice, choice)
	} else {
		set.Softmax(choice)
	}
	for e, v := range z {
		p := choice[e]
		if bias != nil {
			choice[e] += bias[e]
		}
		if v < -math.MaxFloat32 {
			p, choice[e] = 0, float32(math.Inf(-1))
		}
		if c.Gating == Sigmoid {
			z[e] = p
		}
	}
	if c.Groups > 1 && !c.keepGroups(choice, w) {
		return nil
	}
	return choice
}

// keepGroups puts the choice of experts outside the best groups at -Inf.
func (c *Config) keepGroups(choice []float32, w *workerScratch) bool {
	size := c.Experts / c.Groups
	for g := range c.Groups {
		w.groups[g] = twoLargest(choice[g*size : (g+1)*size])
	}
	if !topK(w.best, w.groups) {
		return false
	}
	for g := range c.Groups {
		if !slices.Contains(w.best, int32(g)) {
			for i := range size {
				choice[g*size+i] = float32(math.Inf(-1))
			}
		}
	}
	return true
}

// twoLargest is the sum of the two largest, or the only one.
func twoLargest(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	a, b := float32(math.Inf(-1)), float32(math.Inf(-1))
	for _, v := range x {
		if v > a {
			a, b = v, a
		} else if v > b {
			b = v
		}
	}
	return a + b
}

// topK selects the largest scores, best first, the lower index before an equal one. It reports false when a score is NaN
// or +Inf, or when fewer than len(ids) are above -Inf.
func topK(ids []int32, scores []float32) bool {
	for _, v := range scores {
		if !(v <= math.MaxFloat32) {
			return false
		}
	}
	return expert.Top(ids, scores) == len(ids)
}

// weigh gives the selected experts their probability p, divided by the selected ones' sum (at least 2^-14) where weights
// are normalised, times the scale. z: scores; for Sigmoid the probabilities that choose has made of them.
func (c *Config) weigh(ids []int32, weights, z []float32) {
	sum := 0.0
	if c.Gating == Sigmoid {
		for r, e := range ids {
			weights[r] = z[e]
			sum += float64(z[e])
		}
	} else {
		sum = c.softmax(ids, weights, z)
	}
	sum = max(sum, 1.0/(1<<14))
	if !c.Normalise {
		sum = 1
	}
	for r := range ids {
		weights[r] = float32(float64(weights[r])/sum) * c.ExpertWeightScale
	}
}

// softmax gives the selected experts their share of all experts' e^z, or of the selected ones', and returns the sum.
func (c *Config) softmax(ids []int32, weights, z []float32) (sum float64) {
	top := z[0]
	for _, v := range z {
		top = max(top, v)
	}
	all := 0.0
	if c.Gating == SoftmaxOfChosen {
		for _, e := range ids {
			all += math.Exp(float64(z[e] - top))
		}
	} else {
		for _, v := range z {
			all += math.Exp(float64(v - top))
		}
	}
	for r, e := range ids {
		p := math.Exp(float64(z[e]-top)) / all
		weights[r] = float32(p)
		sum += p
	}
	return sum
}

// tokenErrorKind places an error of a known kind at a token of the batch.
func tokenErrorKind(l *layer, b *Batch, token int, kind error) error {
	return fmt.Errorf("model: layer %d, position %d: %w", l.block, b.Pos[token], kind)
}
