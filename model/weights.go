package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

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
	moe   int // number among the layers with routed experts: what Experts.Use takes; -1: it has none
	mixer Mixer

	attnNorm, ffnNorm []float32

	q, k, v, out              kernels.Matrix // attention; KDA too
	qNorm, kNorm              []float32
	qBias, kBias, vBias, bias []float32 // nil: none; bias: of out
	sinks                     []float32 // a score per head, or nil
	window                    int       // positions this block sees; 0: all
	cache                     int       // number among the layers with keys and values: which KV cache

	qA, kvA, kB, vB, gate kernels.Matrix // MLA; q is the second half of a compressed query
	qANorm, kvANorm       []float32
	vFirst, vStep         int // rows of vB: the first of head 0, and from one head to the next

	qkv, z, alpha, beta, ssmOut kernels.Matrix // delta net; z, alpha and beta of KDA too
	conv                        []float32      // planes [tap][channel]
	decay, dtBias, ssmNorm      []float32
	recurrent                   int // number among the layers with a matrix state: which state

	router                     kernels.Matrix
	routerBias                 []float32 // added to the scores, or nil
	choiceBias                 []float32 // added to the probabilities for the choice only, or nil
	sharedSwitch               []float32 // row whose product decides how much of the shared expert counts; nil: all
	sharedGate, sharedUp       kernels.Matrix
	sharedDown                 kernels.Matrix // of the shared expert, or of a layer without routed ones
	gateType, upType, downType gguf.Type      // routed experts
	gateBias, upBias, downBias []float32      // of all experts, one after the other; nil: none
	limit, sharedLimit         float32        // of the activation; 0: none
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

// tensor finds a tensor of the shape dims; dimensions of 1 may be there or not.
func (b *binder) tensor(name string, dims ...int) gguf.Tensor {
	t, ok := b.f.Tensor(name)
	if !ok {
		b.fail(name, "is missing")
		return t
	}
	var want, got []int64
	for _, n := range dims {
		if n != 1 {
			want = append(want, int64(n))
		}
	}
	for _, n := range t.Dims {
		if n != 1 {
			got = append(got, n)
		}
	}
	if !slices.Equal(want, got) {
		b.fail(name, "has the shape %v, the hyper-parameters say %v", t.Dims, dims)
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

// matrix binds a matrix of rows x cols, or several of them (dims beyond: how many) as one of all their rows; its bytes
// stay where the source has them.
func (b *binder) matrix(name string, cols, rows int, more ...int) kernels.Matrix {
	t := b.tensor(name, append([]int{cols, rows}, more...)...)
	for _, n := range more {
		rows *= n
	}
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
	t := b.f32(name, dims...)
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

// planes turns convolutions of [taps, channels] (taps contiguous), side by side, into planes [tap][channel].
func (b *binder) planes(taps, channels int, names ...string) []float32 {
	all := len(names) * channels
	w := b.mem.floats(taps * all)
	for i, name := range names {
		t := b.f32(name, taps, channels)
		data := b.bytes(t)
		if b.err != nil || data == nil {
			continue
		}
		for c := range channels {
			for j := range taps {
				w[j*all+i*channels+c] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*(c*taps+j):]))
			}
		}
	}
	return w
}

// f32 finds an F32 tensor.
func (b *binder) f32(name string, dims ...int) gguf.Tensor {
	t := b.tensor(name, dims...)
	if b.err == nil && t.Type != gguf.F32 {
		b.fail(name, "has the type %s, F32 is needed", t.Type)
	}
	return t
}

// biases binds a bias where the architecture has them.
func (b *binder) biases(spec Spec, name string, dims ...int) []float32 {
	if !spec.Biases {
		return nil
	}
	return b.vector(name, dims...)
}

// counts number the layers of each kind as they are bound.
type counts struct{ caches, recurrents, routed int }

// layers binds the blocks of the main pass and, after them, the one that drafts, where predict says so.
func (b *binder) layers(spec Spec, c Config, predict bool) []layer {
	n := c.Blocks
	if predict {
		n++
	}
	ls := make([]layer, n)
	var seen counts
	for i := range ls {
		ls[i].block = i
		if b.layer(&ls[i], spec, c, &seen); b.err != nil {
			return nil
		}
	}
	return ls
}

func (b *binder) layer(l *layer, spec Spec, c Config, seen *counts) {
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", l.block, s) }
	for _, r := range spec.Mixers {
		if _, ok := b.f.Tensor(name(r.Tensor)); ok || r.Tensor == "" {
			l.mixer = r.Mixer
			break
		}
	}
	l.attnNorm = b.vector(name("attn_norm.weight"), c.Width)
	l.cache, l.recurrent = seen.caches, seen.recurrents
	if l.mixer.recurrent() {
		seen.recurrents++
	} else {
		seen.caches++
	}
	switch l.mixer {
	case DeltaNet:
		b.deltaNet(l, c, name)
	case KDA:
		b.kda(l, c, name)
	case MLA:
		b.latent(l, c, name)
	default:
		b.attention(l, spec, c, name)
	}
	l.moe = seen.routed
	b.feedForward(l, spec, c, name)
	if l.moe >= 0 {
		seen.routed++
	}
}

