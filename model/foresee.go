package model

import (
	"math"

	"github.com/epq-uring/epq-uring/kernels"
)

// ForeseeLayers is the most layers that Foresee scores at a time.
const ForeseeLayers = 2

// Foresee scores the experts of MoE layers first, first+1, .. as their routers would if hidden, the state of one token at
// an earlier layer, were their input: norm, router, and what it selects by. scores[i] gets one score per expert of layer
// first+i; the larger is selected first, -Inf never. For the state that Hint shows for the layer itself, that is the
// layer's own selection. It may run between Hint and the first call of Use's function, allocates nothing and changes no
// result.
func (m *Model) Foresee(first int, hidden []float32, scores [][]float32) {
	s, t := &m.s, &m.tasks.mul
	t.products = t.products[:0]
	for i := range scores {
		l := m.moeLayer(first + i)
		m.set.RMSNorm(s.foreseen, hidden, l.ffnNorm, m.Config.Eps)
		m.set.Quantize(s.foreseenActs, i, s.foreseen)
		m.gather(s.foreseenIn[i], s.foreseenActs, s.iota[i:i+1], 1, forms(&l.router))
		t.products = append(t.products, product{w: &l.router, in: s.foreseenIn[i], y: scores[i], ldy: m.Config.Experts})
	}
	t.run(1)
	for i, z := range scores {
		l := m.moeLayer(first + i)
		if l.routerBias != nil {
			m.set.Add(z, l.routerBias)
		}
		by := m.Config.selector(m.set, z, s.foreseenChoice, l.choiceBias, &s.workers[0])
		copy(z, by)
		for j := len(by); j < len(z); j++ { // not finite: nothing can be foreseen
			z[j] = float32(math.Inf(-1))
		}
	}
}

// moeLayer finds the n-th layer of the main pass with routed experts, before which there are at least as many layers; nil
// without one.
func (m *Model) moeLayer(n int) *layer {
	for i := n; n >= 0 && i < len(m.layers); i++ {
		if m.layers[i].moe == n {
			return &m.layers[i]
		}
	}
	return nil
}

func (s *scratch) divideForeseen(mem *space, c Config, f kernels.Form) {
	s.foreseen, s.foreseenChoice = mem.floats(c.Width), mem.floats(c.Experts)
	s.foreseenActs = mem.acts(ForeseeLayers, c.Width, f)
	for i := range s.foreseenIn {
		s.foreseenIn[i] = mem.panel(1, c.Width, f)
	}
}
