package model

import "github.com/epq-uring/epq-uring/gguf"

// bailingmoe3: Ling-3.0-flash, Ling-3.0-tiny. Five of six blocks are KDA, the others MLA with a gate per head; dense lead
// blocks; experts chosen within groups.
var bailingmoe3 = Spec{
	Arch:      "bailingmoe3",
	Mixers:    []MixerRule{{Tensor: "ssm_a", Mixer: KDA}, {Mixer: MLA}},
	FFNNorm:   "ffn_norm",
	Shared:    PlainShared,
	Gating:    Sigmoid,
	Normalise: true,
	Amend:     warnOfClamps,
}

const (
	// tinyWidth is the embedding length of Ling-3.0-tiny, the one model of the family that was trained without clamps.
	tinyWidth = 1536
	// firstClamp is the first block of Ling-3.0-flash that has one; a model cut off before it needs none.
	firstClamp = 34
)

// warnOfClamps tells of files whose conversion left the clamps of the activations out: they answer well, but for a garbage
// token now and then.
func warnOfClamps(_ *gguf.File, c *Config) {
	if c.Width == tinyWidth || c.ExpertLimits != nil && c.Blocks <= firstClamp {
		return
	}
	for _, limits := range [][]float32{c.ExpertLimits, c.SharedLimits} {
		for _, v := range limits {
			if v > 0 {
				return
			}
		}
	}
	c.Warnings = append(c.Warnings, "the file has no swiglu_clamp_exp and swiglu_clamp_shexp: as from early conversions of Ling-3.0-flash, "+
		"a garbage token can appear now and then; a newer conversion has them")
}
