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
	Blocks  int // of the main pass; multi-token-prediction blocks are left out
	Width   int // n, the embedding length
	Context int // tokens the model was made for
	Eps     float32

	Heads, KVHeads    int
	KeyDim, ValueDim  int // per head
	RopeDim           int // components that turn, even
	RopeBase          float64
	RopeSections      []int // pairs per axis of a multi-axis rope; nil: plain
	Experts, Used     int
	ExpertWidth       int // f
	SharedWidth       int // 0: no shared expert
	ExpertWeightScale float32

	// Delta net; zero when no block is one.
	ConvTaps, StateDim, KeyGroups, ValueHeads int
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

// ReadConfig reads and checks the hyper-parameters of a file.
func ReadConfig(f *gguf.File) (Config, error) {
	spec, err := specOf(f)
	if err != nil {
		return Config{}, err
	}
	r := &reader{f: f, prefix: spec.Arch + "."}
	c := Config{Arch: spec.Arch}
	blocks := r.number("block_count", 1, maxBlocks, -1)
	c.Blocks = blocks - r.number("nextn_predict_layers", 0, max(blocks-1, 0), 0)
	c.Width = r.number("embedding_length", 1, maxWidth, -1)
	c.Context = r.number("context_length", 1, maxContext, -1)
	c.Heads = r.number("attention.head_count", 1, 1<<12, -1)
	c.KVHeads = r.number("attention.head_count_kv", 1, c.Heads, c.Heads)
	if r.err == nil && c.Heads%c.KVHeads != 0 {
		r.fail("attention.head_count_kv", "is %d, which does not divide the %d heads", c.KVHeads, c.Heads)
	}
	c.Experts = r.number("expert_count", 1, maxExperts, -1)
	c.Used = r.number("expert_used_count", 1, c.Experts, -1)
	c.KeyDim = r.number("attention.key_length", 1, 1<<14, max(c.Width/c.Heads, 1))
	c.ValueDim = r.number("attention.value_length", 1, 1<<14, c.KeyDim)
	c.Eps = float32(r.float("attention.layer_norm_rms_epsilon", 0, 1, math.NaN()))
	c.RopeDim = r.number("rope.dimension_count", 2, c.KeyDim, c.KeyDim)
	if r.err == nil && c.RopeDim%2 != 0 {
		r.fail("rope.dimension_count", "is %d, an even number is needed", c.RopeDim)
	}
	c.RopeBase = r.float("rope.freq_base", 1, 1e12, 10000)
	r.sections(&c)
	c.ExpertWidth = r.number("expert_feed_forward_length", 1, maxWidth, r.expertWidthDefault(c))
	c.SharedWidth = r.number("expert_shared_feed_forward_length", 0, maxWidth, 0)
	if !spec.Shared {
		c.SharedWidth = 0
	}
	c.ExpertWeightScale = float32(r.float("expert_weights_scale", 0, 1e6, 0))
	if c.ExpertWeightScale == 0 {
		c.ExpertWeightScale = 1
	}
	for _, m := range spec.Mixers {
		if m.Mixer == DeltaNet {
			r.deltaNet(&c)
		}
	}
	return c, r.err
}

// expertWidthDefault is the width of an expert in files that only give the dense width.
func (r *reader) expertWidthDefault(c Config) int {
	v, ok, err := r.f.Int(r.prefix + "feed_forward_length")
	if err != nil || !ok || v < int64(c.Used) || v > maxWidth {
		return -1
	}
	return int(v) / c.Used
}

func (r *reader) sections(c *Config) {
	v, ok, err := r.f.Ints(r.prefix + "rope.dimension_sections")
	if err != nil {
		r.fail("rope.dimension_sections", "is not a list of whole numbers: %v", err)
	}
	if !ok || err != nil {
		return
	}
	sum := 0
	for _, s := range v {
		if s < 0 || s > int64(c.RopeDim) {
			r.fail("rope.dimension_sections", "holds %d, allowed is 0 to %d", s, c.RopeDim)
			return
		}
		sum += int(s)
		c.RopeSections = append(c.RopeSections, int(s))
	}
	if len(v) < 3 || sum == 0 {
		c.RopeSections = nil
	}
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
