package synth

import "slices"

var bailing = family{
	arch: "bailingmoe3", pre: "bailingmoe2",
	specials: []string{"<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|role_end|>", "<role>", "</role>", "<think>", "</think>"},
	eos:      4, pad: 1,
	template: "<role>SYSTEM</role>detailed thinking {{ 'on' if enable_thinking else 'off' }}<|role_end|>{%- for m in messages %}" +
		"{{ '<role>' + ('HUMAN' if m.role == 'user' else m.role | upper) + '</role>' + m.content + '<|role_end|>' }}{%- endfor %}" +
		"{%- if add_generation_prompt %}{{ '<role>ASSISTANT</role>\\n' }}{%- endif %}",
	keys:    bailingKeys,
	ffnNorm: "ffn_norm.weight",
	mixer: func(m *maker, p string, i int) {
		if m.recurrent(i) {
			m.kda(p, i)
			return
		}
		m.latentAttention(p, i)
		m.matrix(p+"attn_gate.weight", 1.5, i, m.embd, m.heads)
	},
	beside:      plainShared,
	predictNorm: "layer_output_norm.weight",
}

var deepseek = family{
	arch: "deepseek2", pre: "deepseek-v3",
	specials: []string{"<|begin_of_sentence|>", "<|end_of_sentence|>", "<|User|>", "<|Assistant|>"},
	eos:      1, pad: 1,
	template: "{{ '<|begin_of_sentence|>' }}{%- for m in messages %}{{ ('<|User|>' if m.role == 'user' else '<|Assistant|>') + m.content }}" +
		"{%- endfor %}{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{%- endif %}",
	keys: func(m *maker) {
		m.latentKeys()
		m.count("attention.head_count_kv", 1)
		m.count("attention.value_length", m.rank)
	},
	ffnNorm:     "ffn_norm.weight",
	mixer:       func(m *maker, p string, i int) { m.latentAttention(p, i) },
	beside:      plainShared,
	predictNorm: "nextn.shared_head_norm.weight",
}

// plainShared adds a shared expert without a switch, and the bias of the router's choice.
func plainShared(m *maker, p string, layer int) {
	m.swiglu(p, "_shexp", layer, m.ffShared)
	if m.bias > 0 {
		m.biases(p[:len(p)-len("ffn_")]+"exp_probs_b.bias", float32(m.bias), int64(m.experts))
	}
}

// latentKeys describe MLA, dense lead blocks and the router that comes with them.
func (m *maker) latentKeys() {
	m.count("feed_forward_length", m.ffDense)
	m.count("leading_dense_block_count", min(m.lead, m.layers))
	m.count("vocab_size", m.vocab)
	if m.queryRank > 0 {
		m.count("attention.q_lora_rank", m.queryRank)
	}
	m.count("attention.kv_lora_rank", m.rank)
	m.count("attention.key_length", m.rank+m.rotated)
	m.count("attention.key_length_mla", m.nope+m.rotated)
	m.count("attention.value_length_mla", m.value)
	m.count("rope.dimension_count", m.rotated)
	m.count("expert_shared_count", m.ffShared/m.ff)
	m.key("expert_weights_scale", m.scale)
	m.key("expert_gating_func", m.gating)
	m.key("expert_weights_norm", m.normalise)
	if m.groups > 0 {
		m.count("expert_group_count", m.groups)
		m.count("expert_group_used_count", m.groupsUsed)
	}
	if m.predict > 0 {
		m.count("nextn_predict_layers", m.predict)
	}
	m.yarnKeys()
}

func (m *maker) yarnKeys() {
	if m.yarn == nil {
		return
	}
	m.key("rope.scaling.type", "yarn")
	m.key("rope.scaling.factor", m.yarn[0])
	m.count("rope.scaling.original_context_length", int(m.yarn[1]))
	if len(m.yarn) > 2 {
		m.key("rope.scaling.yarn_log_multiplier", m.yarn[2])
	}
}

