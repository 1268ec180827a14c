package model

import (
	"fmt"
	"math"
	"sync/atomic"
)

// routeTask selects the experts of one token a unit.
type routeTask struct {
	m   *Model
	l   *layer
	bad int32 // a token whose scores are not finite; -1: none
}

func (t *routeTask) Do(_, i int) {
	m, s, k := t.m, &t.m.s, t.m.Config.Used
	scores := s.scores[i*m.Config.Experts : (i+1)*m.Config.Experts]
	ids := s.ids[i*k : (i+1)*k]
	if !topK(ids, scores) {
		atomic.StoreInt32(&t.bad, int32(i))
		for r := range ids {
			ids[r] = int32(r)
		}
		return
	}
	weigh(ids, s.weights[i*k:(i+1)*k], scores, m.Config.ExpertWeightScale)
}

// topK selects the largest scores, best first, the lower index before an equal one. It reports false when a score is NaN
// or +Inf, or when fewer than len(ids) are above -Inf.
func topK(ids []int32, scores []float32) bool {
	n := 0
	for i, v := range scores {
		if !(v <= math.MaxFloat32) {
			return false
		}
		if n == len(ids) && v <= scores[ids[n-1]] || v < -math.MaxFloat32 {
			continue
		}
		if n < len(ids) {
			n++
		}
		j := n - 1
		for ; j > 0 && v > scores[ids[j-1]]; j-- {
			ids[j] = ids[j-1]
		}
		ids[j] = int32(i)
	}
	return n == len(ids)
}

// weigh gives the selected experts their softmax probability over all experts, divided by the selected ones' sum (at
// least 2^-14), times scale.
func weigh(ids []int32, weights, scores []float32, scale float32) {
	top := scores[0]
	for _, v := range scores {
		top = max(top, v)
	}
	var all, selected float64
	for _, v := range scores {
		all += math.Exp(float64(v - top))
	}
	for r, e := range ids {
		p := math.Exp(float64(scores[e]-top)) / all
		weights[r] = float32(p)
		selected += p
	}
	selected = max(selected, 1.0/(1<<14))
	for r := range ids {
		weights[r] = float32(float64(weights[r])/selected) * scale
	}
}

// tokenErrorKind places an error of a known kind at a token of the batch.
func tokenErrorKind(l *layer, b *Batch, token int, kind error) error {
	return fmt.Errorf("model: layer %d, position %d: %w", l.block, b.Pos[token], kind)
}
