package model

// gptOSS: gpt-oss-20b, gpt-oss-120b. Attention with sinks, every second block within a sliding window; biases everywhere;
// a clamped activation.
var gptOSS = Spec{
	Arch:       "gpt-oss",
	Mixers:     []MixerRule{{Mixer: Attention}},
	Biases:     true,
	Sinks:      true,
	Windows:    true,
	FFNNorm:    "post_attention_norm",
	Gating:     SoftmaxOfChosen,
	Normalise:  true,
	Activation: SwiGLUOAI,
}