func (b *binder) attention(l *layer, spec Spec, c Config, name func(string) string) {
	qRows := c.Heads * c.KeyDim
	if l.mixer == GatedAttention {
		qRows *= 2
	}
	kRows, vRows := c.KVHeads*c.KeyDim, c.KVHeads*c.ValueDim
	l.q = b.matrix(name("attn_q.weight"), c.Width, qRows)
	l.k = b.matrix(name("attn_k.weight"), c.Width, kRows)
	l.v = b.matrix(name("attn_v.weight"), c.Width, vRows)
	l.out = b.matrix(name("attn_output.weight"), c.Heads*c.ValueDim, c.Width)
	if spec.HeadNorms {
		l.qNorm = b.vector(name("attn_q_norm.weight"), c.KeyDim)
		l.kNorm = b.vector(name("attn_k_norm.weight"), c.KeyDim)
	}
	l.qBias = b.biases(spec, name("attn_q.bias"), qRows)
	l.kBias = b.biases(spec, name("attn_k.bias"), kRows)
	l.vBias = b.biases(spec, name("attn_v.bias"), vRows)
	l.bias = b.biases(spec, name("attn_output.bias"), c.Width)
	if spec.Sinks {
		l.sinks = b.vector(name("attn_sinks.weight"), c.Heads)
	}
	if c.Window > 0 && (l.block+1)%c.WindowEvery != 0 {
		l.window = c.Window
	}
}

func (b *binder) deltaNet(l *layer, c Config, name func(string) string) {
	inner := c.StateDim * c.ValueHeads
	l.qkv = b.matrix(name("attn_qkv.weight"), c.Width, c.convChannels())
	l.z = b.matrix(name("attn_gate.weight"), c.Width, inner)
	l.alpha = b.matrix(name("ssm_alpha.weight"), c.Width, c.ValueHeads)
	l.beta = b.matrix(name("ssm_beta.weight"), c.Width, c.ValueHeads)
	l.ssmOut = b.matrix(name("ssm_out.weight"), inner, c.Width)
	l.conv = b.planes(c.ConvTaps, c.convChannels(), name("ssm_conv1d.weight"))
	l.decay = b.vector(name("ssm_a"), c.ValueHeads)
	l.dtBias = b.vector(name("ssm_dt.bias"), c.ValueHeads)
	l.ssmNorm = b.vector(name("ssm_norm.weight"), c.StateDim)
}

func (b *binder) kda(l *layer, c Config, name func(string) string) {
	inner := c.StateDim * c.ValueHeads
	l.q = b.matrix(name("attn_q.weight"), c.Width, inner)
	l.k = b.matrix(name("attn_k.weight"), c.Width, inner)
	l.v = b.matrix(name("attn_v.weight"), c.Width, inner)
	l.z = b.matrix(name("ssm_g_a.weight"), c.Width, inner)
	l.alpha = b.matrix(name("ssm_f_a.weight"), c.Width, inner)
	l.beta = b.matrix(name("ssm_beta.weight"), c.Width, c.ValueHeads)
	l.ssmOut = b.matrix(name("attn_output.weight"), inner, c.Width)
	l.conv = b.planes(c.ConvTaps, inner, name("ssm_conv1d_q.weight"), name("ssm_conv1d_k.weight"), name("ssm_conv1d_v.weight"))
	l.decay = b.vector(name("ssm_a"), 1, c.ValueHeads)
	l.dtBias = b.vector(name("ssm_dt.bias"), inner)
	l.ssmNorm = b.vector(name("ssm_norm.weight"), c.StateDim)
}

func (b *binder) latent(l *layer, c Config, name func(string) string) {
	n := c.Latent
	qRows := c.Heads * (n.Nope + c.Rope.Dim)
	if n.QueryRank > 0 {
		l.qA = b.matrix(name("attn_q_a.weight"), c.Width, n.QueryRank)
		l.qANorm = b.vector(name("attn_q_a_norm.weight"), n.QueryRank)
		l.q = b.matrix(name("attn_q_b.weight"), n.QueryRank, qRows)
	} else {
		l.q = b.matrix(name("attn_q.weight"), c.Width, qRows)
	}
	l.kvA = b.matrix(name("attn_kv_a_mqa.weight"), c.Width, c.KeyDim)
	l.kvANorm = b.vector(name("attn_kv_a_norm.weight"), n.Rank)
	if n.Whole {
		l.vB = b.matrix(name("attn_kv_b.weight"), n.Rank, c.Heads*(n.Nope+n.Head))
		l.vFirst, l.vStep = n.Nope, n.Nope+n.Head
		l.kB = b.transposedKeys(l.vB, c)
	} else {
		l.kB = b.matrix(name("attn_k_b.weight"), n.Nope, n.Rank, c.Heads)
		l.vB = b.matrix(name("attn_v_b.weight"), n.Rank, n.Head, c.Heads)
		l.vStep = n.Head
	}
	if _, ok := b.f.Tensor(name("attn_gate.weight")); ok {
		l.gate = b.matrix(name("attn_gate.weight"), c.Width, c.Heads)
	}
	l.out = b.matrix(name("attn_output.weight"), c.Heads*n.Head, c.Width)
}

