package model

import (
	"errors"
	"fmt"
	"math"

	"github.com/epq-uring/epq-uring/gguf"
)

// ErrHyperparameter is the kind of a number in a file's metadata that no model can have.
var ErrHyperparameter = errors.New("hyperparameter")

// Config holds a model's hyper-parameters, checked: nothing is sized by a number that is not in here.
type Config struct {
	Arch    string
	Blocks  int // of the main pass
	Predict int // multi-token-prediction blocks behind them; the first can draft (predict.go)
	Width   int // n, the embedding length
	Context int // tokens the model was made for
	Eps     float32

	Heads, KVHeads   int
	KeyDim, ValueDim int     // of what a KV head caches
	Scale            float32 // of attention scores
	Window           int     // positions that blocks with a sliding window see, their own included; 0: no such blocks
	WindowEvery      int     // of so many blocks the last sees everything
	Latent           Latent
	Rope             Rope

	DenseWidth  int // of the feed-forward of blocks without experts
	Experts     int
	Used        int
	ExpertWidth int // f
	SharedWidth int // 0: no shared expert

	Gating             Gating
	Normalise          bool // the weights of the chosen experts add up to ExpertWeightScale
	ExpertWeightScale  float32
	Groups, GroupsUsed int // experts are chosen from the best groups; 1: no groups

	// Limits of the activation per block, 0: none; nil: none anywhere.
	ExpertLimits, SharedLimits []float32

	// Delta net and KDA; zero when no block is one.
	ConvTaps, StateDim, KeyGroups, ValueHeads int
	DecayBound                                float32 // of KDA: the least logarithm of a step's decay, below 0

	Warnings []string // what is odd about the file, with its consequence
}

// Latent describes MLA, whose one KV head caches a compressed key (the first Rank numbers, also the value) and a part that
// turns (KeyDim - Rank numbers). Zero when no block is MLA.
type Latent struct {
	Rank       int  // of the compressed key
	QueryRank  int  // of the compressed query; 0: a direct projection
	Nope, Head int  // per query head: components that do not turn; components of its output
	Whole      bool // old files: key and value projections of a head are one matrix, attn_kv_b
}

// Limits that no model of 2026 comes near; they keep products of two numbers from a file inside an int.
const (
	maxBlocks  = 1 << 12
	maxWidth   = 1 << 20
	maxExperts = 1 << 16
	maxContext = 1 << 30
)

// reader reads hyper-parameters and keeps the first error.
type reader struct {
	f      *gguf.File
	prefix string
	err    error
}

func (r *reader) fail(key string, format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("model: %s: %s%s %s: %w", r.f.Shards[0].Path, r.prefix, key, fmt.Sprintf(format, a...), ErrHyperparameter)
	}
}

// number reads an integer in [low, high]; absent is def when def >= 0, else an error.
func (r *reader) number(key string, low, high, def int) int {
	v, ok, err := r.f.Int(r.prefix + key)
	switch {
	case err != nil:
		r.fail(key, "is not a whole number: %v", err)
	case !ok && def >= 0:
		return def
	case !ok:
		r.fail(key, "is missing, a number from %d to %d is needed", low, high)
	case v < int64(low) || v > int64(high):
		r.fail(key, "is %d, allowed is %d to %d", v, low, high)
	default:
		return int(v)
	}
	return low
}

func (r *reader) float(key string, low, high, def float64) float64 {
	v, ok, err := r.f.Float(r.prefix + key)
	switch {
	case err != nil:
		r.fail(key, "is not a number: %v", err)
	case !ok && !math.IsNaN(def):
		return def
	case !ok:
		r.fail(key, "is missing, a number from %g to %g is needed", low, high)
	case !(v >= low && v <= high):
		r.fail(key, "is %g, allowed is %g to %g", v, low, high)
	default:
		return v
	}
	return low
}

// flag reads a bool; absent is def.
func (r *reader) flag(key string, def bool) bool {
	v, ok, err := r.f.Bool(r.prefix + key)
	switch {
	case err != nil:
		r.fail(key, "is not a bool: %v", err)
	case ok:
		return v
	}
	return def
}

// limits reads an optional limit per block, which those that predict may lack: numbers from 0 on, 0 for none.
func (r *reader) limits(key string, c *Config) []float32 {
	blocks := c.Blocks
	v, ok, err := r.f.Floats(r.prefix + key)
	switch {
	case err != nil:
		r.fail(key, "is not a list of numbers: %v", err)
		return nil
	case !ok:
		return nil
	case len(v) < blocks:
		r.fail(key, "has %d entries, the main pass has %d blocks", len(v), blocks)
		return nil
	}
	l := make([]float32, blocks+c.Predict)
	for i := range min(len(l), len(v)) {
		if !(v[i] >= 0 && v[i] <= math.MaxFloat32) {
			r.fail(key, "holds %g for block %d, allowed is 0 (none) and above", v[i], i)
			return nil
		}
		l[i] = float32(v[i])
	}
	return l
}

