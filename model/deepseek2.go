package model

import "github.com/epq-uring/epq-uring/gguf"

// deepseek2: DeepSeek-V2-Lite, V2, V3, R1, Kimi K2, GLM-4.7-Flash. MLA in every block, dense lead blocks, shared experts.
var deepseek2 = Spec{
	Arch:    "deepseek2",
	Mixers:  []MixerRule{{Mixer: MLA}},
	FFNNorm: "ffn_norm",
	Shared:  PlainShared,
	Gating:  Softmax,
	Amend:   gatingOfGLM,
}

// gatingOfGLM gives the first files of GLM-4.7-Flash, which do not name their router's function, the right one. They are
// known by their blocks and vocabulary.
func gatingOfGLM(f *gguf.File, c *Config) {
	_, named, _ := f.Int("deepseek2.expert_gating_func")
	vocab, _, _ := f.Int("deepseek2.vocab_size")
	if !named && (c.Blocks == 47 || c.Blocks == 48) && vocab == 154880 {
		c.Gating = Sigmoid
	}
}
