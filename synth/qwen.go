package synth

import "math"

// qwenSpecials are the tokens that text cannot spell; those with bars are control tokens.
var qwenSpecials = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"}

// chatML is the plain form of the family's template.
const chatML = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}" +
	"{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"

var qwen3 = family{
	arch: "qwen3moe", pre: "qwen2", specials: qwenSpecials, eos: 2, template: chatML,
	keys:    func(m *maker) { m.headKeys(); m.count("feed_forward_length", 3*m.embd) },
	ffnNorm: "ffn_norm.weight",
	mixer:   func(m *maker, p string, i int) { m.attention(p+"attn_", i, 1) },
}

var qwen35 = family{
	arch: "qwen35moe", pre: "qwen35", specials: qwenSpecials, eos: 2, template: chatML,
	keys:    qwen35Keys,
	ffnNorm: "post_attention_norm.weight",
	mixer: func(m *maker, p string, i int) {
		if m.recurrent(i) {
			m.deltaNet(p, i)
		} else {
			m.attention(p+"attn_", i, 2) // query and gate
		}
	},
	beside: func(m *maker, p string, i int) {
		scale := float32(1 / math.Sqrt(float64(m.embd)))
		m.biases(p+"gate_inp_shexp.weight", scale, int64(m.embd))
		m.swiglu(p, "_shexp", i, m.ffShared)
	},
}

// headKeys describe grouped-query attention.
func (m *maker) headKeys() {
	m.count("attention.head_count_kv", m.kv)
	m.count("attention.key_length", m.headDim)
	m.count("attention.value_length", m.headDim)
}

func qwen35Keys(m *maker) {
	m.headKeys()
	m.count("expert_shared_feed_forward_length", m.ffShared)
	m.count("ssm.conv_kernel", m.conv)
	m.count("ssm.state_size", m.state)
	m.count("ssm.group_count", m.keyHeads)
	m.count("ssm.time_step_rank", m.valueHeads)
	m.count("ssm.inner_size", m.state*m.valueHeads)
	m.count("full_attention_interval", m.interval)
	m.count("rope.dimension_count", m.rotated)
	m.key("rope.dimension_sections", m.sections)
	recurrent := make([]bool, m.layers)
	for i := range recurrent {
		recurrent[i] = m.recurrent(i)
	}
	m.key("attention.recurrent_layers", recurrent)
}

// recurrent reports whether layer i has a matrix state.
func (s *shape) recurrent(i int) bool { return s.interval > 0 && i < s.layers && (i+1)%s.interval != 0 }

// attention adds grouped-query attention; gated: 2 where the query matrix also yields a gate, else 1.
func (m *maker) attention(p string, layer, gated int) {
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
	m.biases(p+"ssm_conv1d.weight", 0.5, int64(m.conv), int64(channels))
	m.vector(p+"ssm_dt.bias", func(_ int64, x float32) float32 { return x - 2.5 }, int64(m.valueHeads))
	m.vector(p+"ssm_a", func(_ int64, x float32) float32 { return -0.1 - float32(x*x) }, int64(m.valueHeads))
	m.matrix(p+"ssm_beta.weight", 1, layer, m.embd, m.valueHeads)
	m.matrix(p+"ssm_alpha.weight", 0.7, layer, m.embd, m.valueHeads)
	m.norm(p+"ssm_norm.weight", m.state)
	m.matrix(p+"ssm_out.weight", m.residual, layer, values, m.embd)
}
