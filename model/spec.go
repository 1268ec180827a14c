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
	// Attention is grouped-query attention with normed heads (attention.go).
	Attention Mixer = iota
	// GatedAttention is Attention whose query projection also yields a gate for its output (attention.go).
	GatedAttention
	// DeltaNet is the gated delta net, a linear attention with a matrix as state (deltanet.go).
	DeltaNet
)

// MixerRule gives a block its mixer: the first rule whose tensor is there. A rule without a tensor always holds.
type MixerRule struct {
	Tensor string // "ssm_a": blk.N.ssm_a exists
	Mixer  Mixer
}

// Spec is an architecture as data: what the forward pass needs to know beyond the file's own numbers.
type Spec struct {
	Arch    string      // general.architecture, also the prefix of the keys
	Mixers  []MixerRule // which half a block begins with
	FFNNorm string      // name of the norm before the router
	Shared  bool        // a shared expert behind a sigmoid gate stands beside the routed ones
}

// specs lists the architectures; each literal stands in a file of its own.
var specs = []Spec{qwen35moe, qwen3moe}

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
	return Spec{}, fmt.Errorf("model: %s: general.architecture %q is not supported; supported are %s: %w",
		f.Shards[0].Path, arch, strings.Join(Architectures(), ", "), gguf.ErrUnsupported)
}
