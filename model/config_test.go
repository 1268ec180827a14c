package model

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

// header makes a file of keys, changed, and named tensors of one number each.
func header(t *testing.T, keys, changes map[string]any, tensors ...string) *gguf.File {
	t.Helper()
	b := gguf.NewBuilder()
	for k, v := range keys {
		if _, other := changes[k]; !other {
			b.Set(k, v)
		}
	}
	for k, v := range changes {
		if v != nil {
			b.Set(k, v)
		}
	}
	for _, name := range tensors {
		b.Add(name, gguf.F32, []int64{1}, nil)
	}
	paths, err := b.Write(filepath.Join(t.TempDir(), "h.gguf"), 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const ling = "bailingmoe3."

// lingKeys are those of a small model of the family.
var lingKeys = map[string]any{
	"general.architecture": "bailingmoe3",
	ling + "block_count":   uint32(4), ling + "nextn_predict_layers": uint32(1), ling + "context_length": uint32(64), ling + "embedding_length": uint32(32),
	ling + "attention.head_count": uint32(4), ling + "attention.head_count_kv": []int32{0, 0, 1, 1}, ling + "attention.layer_norm_rms_epsilon": float32(1e-6),
	ling + "attention.kv_lora_rank": uint32(24), ling + "attention.key_length_mla": uint32(24), ling + "attention.value_length_mla": uint32(12),
	ling + "rope.dimension_count": uint32(8), ling + "rope.freq_base": float32(6e6), ling + "ssm.conv_kernel": uint32(4), ling + "kda.head_dim": uint32(16),
	ling + "kda.gate_lower_bound": float32(-5), ling + "expert_count": uint32(16), ling + "expert_used_count": uint32(3),
	ling + "expert_group_count": uint32(4), ling + "expert_group_used_count": uint32(2), ling + "expert_feed_forward_length": uint32(16),
	ling + "swiglu_clamp_exp": []float32{0, 0, 1.5, 0},
}

const ehProj = "blk.3.nextn.eh_proj.weight"

// What a model of the family cannot be is refused by key, with the value and what is allowed.
func TestLingHyperparameters(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		say   string
	}{
		{"kda.safe_gate", false, "lower bound"},
		{"kda.gate_lower_bound", float32(0), "-1e-06"},
		{"kda.gate_lower_bound", nil, "missing"},
		{"kda.head_dim", uint32(0), "0"},
		{"expert_group_count", uint32(5), "16 experts"},
		{"expert_group_count", uint32(17), "17"},
		{"expert_group_used_count", uint32(5), "5"},
		{"expert_gating_func", uint32(9), "9"},
		{"expert_weights_norm", uint32(1), "bool"},
		{"swiglu_clamp_exp", []float32{1, 2}, "2 entries"},
		{"swiglu_clamp_exp", []float32{0, -1, 0, 0}, "-1"},
		{"swiglu_clamp_shexp", []float32{0, float32(math.NaN()), 0, 0}, "block 1"},
		{"swiglu_clamp_shexp", "many", "list of numbers"},
		{"attention.kv_lora_rank", nil, "missing"},
		{"attention.key_length_mla", uint32(8), "7"},
		{"rope.dimension_count", uint32(7), "even"},
		{"rope.scaling.type", "longrope", "linear, yarn and none"},
		{"attention.temperature_scale", float32(0.1), "not supported"},
	} {
		_, err := ReadConfig(header(t, lingKeys, map[string]any{ling + c.key: c.value}, ehProj))
		if !errors.Is(err, ErrHyperparameter) || !strings.Contains(err.Error(), ling) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s = %v: %v", c.key, c.value, err)
		}
	}
	c, err := ReadConfig(header(t, lingKeys, nil, ehProj))
	if err != nil || c.Blocks != 3 || c.KeyDim != 32 || c.ValueDim != 24 || c.SharedWidth != 16 || c.ExpertLimits[2] != 1.5 || len(c.Warnings) > 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A key that promises a block of ehProj where none is does not hide the last real block.
func TestStalePrediction(t *testing.T) {
	if c, err := ReadConfig(header(t, lingKeys, nil)); err != nil || c.Blocks != 4 {
		t.Errorf("%d blocks, %v", c.Blocks, err)
	}
}

// Early conversions lack the clamps: a warning says what follows. The one model without clamps is not suspected.
func TestMissingClamps(t *testing.T) {
	zeros := make([]float32, 42)
	for _, c := range []struct {
		clamps any
		width  uint32
		blocks uint32
		warns  bool
	}{{nil, 2560, 4, true}, {zeros, 2560, 42, true}, {zeros, 2560, 34, false}, {nil, tinyWidth, 24, false}, {append(zeros[:41:41], 4), 2560, 42, false}} {
		f := header(t, lingKeys, map[string]any{ling + "swiglu_clamp_exp": c.clamps, ling + "embedding_length": c.width, ling + "block_count": c.blocks,
			ling + "nextn_predict_layers": nil})
		got, err := ReadConfig(f)
		if warned := len(got.Warnings) == 1 && strings.Contains(got.Warnings[0], "garbage"); err != nil || warned != c.warns {
			t.Errorf("%v: %q, %v", c, got.Warnings, err)
		}
	}
}

// The first files of GLM-4.7-Flash do not name their router's function.
func TestGatingOfGLM(t *testing.T) {
	const p = "deepseek2."
	keys := map[string]any{"general.architecture": "deepseek2"}
	for k, v := range lingKeys {
		if name, ok := strings.CutPrefix(k, ling); ok {
			keys[p+name] = v
		}
	}
	for _, c := range []struct {
		blocks, vocab uint32
		named         any
		want          Gating
	}{{47, 154880, nil, Sigmoid}, {47, 154880, uint32(1), Softmax}, {27, 102400, nil, Softmax}, {61, 129280, uint32(2), Sigmoid}} {
		got, err := ReadConfig(header(t, keys, map[string]any{p + "block_count": c.blocks, p + "nextn_predict_layers": nil, p + "vocab_size": c.vocab,
			p + "expert_gating_func": c.named, p + "swiglu_clamp_exp": nil}))
		if err != nil || got.Gating != c.want || got.Normalise {
			t.Errorf("%+v: gating %d, normalised %v, %v", c, got.Gating, got.Normalise, err)
		}
	}
}

// Other architectures are refused in one line that names them and the supported ones.
func TestOtherArchitectures(t *testing.T) {
	for _, arch := range []string{"gptoss", "deepseek32", "kimi-linear", "llama", "mixtral", "bailingmoe2"} {
		_, err := ReadConfig(header(t, nil, map[string]any{"general.architecture": arch}))
		if !errors.Is(err, gguf.ErrUnsupported) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), `"`+arch+`"`) ||
			!strings.Contains(err.Error(), "bailingmoe3, deepseek2, gpt-oss, qwen35moe, qwen3moe") {
			t.Errorf("%s: %v", arch, err)
		}
	}
}

