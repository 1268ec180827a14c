package engine

import (
	"cmp"
	"math"
	"slices"
)

// atMost reports that no logit is above t or NaN: true for nearly all of a row once t has risen.
func atMost(a *[8]float32, t float32) bool {
	return a[0] <= t && a[1] <= t && a[2] <= t && a[3] <= t && a[4] <= t && a[5] <= t && a[6] <= t && a[7] <= t
}

// largest returns the first of the largest logits; the error is ErrNaN.
func largest(logits []float32) (candidate, error) {
	best, at := float32(math.Inf(-1)), -1
	for i := 0; i < len(logits); i++ {
		if i+8 <= len(logits) && atMost((*[8]float32)(logits[i:]), best) {
			i += 7
			continue
		}
		v := logits[i]
		if v <= best { // false for NaN
			continue
		}
		if v != v {
			return candidate{id: -1}, ErrNaN
		}
		best, at = v, i
	}
	if at < 0 || best > math.MaxFloat32 {
		return candidate{id: -1}, ErrNaN
	}
	return candidate{int32(at), best}, nil
}

// topK appends the k largest logits to c, the largest first, of equals the lower token; -Inf is
// never among them. One pass with a heap of k: nearly every logit costs one comparison.
// The error is ErrNaN.
func topK(c []candidate, logits []float32, k int) ([]candidate, error) {
	c = slices.Grow(c, k)
	least := float32(math.Inf(-1))
	for i := 0; i < len(logits); i++ {
		if i+8 <= len(logits) && atMost((*[8]float32)(logits[i:]), least) {
			i += 7
			continue
		}
		v := logits[i]
		if v <= least {
			continue
		}
		if v != v {
			return c, ErrNaN
		}
		if len(c) < k {
			c = append(c, candidate{int32(i), v})
			up(c)
		} else {
			c[0] = candidate{int32(i), v}
			down(c)
		}
		if len(c) == k {
			least = c[0].logit
		}
	}
	slices.SortFunc(c, compareCandidates)
	if len(c) == 0 || c[0].logit > math.MaxFloat32 {
		return c, ErrNaN
	}
	return c, nil
}

// compareCandidates orders by falling logit, then rising token.
func compareCandidates(a, b candidate) int {
	if a.logit != b.logit {
		return cmp.Compare(b.logit, a.logit)
	}
	return cmp.Compare(a.id, b.id)
}

// up and down keep the last of the order at c[0]. container/heap would cost an interface call a step.
func up(c []candidate) {
	for i := len(c) - 1; i > 0; {
		parent := (i - 1) / 2
		if compareCandidates(c[i], c[parent]) <= 0 {
			return
		}
		c[i], c[parent] = c[parent], c[i]
		i = parent
	}
}

func down(c []candidate) {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(c) {
			return
		}
		if child+1 < len(c) && compareCandidates(c[child+1], c[child]) > 0 {
			child++
		}
		if compareCandidates(c[child], c[i]) <= 0 {
			return
		}
		c[i], c[child] = c[child], c[i]
		i = child
	}
}

// expTable holds 2^(i/256).
var expTable = func() (t [256]float64) {
	for i := range t {
		t[i] = math.Exp2(float64(i) / 256)
	}
	return t
}()

// exp is e^x for x <= 0 with a relative error below 1e-11, in a fraction of math.Exp's time: a whole
// vocabulary is summed for each token where top-k is off. Below -600 it is 0.
func exp(x float64) float64 {
	if x < -600 {
		return 0
	}
	t := x * (256 / math.Ln2)
	n := int(t)
	f := (t - float64(n)) * (math.Ln2 / 256)
	p := 1 + f*(1+f*(1.0/2+f*(1.0/6)))
	return expTable[n&255] * p * math.Float64frombits(uint64(n>>8+1023)<<52)
}

// negligible is a distance from the largest logit beyond which a weight is lost in the sum:
// exp(-60) is below 2^-86.
const negligible = 60

// sumExp is the sum of exp(logit - best).
func sumExp(logits []float32, best float32) float64 {
	var sum float64
	for _, v := range logits {
		if v >= best-negligible {
			sum += exp(float64(v) - float64(best))
		}
	}
	return sum
}

// nucleusBits are the digits by which nucleus finds its logit, 32 in all.
var nucleusBits = [...]uint{11, 11, 10}

// nucleus returns the least logit of those that top-p keeps, and how many of its equals are kept.
// It is a radix selection over the bits of the logits with sums of weights in place of counts:
// three passes, 16 KiB, no sorting.
func (s *Sampler) nucleus(logits []float32, best float32) (low float32, ties int) {
	if s.sums == nil {
		s.sums = make([]float64, 1<<nucleusBits[0])
	}
	var prefix, mask uint32
	var above, want, weight float64
	shift := uint(32)
	for pass, bits := range nucleusBits {
		shift -= bits
		digit := uint32(1)<<bits - 1
		clear(s.sums)
		for _, v := range logits {
			if v < best-negligible {
				continue
			}
			if key := orderKey(v); key&mask == prefix {
				s.sums[key>>shift&digit] += exp(float64(v) - float64(best))
			}
		}
		if pass == 0 {
			for _, x := range s.sums {
				want += x
			}
			want *= float64(s.set.TopP)
		}
		b := crossing(s.sums[:digit+1], above, want)
		for _, x := range s.sums[b+1 : digit+1] {
			above += x
		}
		weight = s.sums[b]
		prefix |= uint32(b) << shift
		mask |= digit << shift
	}
	low = fromOrderKey(prefix)
	one := exp(float64(low) - float64(best))
	// The last bucket holds equals only, weight/one of them.
	ties = int(math.Ceil((want - above) / one))
	return low, min(max(ties, 1), int(math.Round(weight/one)))
}

// crossing is the bucket, from the top, with which the sum reaches want; the lowest that is not
// empty if rounding keeps the sum below.
func crossing(sums []float64, above, want float64) int {
	last := 0
	for b := len(sums) - 1; b >= 0; b-- {
		if sums[b] == 0 {
			continue
		}
		last = b
		if above += sums[b]; above >= want {
			break
		}
	}
	return last
}

// orderKey maps floats to integers of the same order.
func orderKey(v float32) uint32 {
	if v == 0 {
		v = 0 // not -0
	}
	b := math.Float32bits(v)
	if b>>31 != 0 {
		return ^b
	}
	return b | 1<<31
}

func fromOrderKey(k uint32) float32 {
	if k>>31 != 0 {
		return math.Float32frombits(k &^ (1 << 31))
	}
	return math.Float32frombits(^k)
}
