package model

// qwen35moe: Qwen3.5/3.6-35B-A3B, MiniCPM-V-4.7-35B-A3B (text part). Three of four blocks are gated delta nets; what a
// block is shows in its tensors, not in attention.recurrent_layers, which some published files fill wrongly.
var qwen35moe = Spec{
	Arch:      "qwen35moe",
	Mixers:    []MixerRule{{Tensor: "ssm_a", Mixer: DeltaNet}, {Mixer: GatedAttention}},
	HeadNorms: true,
	FFNNorm:   "post_attention_norm",
	Shared:    SwitchedShared,
	Gating:    Softmax,
	Normalise: true,
}