func bailingKeys(m *maker) {
	m.latentKeys()
	kv := make([]int32, m.layers+m.predict)
	for i := range kv {
		if !m.recurrent(i) {
			kv[i] = 1
		}
	}
	m.key("attention.head_count_kv", kv)
	m.count("ssm.conv_kernel", m.conv)
	m.count("kda.head_dim", m.headDim)
	m.key("kda.safe_gate", true)
	m.key("kda.gate_lower_bound", float32(-5))
	m.count("expert_shared_feed_forward_length", m.ffShared)
	for name, limits := range map[string][]float32{"swiglu_clamp_exp": m.clamps, "swiglu_clamp_shexp": m.sharedClamps} {
		if limits != nil {
			m.key(name, append(slices.Clone(limits), make([]float32, len(kv))...)[:len(kv)])
		}
	}
}

// latentAttention adds MLA.
func (m *maker) latentAttention(p string, layer int) {
	p += "attn_"
	head := m.nope + m.rotated
	if m.queryRank > 0 {
		m.matrix(p+"q_a.weight", 1, layer, m.embd, m.queryRank)
		m.norm(p+"q_a_norm.weight", m.queryRank)
		m.matrix(p+"q_b.weight", 2, layer, m.queryRank, m.heads*head)
	} else {
		m.matrix(p+"q.weight", 2, layer, m.embd, m.heads*head)
	}
	m.matrix(p+"kv_a_mqa.weight", 1, layer, m.embd, m.rank+m.rotated)
	m.norm(p+"kv_a_norm.weight", m.rank)
	m.matrix(p+"k_b.weight", 0.6, layer, m.nope, m.rank, m.heads)
	m.matrix(p+"v_b.weight", 1.2, layer, m.rank, m.value, m.heads)
	m.matrix(p+"output.weight", 1.5*m.residual, layer, m.heads*m.value, m.embd)
}

// kda adds Kimi delta attention.
func (m *maker) kda(p string, layer int) {
	inner := m.heads * m.headDim
	for _, s := range []string{"q", "k", "v"} {
		m.matrix(p+"attn_"+s+".weight", 1, layer, m.embd, inner)
		m.biases(p+"ssm_conv1d_"+s+".weight", 0.5, int64(m.conv), 1, int64(inner), 1)
	}
	m.matrix(p+"ssm_f_a.weight", 1, layer, m.embd, inner)
	m.matrix(p+"ssm_beta.weight", 1, layer, m.embd, m.heads)
	m.vector(p+"ssm_a", func(_ int64, x float32) float32 { return 0.5 + float32(x*x) }, 1, int64(m.heads))
	m.vector(p+"ssm_dt.bias", func(_ int64, x float32) float32 { return x - 2.5 }, int64(inner))
	m.matrix(p+"ssm_g_a.weight", 1, layer, m.embd, inner)
	m.norm(p+"ssm_norm.weight", m.headDim)
	m.matrix(p+"attn_output.weight", 1.2*m.residual, layer, inner, m.embd)
}

func bailingShapes(base shape) []shape {
	b := base
	b.family, b.ropeBase, b.conv = &bailing, 6e6, 4
	b.gating, b.normalise, b.scale, b.predict, b.quant = 2, true, 2.5, 1, q4km

	tiny := b
	tiny.name, tiny.about = "tiny-bailingmoe3", "types of a Q4_K_M file, 2 KDA and 1 MLA, 1 dense, 16 experts in 4 groups, 3 per token"
	tiny.layers, tiny.interval, tiny.embd, tiny.heads, tiny.headDim = 3, 3, 256, 4, 64
	tiny.rank, tiny.nope, tiny.rotated, tiny.value, tiny.lead, tiny.ffDense = 256, 64, 32, 64, 1, 256
	tiny.experts, tiny.used, tiny.groups, tiny.groupsUsed, tiny.ff, tiny.ffShared = 16, 3, 4, 2, 256, 256
	tiny.clamps, tiny.sharedClamps, tiny.bias, tiny.seed = []float32{0, 0, 1.5}, []float32{0, 1, 2}, 0.15, 3

	ling := b
	ling.large("ling-3.0-flash",
		"the shape of Ling-3.0-flash Q4_K_M: 42 layers and one of prediction, 512 experts, 8 per token, 72 GiB", 42, 157184, 156891)
	ling.whole, ling.interval, ling.embd, ling.heads, ling.headDim = 43, 6, 2560, 32, 128
	ling.rank, ling.nope, ling.rotated, ling.value, ling.lead, ling.ffDense = 512, 128, 64, 128, 2, 6144
	ling.experts, ling.used, ling.groups, ling.groupsUsed, ling.ff, ling.ffShared = 512, 8, 8, 4, 768, 768
	ling.clamps = append(make([]float32, 35), 4, 4, 4, 4, 4, 4, 4)
	ling.sharedClamps = append(make([]float32, 34), 5, 5, 5, 5, 5, 5, 7, 7)
	ling.bias, ling.context = 0.02, 262144
	return []shape{tiny, ling}
}