// has reports whether the file has a tensor in some block of the main pass.
func (r *reader) has(c *Config, name string) (t gguf.Tensor, ok bool) {
	for i := range c.Blocks {
		if t, ok = r.f.Tensor(fmt.Sprintf("blk.%d.%s", i, name)); ok {
			break
		}
	}
	return t, ok
}

// ReadConfig reads and checks the hyper-parameters of a file.
func ReadConfig(f *gguf.File) (Config, error) {
	spec, err := specOf(f)
	if err != nil {
		return Config{}, err
	}
	r := &reader{f: f, prefix: spec.Arch + "."}
	c := Config{Arch: spec.Arch}
	r.blocks(&c)
	c.Width = r.number("embedding_length", 1, maxWidth, -1)
	c.Context = r.number("context_length", 1, maxContext, -1)
	c.Heads = r.number("attention.head_count", 1, 1<<12, -1)
	c.Experts = r.number("expert_count", 1, maxExperts, -1)
	c.Used = r.number("expert_used_count", 1, c.Experts, -1)
	if spec.has(MLA) {
		r.latent(&c)
	} else {
		r.heads(&c, spec)
	}
	c.Eps = float32(r.float("attention.layer_norm_rms_epsilon", 0, 1, math.NaN()))
	r.rope(&c)
	r.experts(&c, spec)
	if spec.has(DeltaNet) {
		r.deltaNet(&c)
	}
	if spec.has(KDA) {
		r.kda(&c)
	}
	if r.err == nil && spec.Amend != nil {
		spec.Amend(f, &c)
	}
	return c, r.err
}

// blocks counts those of the main pass. Files exist whose prediction blocks were cut off while the key stayed: the tensor
// tells.
func (r *reader) blocks(c *Config) {
	n := r.number("block_count", 1, maxBlocks, -1)
	c.Blocks = n - r.number("nextn_predict_layers", 0, max(n-1, 0), 0)
	if _, found := r.f.Tensor(fmt.Sprintf("blk.%d.nextn.eh_proj.weight", c.Blocks)); c.Blocks < n && !found {
		c.Blocks = n
	}
	c.Predict = n - c.Blocks
}

// heads reads grouped-query attention.
func (r *reader) heads(c *Config, spec Spec) {
	c.KVHeads = r.number("attention.head_count_kv", 1, c.Heads, c.Heads)
	if r.err == nil && c.Heads%c.KVHeads != 0 {
		r.fail("attention.head_count_kv", "is %d, which does not divide the %d heads", c.KVHeads, c.Heads)
	}
	c.KeyDim = r.number("attention.key_length", 1, 1<<14, max(c.Width/max(c.Heads, 1), 1))
	c.ValueDim = r.number("attention.value_length", 1, 1<<14, c.KeyDim)
	c.Rope.Dim = r.number("rope.dimension_count", 2, c.KeyDim, c.KeyDim)
	c.Scale = float32(1 / math.Sqrt(float64(c.KeyDim)))
	if spec.Windows {
		c.Window = r.number("attention.sliding_window", 0, maxContext, 0)
		c.WindowEvery = r.number("attention.sliding_window_pattern", 1, maxBlocks, 2)
	}
}

// latent reads MLA. Old files give the sizes of a query head where new ones give those of the cached key.
func (r *reader) latent(c *Config) {
	_, split := r.has(c, "attn_k_b.weight")
	_, whole := r.has(c, "attn_kv_b.weight")
	l := &c.Latent
	l.Whole = whole && !split
	key, value := "attention.key_length_mla", "attention.value_length_mla"
	if l.Whole {
		key, value = "attention.key_length", "attention.value_length"
	}
	l.Rank = r.number("attention.kv_lora_rank", 1, 1<<14, -1)
	head := r.number(key, 3, 1<<14, -1)
	c.Rope.Dim = r.number("rope.dimension_count", 2, max(head-1, 2), -1)
	l.Nope = max(head-c.Rope.Dim, 1)
	l.Head = r.number(value, 1, 1<<14, -1)
	if t, ok := r.has(c, "attn_q_a.weight"); ok && len(t.Dims) == 2 && t.Dims[1] <= maxWidth {
		l.QueryRank = int(t.Dims[1]) // some files lack attention.q_lora_rank
	}
	c.KVHeads, c.KeyDim, c.ValueDim = 1, l.Rank+c.Rope.Dim, l.Rank
	c.Scale = float32(1 / math.Sqrt(float64(head)))
	if _, found, _ := r.f.Float(r.prefix + "attention.temperature_scale"); found {
		r.fail("attention.temperature_scale", "scales queries by position, which is not supported")
	}
}

