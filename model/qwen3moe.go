package model

// qwen3moe: Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder-30B-A3B. Plain grouped-query attention in every block, no shared
// expert.
var qwen3moe = Spec{
	Arch:      "qwen3moe",
	Mixers:    []MixerRule{{Mixer: Attention}},
	HeadNorms: true,
	FFNNorm:   "ffn_norm",
	Gating:    Softmax,
	Normalise: true,
}
