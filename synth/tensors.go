package synth

import (
	"fmt"
	"math"
	"strings"

	"github.com/epq-uring/epq-uring/gguf"
)

// typeOf returns the type of a tensor of layer i.
func (s *shape) typeOf(name string, dims []int64, i int) gguf.Type {
	if len(dims) == 1 || strings.Contains(name, "conv1d") || strings.Contains(name, "ffn_gate_inp") {
		return gguf.F32
	}
	for _, r := range s.rules {
		if r.match.MatchString(name) {
			return r.typ
		}
	}
	switch s.quant {
	case allF32:
		return gguf.F32
	case allQ8:
		return gguf.Q8_0
	case mxfp4:
		if strings.Contains(name, "_exps") {
			return gguf.MXFP4
		}
		return gguf.Q8_0
	}
	t := gguf.Q4_K
	if name == "output.weight" || s.more(name, i) {
		t = gguf.Q6_K
	}
	if dims[0]%int64(t.BlockLen()) != 0 { // rows that are no whole super-blocks
		t = map[gguf.Type]gguf.Type{gguf.Q4_K: gguf.Q5_0, gguf.Q6_K: gguf.Q8_0}[t]
	}
	return t
}

// more tells whether a Q4_K_M file gives a tensor of layer i more bits.
func (s *shape) more(name string, i int) bool {
	whole := s.whole
	if whole == 0 {
		whole = s.layers + s.predict
	}
	switch {
	case strings.Contains(name, "ffn_down"), strings.Contains(name, "attn_qkv"):
		return moreBits(i, whole)
	case !strings.Contains(name, "attn_v."):
		return false
	case s.interval > 0 && s.rank > 0: // counted over the layers that have one
		n := whole - s.predict
		return moreBits(i-i/s.interval, n-n/s.interval)
	}
	return moreBits(i, whole)
}

// moreBits picks the layers to which a Q4_K_M file gives Q6_K: the first and last eighth and every third between.
func moreBits(i, n int) bool { return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2 }

// tensors adds all tensors.
func (m *maker) tensors() {
	m.matrix("output.weight", 2, 0, m.embd, m.vocab)
	m.norm("output_norm.weight", m.embd)
	m.matrix("token_embd.weight", math.Sqrt(float64(m.embd)), 0, m.embd, m.vocab) // standard deviation 1
	for i := range m.layers + m.predict {
		p := fmt.Sprintf("blk.%d.", i)
		m.norm(p+"attn_norm.weight", m.embd)
		m.family.mixer(m, p, i)
		m.norm(p+m.family.ffnNorm, m.embd)
		if i < m.lead {
			m.swiglu(p+"ffn_", "", i, m.ffDense)
		} else {
			m.feedForward(p+"ffn_", i)
		}
		if i >= m.layers {
			m.prediction(p, i)
		}
	}
}

// matrix adds a matrix (or several: dims beyond the second) with standard deviation gain / sqrt(inputs), so that it
// keeps the size of what it is multiplied with.
func (m *maker) matrix(name string, gain float64, layer int, dims ...int) {
	d := make([]int64, len(dims))
	for i, n := range dims {
		d[i] = int64(n)
	}
	t := m.typeOf(name, d, layer)
	m.add(name, t, d, m.blocks(name, t, gain/math.Sqrt(float64(dims[0]))))
}

// vector adds an F32 tensor of f(i, x), with x normal.
func (m *maker) vector(name string, f func(i int64, x float32) float32, dims ...int64) {
	m.add(name, gguf.F32, dims, floats(m.seed, name, f))
}

// norm adds the weights of a norm: about 1.
func (m *maker) norm(name string, n int) {
	m.vector(name, func(_ int64, x float32) float32 { return 1 + float32(0.1*x) }, int64(n))
}

// biases adds numbers around 0.
func (m *maker) biases(name string, std float32, dims ...int64) {
	m.vector(name, func(_ int64, x float32) float32 { return x * std }, dims...)
}

// feedForward adds router, experts and what the family has beside them.
func (m *maker) feedForward(p string, layer int) {
	m.routers(p + "gate_inp.weight")
	m.matrix(p+"gate_exps.weight", 1.2, layer, m.embd, m.ff, m.experts)
	m.matrix(p+"up_exps.weight", 1.2, layer, m.embd, m.ff, m.experts)
	m.matrix(p+"down_exps.weight", 1.2*m.residual, layer, m.ff, m.embd, m.experts)
	if m.family.beside != nil {
		m.family.beside(m, p, layer)
	}
}

// swiglu adds gate, up and down of a feed-forward of so many hidden units.
func (m *maker) swiglu(p, suffix string, layer, hidden int) {
	m.matrix(p+"gate"+suffix+".weight", 1.2, layer, m.embd, hidden)
	m.matrix(p+"up"+suffix+".weight", 1.2, layer, m.embd, hidden)
	m.matrix(p+"down"+suffix+".weight", m.residual, layer, hidden, m.embd)
}

// prediction adds what a block of multi-token prediction has beside those of other blocks.
func (m *maker) prediction(p string, layer int) {
	m.matrix(p+"nextn.eh_proj.weight", 1, layer, 2*m.embd, m.embd)
	m.norm(p+"nextn.enorm.weight", m.embd)
	m.norm(p+"nextn.hnorm.weight", m.embd)
	m.norm(p+m.family.predictNorm, m.embd)
}

// routers adds a router: a row for each expert, with a length that makes some more popular than others.
func (m *maker) routers(name string) {
	scale := make([]float32, m.experts)
	r := newRandom(m.seed, name+".skew")
	for e := range scale {
		z := max(float64(normal(r.word(uint64(e))))-1.25, 0)
		scale[e] = float32(min(math.Exp(m.skew*z), 8) * m.router / math.Sqrt(float64(m.embd)))
	}
	embd := int64(m.embd)
	m.vector(name, func(i int64, x float32) float32 { return x * scale[i/embd] }, embd, int64(m.experts))
}
