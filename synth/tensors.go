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
	}
	more := strings.Contains(name, "ffn_down") || strings.Contains(name, "attn_v") || strings.Contains(name, "attn_qkv")
	if name == "output.weight" || more && moreBits(i, s.layers) {
		return gguf.Q6_K
	}
	return gguf.Q4_K
}

// moreBits picks the layers to which a Q4_K_M file gives Q6_K: the first and last eighth and every third between.
func moreBits(i, n int) bool { return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2 }

// tensors adds all tensors.
func (m *maker) tensors() {
	m.matrix("output.weight", 2, 0, m.embd, m.vocab)
	m.norm("output_norm.weight", m.embd)
	m.matrix("token_embd.weight", math.Sqrt(float64(m.embd)), 0, m.embd, m.vocab) // standard deviation 1
	for i := range m.layers {
		p := fmt.Sprintf("blk.%d.", i)
		m.norm(p+"attn_norm.weight", m.embd)
		if m.recurrent(i) {
			m.deltaNet(p, i)
		} else {
			m.attention(p+"attn_", i)
		}
		if m.delta() {
			m.norm(p+"post_attention_norm.weight", m.embd)
		} else {
			m.norm(p+"ffn_norm.weight", m.embd)
		}
		m.feedForward(p+"ffn_", i)
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

func (m *maker) attention(p string, layer int) {
	gated := 1
	if m.delta() {
		gated = 2 // query and gate
	}
	m.matrix(p+"q.weight", 1, layer, m.embd, m.heads*m.headDim*gated)
	m.matrix(p+"k.weight", 1, layer, m.embd, m.kv*m.headDim)
	m.matrix(p+"v.weight", 1, layer, m.embd, m.kv*m.headDim)
	m.matrix(p+"output.weight", m.residual, layer, m.heads*m.headDim, m.embd)
	sharp := func(_ int64, x float32) float32 { return 1.5 + float32(0.2*x) } // attention that is not too flat
	m.vector(p+"q_norm.weight", sharp, int64(m.headDim))
	m.vector(p+"k_norm.weight", sharp, int64(m.headDim))
}

func (m *maker) deltaNet(p string, layer int) {
	channels, values := m.state*(2*m.keyHeads+m.valueHeads), m.state*m.valueHeads
	m.matrix(p+"attn_qkv.weight", 1, layer, m.embd, channels)
	m.matrix(p+"attn_gate.weight", 1, layer, m.embd, values)
	m.vector(p+"ssm_conv1d.weight", func(_ int64, x float32) float32 { return 0.5 * x }, int64(m.conv), int64(channels))
	m.vector(p+"ssm_dt.bias", func(_ int64, x float32) float32 { return x - 2.5 }, int64(m.valueHeads))
	m.vector(p+"ssm_a", func(_ int64, x float32) float32 { return -0.1 - float32(x*x) }, int64(m.valueHeads))
	m.matrix(p+"ssm_beta.weight", 1, layer, m.embd, m.valueHeads)
	m.matrix(p+"ssm_alpha.weight", 0.7, layer, m.embd, m.valueHeads)
	m.norm(p+"ssm_norm.weight", m.state)
	m.matrix(p+"ssm_out.weight", m.residual, layer, values, m.embd)
}

func (m *maker) feedForward(p string, layer int) {
	m.routers(p + "gate_inp.weight")
	m.matrix(p+"gate_exps.weight", 1.2, layer, m.embd, m.ff, m.experts)
	m.matrix(p+"up_exps.weight", 1.2, layer, m.embd, m.ff, m.experts)
	m.matrix(p+"down_exps.weight", 1.2*m.residual, layer, m.ff, m.embd, m.experts)
	if !m.delta() {
		return
	}
	scale := float32(1 / math.Sqrt(float64(m.embd)))
	m.vector(p+"gate_inp_shexp.weight", func(_ int64, x float32) float32 { return x * scale }, int64(m.embd))
	m.matrix(p+"gate_shexp.weight", 1.2, layer, m.embd, m.ffShared)
	m.matrix(p+"up_shexp.weight", 1.2, layer, m.embd, m.ffShared)
	m.matrix(p+"down_shexp.weight", m.residual, layer, m.ffShared, m.embd)
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
