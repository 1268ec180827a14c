package synth

var gptOSS = family{
	arch: "gpt-oss", pre: "gpt-4o",
	specials: []string{"<|startoftext|>", "<|return|>", "<|endoftext|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|call|>"},
	eos:      1, pad: 2,
	template: "{%- for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endfor %}" +
		"{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{%- endif %}{#- answers come in channels: <|channel|>final<|message|> -#}",
	keys: func(m *maker) {
		m.headKeys()
		m.count("feed_forward_length", m.ff)
		m.count("attention.sliding_window", m.window)
		m.yarnKeys()
	},
	ffnNorm: "post_attention_norm.weight",
	mixer:   ossAttention,
	beside:  ossBiases,
}

func ossAttention(m *maker, p string, layer int) {
	for _, x := range []struct {
		name  string
		heads int
	}{{"q", m.heads}, {"k", m.kv}, {"v", m.kv}} {
		m.matrix(p+"attn_"+x.name+".weight", 1, layer, m.embd, x.heads*m.headDim)
		m.biases(p+"attn_"+x.name+".bias", 0.2, int64(x.heads*m.headDim))
	}
	m.matrix(p+"attn_output.weight", m.residual, layer, m.heads*m.headDim, m.embd)
	m.biases(p+"attn_output.bias", 0.1*float32(m.residual), int64(m.embd))
	m.vector(p+"attn_sinks.weight", func(_ int64, x float32) float32 { return 1 + x }, int64(m.heads))
}

func ossBiases(m *maker, p string, layer int) {
	n := int64(m.experts)
	m.biases(p+"gate_inp.bias", 0.3, n)
	m.biases(p+"gate_exps.bias", 0.2, int64(m.ff), n)
	m.biases(p+"up_exps.bias", 0.2, int64(m.ff), n)
	m.biases(p+"down_exps.bias", 0.2*float32(m.residual), int64(m.embd), n)
}

func ossShapes(base shape) []shape {
	o := base
	o.family, o.ropeBase, o.eps, o.quant, o.headDim, o.used, o.yarn = &gptOSS, 150000, 1e-5, mxfp4, 64, 4, []float32{32, 4096}

	tiny := o
	tiny.name, tiny.about = "tiny-gpt-oss", "MXFP4 and Q8_0, 4 layers, window of 16, 8 experts, 2 per token"
	tiny.layers, tiny.embd, tiny.heads, tiny.kv, tiny.headDim, tiny.window = 4, 64, 4, 2, 32, 16
	tiny.experts, tiny.used, tiny.ff = 8, 2, 64

	real := func(name, about string, layers, experts int) shape {
		s := o
		s.large(name, about, layers, 201088, 199998)
		s.embd, s.heads, s.kv, s.window, s.experts, s.ff, s.context = 2880, 64, 8, 128, experts, 2880, 131072
		return s
	}
	return []shape{
		tiny,
		real("gpt-oss-20b", "the shape of gpt-oss-20b: 24 layers, 32 experts, 4 per token, 11 GiB", 24, 32),
		real("gpt-oss-120b", "the shape of gpt-oss-120b: 36 layers, 128 experts, 4 per token, 59 GiB", 36, 128),
	}
}
