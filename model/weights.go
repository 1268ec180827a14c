package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

// ErrTensor is the kind of a tensor that is missing or has another shape than the hyper-parameters say.
var ErrTensor = errors.New("tensor does not fit the model")

// Source lends the bytes of resident tensors: a file mapping or a copy. They stay valid as long as the model.
type Source interface {
	Bytes(t gguf.Tensor) ([]byte, error)
}

// layer is one block with its weights: names became pointers here, and nobody looks up a tensor by name afterwards.
type layer struct {
	block int // number in the file
	moe   int // number among the MoE layers: what Experts.Use takes
	mixer Mixer

	attnNorm, ffnNorm []float32

	q, k, v, out kernels.Matrix // attention
	qNorm, kNorm []float32
	cache        int // number among the attention layers: which KV cache

	qkv, z, alpha, beta, ssmOut kernels.Matrix // delta net
	conv                        []float32      // planes [tap][channel]
	decay, dtBias, ssmNorm      []float32
	recurrent                   int // number among the delta nets: which state

	router                     kernels.Matrix
	sharedSwitch               []float32 // row whose product decides how much of the shared expert counts
	sharedGate, sharedUp       kernels.Matrix
	sharedDown                 kernels.Matrix
	gateType, upType, downType gguf.Type // routed experts
}

// binder looks tensors up, checks their shapes and keeps the first error.
type binder struct {
	f        *gguf.File
	resident []gguf.Tensor // everything a forward pass reads outside the experts, in order of binding
	err      error

	src Source // nil: only check and count
	mem *space
}

func (b *binder) fail(name, format string, a ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("model: %s: tensor %q %s: %w", b.f.Shards[0].Path, name, fmt.Sprintf(format, a...), ErrTensor)
	}
}

// tensor finds a tensor of the shape dims; a trailing 1 may be left out in the file.
func (b *binder) tensor(name string, dims ...int) gguf.Tensor {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.fail(name, "is missing")
		return t
	}
	for i := 0; i < max(len(dims), len(t.Dims)); i++ {
		want, got := int64(1), int64(1)
		if i < len(dims) {
			want = int64(dims[i])
		}
		if i < len(t.Dims) {
			got = t.Dims[i]
		}
		if want != got {
			b.fail(name, "has the shape %v, the hyper-parameters say %v", t.Dims, dims)
			break
		}
	}
	return t
}

func (b *binder) bytes(t gguf.Tensor) []byte {
	if b.err != nil {
		return nil
	}
	b.resident = append(b.resident, t)
	if b.src == nil {
		return nil
	}
	data, err := b.src.Bytes(t)
	if err != nil {
		b.err = fmt.Errorf("model: tensor %q: %w", t.Name, err)
	}
	return data
}

// matrix binds a matrix of rows x cols; its bytes stay where the source has them.
func (b *binder) matrix(name string, cols, rows int) kernels.Matrix {
	t := b.tensor(name, cols, rows)
	data := b.bytes(t)
	if b.err != nil {
		return kernels.Matrix{}
	}
	if _, err := kernels.FormOf(t.Type); err != nil {
		b.fail(name, "has the type %s: %v", t.Type, err)
		return kernels.Matrix{}
	}
	if b.src == nil {
		return kernels.Matrix{Type: t.Type, Rows: rows, Cols: cols}
	}
	w, err := kernels.NewMatrix(t.Type, rows, cols, data)
	if err != nil {
		b.fail(name, "cannot be used: %v", err)
	}
	return w
}

// vector copies an F32 tensor into the model's own memory.
func (b *binder) vector(name string, dims ...int) []float32 {
	t := b.tensor(name, dims...)
	if b.err == nil && t.Type != gguf.F32 {
		b.fail(name, "has the type %s, F32 is needed", t.Type)
	}
	data := b.bytes(t)
	if b.err != nil {
		return nil
	}
	v := b.mem.floats(int(t.Elements()))
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return v
}

// planes turns a [taps, channels] tensor (taps contiguous) into planes [tap][channel].
func (b *binder) planes(name string, taps, channels int) []float32 {
	v := b.vector(name, taps, channels)
	if v == nil {
		return nil
	}
	w := make([]float32, len(v))
	for c := range channels {
		for j := range taps {
			w[j*channels+c] = v[c*taps+j]
		}
	}
	copy(v, w)
	return v
}