// Fast pairs keep their angle, slow ones are divided by the factor, and the vectors or the scores grow.
func TestScaledRope(t *testing.T) {
	scaled := func(changes map[string]any) Config {
		t.Helper()
		keys := map[string]any{}
		for k, v := range changes {
			keys[ling+"rope."+k] = v
		}
		c, err := ReadConfig(header(t, lingKeys, keys, ehProj))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if f := scaled(map[string]any{"scaling.type": "linear", "scaling.factor": float32(4)}).Rope.Factor; len(f) != 4 || f[0] != 4 || f[3] != 4 {
		t.Errorf("linear: %v", f)
	}
	plain := scaled(nil)
	yarn := scaled(map[string]any{"scaling.type": "yarn", "scaling.factor": float32(40), "scaling.original_context_length": uint32(4096),
		"scaling.yarn_log_multiplier": float32(0.1), "freq_base": float32(1e4)})
	grown := math.Pow(1+0.1*math.Log(40), 2)
	if f := yarn.Rope.Factor; f[0] != 1 || f[3] != 40 || yarn.Rope.Size != 1 || math.Abs(float64(yarn.Scale/plain.Scale)-grown) > 1e-6 {
		t.Errorf("yarn: %v, size %g, scale %g", f, yarn.Rope.Size, yarn.Scale/plain.Scale)
	}
}
