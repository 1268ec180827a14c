package pager

import (
	"math"

	"github.com/epq-uring/epq-uring/expert"
)

// history is what is known about every expert of the model, in the arena or not, in dense arrays: evicted experts keep
// their past (what other caches hold in ghost lists). All policies read it; only touch, guessed and unguess write it.
type history struct {
	layers int32
	layer  int32 // of the running or last Use
	token  int32 // ticks so far
	uses   int64 // counts touches, so that the order of uses is strict

	layerOf []int32
	last    []int64   // number of the last touch, 0: never
	when    []int32   // token of the last touch
	short   []float32 // use per token, averaged with the short memory, as of when
	long    []float32 // and with the long one
	guess   []float32 // probability that the next visit of its layer uses it, 0: no guess
	count   []int32   // touches
}

// Memories of the two averages in tokens, and the weight of the short one in rate. BenchmarkPolicies of package sim chose
// them, on routes shaped after measured ones: 3 to 10 tokens, 40 to 200 tokens and 0.2 to 0.5 differ by less than 2 points
// of hit rate, and all of them beat the other policies from 7 to 37 % of the experts in memory.
const (
	shortTokens = 4
	longTokens  = 64
	shortWeight = 0.4
)

// decays are powers of the two averages' factors; beyond the table the average is taken for 0.
type decays [512]float32

func newDecays(tokens float64) *decays {
	d := new(decays)
	for i := range d {
		d[i] = float32(math.Exp(-float64(i) / tokens))
	}
	return d
}

func (d *decays) at(tokens int32) float32 {
	if uint32(tokens) < uint32(len(d)) {
		return d[tokens]
	}
	return 0
}

var shortDecay, longDecay = newDecays(shortTokens), newDecays(longTokens)

func newHistory(cat *expert.Catalog) *history {
	n := cat.Experts()
	h := &history{
		layers: int32(len(cat.Layers)), layerOf: make([]int32, n), last: make([]int64, n), when: make([]int32, n),
		short: make([]float32, n), long: make([]float32, n), guess: make([]float32, n), count: make([]int32, n),
	}
	for i := range n {
		h.layerOf[i] = cat.KeyAt(i).Layer
	}
	return h
}

// touch notes a use and says whether it is the first.
func (h *history) touch(i int32) (first bool) {
	age := h.token - h.when[i]
	if h.last[i] == 0 || age > 0 {
		h.short[i] = h.short[i]*shortDecay.at(age) + 1 - shortDecay[1]
		h.long[i] = h.long[i]*longDecay.at(age) + 1 - longDecay[1]
	}
	first = h.last[i] == 0
	h.uses++
	h.count[i]++
	h.last[i], h.when[i], h.guess[i] = h.uses, h.token, 0
	return first
}

// rate estimates the probability that the next visit of its layer uses expert i.
func (h *history) rate(i int32) float32 {
	age := h.token - h.when[i]
	r := shortWeight*h.short[i]*shortDecay.at(age) + (1-shortWeight)*h.long[i]*longDecay.at(age)
	return max(r, h.guess[i])
}

// ahead is the number of layers until layer of expert i comes up again: a whole round for the running layer.
func (h *history) ahead(i int32) int32 {
	d := h.layerOf[i] - h.layer
	if d <= 0 {
		d += h.layers
	}
	return d
}