func (b *binder) layers(spec Spec, c Config) []layer {
	ls := make([]layer, c.Blocks)
	caches, recurrents := 0, 0
	for i := range ls {
		l := &ls[i]
		l.block, l.moe = i, i
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s", i, s) }
		for _, r := range spec.Mixers {
			if _, ok := b.f.Tensor(name(r.Tensor)); ok || r.Tensor == "" {
				l.mixer = r.Mixer
				break
			}
		}
		l.attnNorm = b.vector(name("attn_norm.weight"), c.Width)
		if l.mixer == DeltaNet {
			l.recurrent = recurrents
			recurrents++
			b.deltaNet(l, c, name)
		} else {
			l.cache = caches
			caches++
			b.attention(l, c, name)
		}
		b.moe(l, spec, c, name)
		if b.err != nil {
			return nil
		}
	}
	return ls
}

func (b *binder) attention(l *layer, c Config, name func(string) string) {
	qRows := c.Heads * c.KeyDim
	if l.mixer == GatedAttention {
		qRows *= 2
	}
	l.q = b.matrix(name("attn_q.weight"), c.Width, qRows)
	l.k = b.matrix(name("attn_k.weight"), c.Width, c.KVHeads*c.KeyDim)
	l.v = b.matrix(name("attn_v.weight"), c.Width, c.KVHeads*c.ValueDim)
	l.out = b.matrix(name("attn_output.weight"), c.Heads*c.ValueDim, c.Width)
	l.qNorm = b.vector(name("attn_q_norm.weight"), c.KeyDim)
	l.kNorm = b.vector(name("attn_k_norm.weight"), c.KeyDim)
}

func (b *binder) deltaNet(l *layer, c Config, name func(string) string) {
	inner := c.StateDim * c.ValueHeads
	l.qkv = b.matrix(name("attn_qkv.weight"), c.Width, c.convChannels())
	l.z = b.matrix(name("attn_gate.weight"), c.Width, inner)
	l.alpha = b.matrix(name("ssm_alpha.weight"), c.Width, c.ValueHeads)
	l.beta = b.matrix(name("ssm_beta.weight"), c.Width, c.ValueHeads)
	l.ssmOut = b.matrix(name("ssm_out.weight"), inner, c.Width)
	l.conv = b.planes(name("ssm_conv1d.weight"), c.ConvTaps, c.convChannels())
	l.decay = b.vector(name("ssm_a"), c.ValueHeads)
	l.dtBias = b.vector(name("ssm_dt.bias"), c.ValueHeads)
	l.ssmNorm = b.vector(name("ssm_norm.weight"), c.StateDim)
}

func (b *binder) moe(l *layer, spec Spec, c Config, name func(string) string) {
	l.ffnNorm = b.vector(name(spec.FFNNorm+".weight"), c.Width)
	l.router = b.matrix(name("ffn_gate_inp.weight"), c.Width, c.Experts)
	if c.SharedWidth > 0 {
		l.sharedSwitch = b.vector(name("ffn_gate_inp_shexp.weight"), c.Width)
		l.sharedGate = b.matrix(name("ffn_gate_shexp.weight"), c.Width, c.SharedWidth)
		l.sharedUp = b.matrix(name("ffn_up_shexp.weight"), c.Width, c.SharedWidth)
		l.sharedDown = b.matrix(name("ffn_down_shexp.weight"), c.SharedWidth, c.Width)
	}
	if _, ok := b.f.Tensor(name("ffn_gate_up_exps.weight")); ok {
		l.gateType = b.expertType(name("ffn_gate_up_exps.weight"), c.Width, 2*c.ExpertWidth, c.Experts)
		l.upType = l.gateType
	} else {
		l.gateType = b.expertType(name("ffn_gate_exps.weight"), c.Width, c.ExpertWidth, c.Experts)
		l.upType = b.expertType(name("ffn_up_exps.weight"), c.Width, c.ExpertWidth, c.Experts)
	}
	l.downType = b.expertType(name("ffn_down_exps.weight"), c.ExpertWidth, c.Width, c.Experts)
}

// expertType checks a tensor of routed experts; its bytes are the pager's business.
func (b *binder) expertType(name string, dims ...int) gguf.Type {
	t := b.tensor(name, dims...)
	if b.err == nil {
		if _, err := kernels.FormOf(t.Type); err != nil {
			b.fail(name, "has the type %s: %v", t.Type, err)
		}
	}
	return t.Type
}

// convChannels is the width of the delta net's q, k and v together.
func (c Config) convChannels() int { return c.StateDim * (2*c.KeyGroups + c.ValueHeads) }