// transposedKeys makes of the key part of an old file's attn_kv_b, per head Nope rows of Rank, what new files hold as
// attn_k_b: Rank rows of Nope, in float32, since blocks of quantised rows cannot be turned.
func (b *binder) transposedKeys(kv kernels.Matrix, c Config) kernels.Matrix {
	n := c.Latent
	w := kernels.Matrix{Type: gguf.F32, Rows: c.Heads * n.Rank, Cols: n.Nope, RowBytes: 4 * n.Nope}
	w.Data = b.mem.bytes(w.Rows * w.RowBytes)
	if b.err != nil || w.Data == nil {
		return w
	}
	row := make([]float32, n.Rank)
	for h := range c.Heads {
		for i := range n.Nope {
			r := h*(n.Nope+n.Head) + i
			// The type was checked when the tensor was bound.
			_ = kernels.Best().Dequantize(kv.Type, row, kv.Data[r*kv.RowBytes:][:kv.RowBytes])
			for j, v := range row {
				binary.LittleEndian.PutUint32(w.Data[(h*n.Rank+j)*w.RowBytes+4*i:], math.Float32bits(v))
			}
		}
	}
	return w
}

// denseTensor marks the feed-forward of a block without routed experts.
const denseTensor = "ffn_gate.weight"

func (b *binder) feedForward(l *layer, spec Spec, c Config, name func(string) string) {
	l.ffnNorm = b.vector(name(spec.FFNNorm+".weight"), c.Width)
	if c.SharedLimits != nil {
		l.sharedLimit = c.SharedLimits[l.block]
	}
	const router = "ffn_gate_inp.weight"
	_, routed := b.f.Tensor(name(router))
	if _, dense := b.f.Tensor(name(denseTensor)); dense && !routed {
		l.moe = -1
		b.swiglu(l, c.Width, c.DenseWidth, name, "")
		return
	}
	l.router = b.matrix(name(router), c.Width, c.Experts)
	l.routerBias = b.biases(spec, name("ffn_gate_inp.bias"), c.Experts)
	if _, ok := b.f.Tensor(name("exp_probs_b.bias")); ok {
		l.choiceBias = b.vector(name("exp_probs_b.bias"), c.Experts)
	}
	if c.SharedWidth > 0 {
		if spec.Shared == SwitchedShared {
			l.sharedSwitch = b.vector(name("ffn_gate_inp_shexp.weight"), c.Width)
		}
		b.swiglu(l, c.Width, c.SharedWidth, name, "_shexp")
	}
	b.experts(l, spec, c, name)
}

// swiglu binds a feed-forward that stays in memory.
func (b *binder) swiglu(l *layer, n, f int, name func(string) string, suffix string) {
	l.sharedGate = b.matrix(name("ffn_gate"+suffix+".weight"), n, f)
	l.sharedUp = b.matrix(name("ffn_up"+suffix+".weight"), n, f)
	l.sharedDown = b.matrix(name("ffn_down"+suffix+".weight"), f, n)
}

func (b *binder) experts(l *layer, spec Spec, c Config, name func(string) string) {
	if c.ExpertLimits != nil {
		l.limit = c.ExpertLimits[l.block]
	}
	if _, ok := b.f.Tensor(name("ffn_gate_up_exps.weight")); ok {
		l.gateType = b.expertType(name("ffn_gate_up_exps.weight"), c.Width, 2*c.ExpertWidth, c.Experts)
		l.upType = l.gateType
	} else {
		l.gateType = b.expertType(name("ffn_gate_exps.weight"), c.Width, c.ExpertWidth, c.Experts)
		l.upType = b.expertType(name("ffn_up_exps.weight"), c.Width, c.ExpertWidth, c.Experts)
	}
	l.downType = b.expertType(name("ffn_down_exps.weight"), c.ExpertWidth, c.Width, c.Experts)
	l.gateBias = b.biases(spec, name("ffn_gate_exps.bias"), c.ExpertWidth, c.Experts)
	l.upBias = b.biases(spec, name("ffn_up_exps.bias"), c.ExpertWidth, c.Experts)
	l.downBias = b.biases(spec, name("ffn_down_exps.bias"), c.Width, c.Experts)
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

// convChannels is the width of a delta net's q, k and v together.
func (c Config) convChannels() int { return c.StateDim * (2*c.KeyGroups + c.ValueHeads) }