func deepseekShapes(base shape) []shape {
	d := base
	d.family, d.ropeBase, d.quant, d.rank, d.nope, d.rotated, d.value = &deepseek, 1e4, q4km, 512, 128, 64, 128
	d.lead, d.gating, d.normalise, d.bias = 1, 2, true, 0.02

	tiny := d
	tiny.name, tiny.about = "tiny-deepseek2", "types of a Q4_K_M file, 3 layers, 1 dense, 8 experts in 4 groups, 3 per token, YaRN"
	tiny.layers, tiny.embd, tiny.heads, tiny.queryRank = 3, 256, 4, 256
	tiny.rank, tiny.nope, tiny.rotated, tiny.value, tiny.ffDense = 256, 64, 32, 64, 256
	tiny.experts, tiny.used, tiny.groups, tiny.groupsUsed, tiny.ff, tiny.ffShared, tiny.scale = 8, 3, 4, 2, 160, 160, 2.5
	tiny.yarn, tiny.seed = []float32{40, 512, 0.1}, 3

	named := func(pre string) *family { // the family with another pre-tokenizer
		f := deepseek
		f.pre = pre
		return &f
	}

	lite := d
	lite.large("deepseek-v2-lite", "the shape of DeepSeek-V2-Lite Q4_K_M: 27 layers, 64 experts, 6 per token, 10 GiB", 27, 102400, 100000)
	lite.family, lite.whole, lite.embd, lite.heads, lite.ffDense = named("deepseek-llm"), 27, 2048, 16, 10944
	lite.experts, lite.used, lite.ff, lite.ffShared, lite.scale = 64, 6, 1408, 2816, 1
	lite.gating, lite.normalise, lite.bias, lite.context, lite.yarn = 1, false, 0, 163840, []float32{40, 4096, 0.0707}

	glm := d
	glm.large("glm-4.7-flash", "the shape of GLM-4.7-Flash Q4_K_M: 47 layers and one of prediction, 64 experts, 4 per token, 17 GiB", 47, 154880, 151329)
	glm.family, glm.whole, glm.embd, glm.heads, glm.ffDense, glm.queryRank, glm.predict = named("glm4"), 48, 2048, 20, 10240, 768, 1
	glm.nope, glm.value, glm.ropeBase, glm.eps, glm.context = 192, 256, 1e6, 1e-5, 202752
	glm.experts, glm.used, glm.groups, glm.groupsUsed, glm.ff, glm.ffShared, glm.scale = 64, 4, 1, 1, 1536, 1536, 1.8

	v3 := d
	v3.large("deepseek-v3", "the shape of DeepSeek-V3 and R1 Q4_K_M: 61 layers, 256 experts, 8 per token, 380 GiB", 61, 129280, 128000)
	v3.whole, v3.embd, v3.heads, v3.lead, v3.ffDense, v3.queryRank = 61, 7168, 128, 3, 18432, 1536
	v3.experts, v3.used, v3.groups, v3.groupsUsed, v3.ff, v3.ffShared, v3.scale = 256, 8, 8, 4, 2048, 2048, 2.5
	v3.context, v3.yarn = 163840, []float32{40, 4096, 0.1}

	k2 := v3
	k2.large("kimi-k2", "the shape of Kimi K2 Q4_K_M: 61 layers, 384 experts, 8 per token, 580 GiB", 61, 163840, 163584)
	k2.family, k2.heads, k2.lead, k2.experts, k2.groups, k2.groupsUsed = named("kimi-k2"), 64, 1, 384, 1, 1
	k2.scale, k2.ropeBase, k2.context, k2.yarn = 2.827, 5e4, 131072, []float32{32, 4096, 0.1}
	return []shape{tiny, lite, glm, v3, k2}
}