// experts reads feed-forward and router; how many experts there are is known.
func (r *reader) experts(c *Config, spec Spec) {
	c.ExpertWidth = r.number("expert_feed_forward_length", 1, maxWidth, r.expertWidthDefault(*c))
	if _, dense := r.has(c, denseTensor); dense {
		c.DenseWidth = r.number("feed_forward_length", 1, maxWidth, -1)
	}
	switch spec.Shared {
	case SwitchedShared:
		c.SharedWidth = r.number("expert_shared_feed_forward_length", 0, maxWidth, 0)
	case PlainShared:
		n := r.number("expert_shared_count", 0, 1<<10, 1)
		c.SharedWidth = r.number("expert_shared_feed_forward_length", 0, maxWidth, n*c.ExpertWidth)
	}
	c.Gating = spec.Gating
	if g := r.number("expert_gating_func", 0, int(SoftmaxOfChosen), 0); g > 0 {
		c.Gating = Gating(g)
	}
	c.Normalise = r.flag("expert_weights_norm", spec.Normalise)
	c.ExpertWeightScale = float32(r.float("expert_weights_scale", 0, 1e6, 0))
	if c.ExpertWeightScale == 0 {
		c.ExpertWeightScale = 1
	}
	r.groups(c)
	c.ExpertLimits = r.limits("swiglu_clamp_exp", c)
	c.SharedLimits = r.limits("swiglu_clamp_shexp", c)
}

// groups reads group-limited routing: absent keys and one group mean none.
func (r *reader) groups(c *Config) {
	c.Groups = max(1, r.number("expert_group_count", 0, c.Experts, 1))
	c.GroupsUsed = max(1, r.number("expert_group_used_count", 0, c.Groups, c.Groups))
	switch {
	case r.err != nil || c.Groups == 1:
	case c.Experts%c.Groups != 0:
		r.fail("expert_group_count", "is %d, which does not divide the %d experts", c.Groups, c.Experts)
	case c.Experts/c.Groups*c.GroupsUsed < c.Used:
		r.fail("expert_group_used_count", "is %d: groups of %d experts, from which %d cannot be chosen", c.GroupsUsed, c.Experts/c.Groups, c.Used)
	}
}

// expertWidthDefault is the width of an expert in files that only give the dense width.
func (r *reader) expertWidthDefault(c Config) int {
	v, ok, err := r.f.Int(r.prefix + "feed_forward_length")
	if err != nil || !ok || v < int64(c.Used) || v > maxWidth {
		return -1
	}
	return int(v) / c.Used
}

func (r *reader) deltaNet(c *Config) {
	c.ConvTaps = r.number("ssm.conv_kernel", 2, 64, -1)
	c.StateDim = r.number("ssm.state_size", 1, 1<<12, -1)
	c.KeyGroups = r.number("ssm.group_count", 1, 1<<12, -1)
	c.ValueHeads = r.number("ssm.time_step_rank", 1, 1<<12, -1)
	inner := r.number("ssm.inner_size", 1, 1<<24, -1)
	switch {
	case r.err != nil:
	case c.ValueHeads%c.KeyGroups != 0:
		r.fail("ssm.group_count", "is %d, which does not divide the %d value heads", c.KeyGroups, c.ValueHeads)
	case inner != c.StateDim*c.ValueHeads:
		r.fail("ssm.inner_size", "is %d, state size times value heads is %d", inner, c.StateDim*c.ValueHeads)
	}
}

// kda reads Kimi delta attention: as many key as value heads, those of attention.
func (r *reader) kda(c *Config) {
	c.ConvTaps = r.number("ssm.conv_kernel", 2, 64, -1)
	c.StateDim = r.number("kda.head_dim", 1, 1<<12, -1)
	c.KeyGroups, c.ValueHeads = c.Heads, c.Heads
	c.DecayBound = float32(r.float("kda.gate_lower_bound", -80, -1e-6, math.NaN()))
	if !r.flag("kda.safe_gate", true) {
		r.fail("kda.safe_gate", "is false: a decay without a lower bound is not supported")
	}
}
