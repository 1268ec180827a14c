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

	// The weight of the short average in rate that would have foretold past uses best: the least squares solution of
	// use = w short + (1-w) long, over all experts of the layers used, fading.
	weight         float32
	whole          float32 // what the long average is divided by, because it began at 0: 1 - e^(-token/longTokens)
	above, squares float64

	// How long an expert stays in the arena decides how far ahead it pays to look: see soonest.
	turnover float64   // evictions per token, averaged over turnTokens
	evicted  int64     // by the last tick
	fade     float64   // what a use is worth that comes a token later: e^(-turnover/slots)
	fades    []float64 // the same for 0 to layers layers later
}

// Memories of the two averages in tokens. Replays of recorded runs chose them: 128 to 512 tokens for the long one differ by
// less than a point of hit rate, 64 loses up to one. No fixed weight of the short one serves all: the demo model is best
// with 0.2 to 0.3, routes without a memory with 0, and too much of it costs 3 points where a quarter of the experts fits.
const (
	shortTokens = 4
	longTokens  = 256
	fitTokens   = 24 // memory of the fit
	maxWeight   = 0.6
	turnTokens  = 8
)

// decays are powers of the two averages' factors; beyond the table the average is taken for 0.
type decays [8 * longTokens]float32

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
		layers: int32(len(cat.Layers)), whole: 1 - longDecay[1], layerOf: make([]int32, n), last: make([]int64, n), when: make([]int32, n),
		short: make([]float32, n), long: make([]float32, n), guess: make([]float32, n), count: make([]int32, n),
		fades: make([]float64, len(cat.Layers)+1),
	}
	h.forget(1)
	for i := range n {
		h.layerOf[i] = cat.KeyAt(i).Layer
	}
	return h
}

// tick ends a token, after so many evictions in all and with so many slots.
func (h *history) tick(evictions int64, slots int) {
	h.token++
	h.whole = 1 - longDecay.at(h.token+1)
	h.turnover += (float64(evictions-h.evicted) - h.turnover) / turnTokens
	h.evicted = evictions
	h.forget(float64(slots) / max(h.turnover, 1e-9))
}

// forget sets fade for slots that keep an expert for so many tokens on average.
func (h *history) forget(stay float64) {
	stay = min(max(stay, 0.1), 1000) // where nothing leaves no order matters, but ranks must differ
	h.fade = math.Exp(-1 / stay)
	for d := range h.fades {
		h.fades[d] = math.Exp(-float64(d) / float64(h.layers) / stay)
	}
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

// fit learns from a use of a layer by single tokens, before it is touched: experts [first, first+len(seen)), used where seen
// is round.
func (h *history) fit(first int32, seen []uint32, round uint32) {
	fade := 1 - 1.0/float64(fitTokens*h.layers)
	above, squares := h.above*fade, h.squares*fade
	for e, mark := range seen {
		i := first + int32(e)
		age := h.token - h.when[i]
		long := h.long[i] * longDecay.at(age) / h.whole
		d, y := h.short[i]*shortDecay.at(age)-long, -long
		if mark == round {
			y++
		}
		above += float64(y * d)
		squares += float64(d * d)
	}
	h.above, h.squares = above, squares
	if squares > 0 {
		h.weight = float32(min(max(above/squares, 0), maxWeight))
	}
}

// rate estimates the probability that the next visit of its layer uses expert i.
func (h *history) rate(i int32) float32 {
	age := h.token - h.when[i]
	r := h.weight*h.short[i]*shortDecay.at(age) + (1-h.weight)*h.long[i]*longDecay.at(age)/h.whole
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
