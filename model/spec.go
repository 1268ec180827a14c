package model

import (
	"fmt"
	"sort"
	"strings"

	"github.com/epq-uring/epq-uring/gguf"
)

// Mixer is the kind of a block's first half: how tokens see each other.
type Mixer uint8

const (
	// Attention is grouped-query attention (attention.go).
	Attention Mixer = iota
	// GatedAttention is Attention whose query projection also yields a gate for its output (attention.go).
	GatedAttention
	// DeltaNet is the gated delta net, a linear attention with a matrix as state (deltanet.go).
	DeltaNet
	// KDA is Kimi delta attention: a delta net that forgets by key component (kda.go).
	KDA
	// MLA is latent attention over one compressed key for all heads (mla.go).
	MLA
)

// recurrent reports whether the mixer keeps a matrix per head instead of keys and values.
func (m Mixer) recurrent() bool { return m == DeltaNet || m == KDA }

// MixerRule gives a block its mixer: the first rule whose tensor is there. A rule without a tensor always holds.
type MixerRule struct {
	Tensor string // "ssm_a": blk.N.ssm_a exists
	Mixer  Mixer
}

// Shared says what stands beside the routed experts.
type Shared uint8

const (
	// NoShared: nothing.
	NoShared Shared = iota
	// SwitchedShared is a shared expert times sigmoid(w . a).
	SwitchedShared
	// PlainShared is a shared expert that always counts in full.
	PlainShared
)

// Gating turns a router's scores into probabilities; the values of the first two are those of expert_gating_func.
type Gating uint8

const (
	// Softmax is taken over all experts.
	Softmax Gating = 1
	// Sigmoid is taken of each expert alone.
	Sigmoid Gating = 2
	// SoftmaxOfChosen is taken over the chosen experts only; the scores themselves choose.
	SoftmaxOfChosen Gating = 3
)

// Activation joins gate and up of an expert.
type Activation uint8

const (
	// SwiGLU is silu(g) u, with both factors clamped where a layer has a limit.
	SwiGLU Activation = iota
	// SwiGLUOAI is g sigmoid(1.702 g) (u + 1) with g and u clamped at 7.
	SwiGLUOAI
)

// Spec is an architecture as data: what the forward pass needs to know beyond the file's own numbers and tensors.
type Spec struct {
	Arch       string      // general.architecture, also the prefix of the keys
	Mixers     []MixerRule // which half a block begins with
	HeadNorms  bool        // Attention norms each head's query and key before they turn
	Biases     bool        // Attention, router and routed experts add biases
	Sinks      bool        // Attention has a score per head that takes weight and adds nothing
	Windows    bool        // Attention sees a sliding window in all blocks but every second, or as the file says
	FFNNorm    string      // name of the norm before the feed-forward
	Shared     Shared
	Gating     Gating // where the file has no expert_gating_func
	Normalise  bool   // the chosen experts' weights add up to 1, where the file has no expert_weights_norm
	Activation Activation
	// Amend changes what the keys say where files of this architecture are known to mean something else; nil: nothing.
	Amend func(f *gguf.File, c *Config)
}

// has reports whether some block may have the mixer.
func (s Spec) has(m Mixer) bool {
	for _, r := range s.Mixers {
		if r.Mixer == m {
			return true
		}
	}
	return false
}

// specs lists the architectures; each literal stands in a file of its own.
var specs = []Spec{qwen35moe, qwen3moe, bailingmoe3, deepseek2, gptOSS}

// foreign are names of architectures that are supported under another one.
var foreign = map[string]string{
	"gptoss": "it was made for one program only, with its own names of keys and tensors; get a GGUF file of gpt-oss",
}

// Architectures returns the names of the supported architectures.
func Architectures() []string {
	var names []string
	for _, s := range specs {
		names = append(names, s.Arch)
	}
	sort.Strings(names)
	return names
}

// specOf returns the Spec of a file's architecture.
func specOf(f *gguf.File) (Spec, error) {
	arch := f.Arch()
	for _, s := range specs {
		if s.Arch == arch {
			return s, nil
		}
	}
	why := ""
	if hint, ok := foreign[arch]; ok {
		why = " (" + hint + ")"
	}
	return Spec{}, fmt.Errorf("model: %s: general.architecture %q is not supported%s; supported are %s: %w",
		f.Shards[0].Path, arch, why, strings.Join(Architectures(), ", "), gguf.ErrUnsupported)
}
