package synth

import (
	"regexp"
	"slices"

	"github.com/epq-uring/epq-uring/gguf"
)

// Preset names a shape of which a model can be made.
type Preset struct {
	Name  string
	About string // one line: what it is good for
}

// shape holds everything that makes one model differ from another. Lengths count elements; what a family does not have is 0.
type shape struct {
	name, about string
	family      *family
	layers      int // without those of multi-token prediction
	whole       int // blocks of the whole model, whose types layers keep where only the first are made; 0: layers
	embd        int // width of the hidden state
	heads, kv   int // of attention
	headDim     int // of attention, and of KDA
	rotated     int // components that rope turns; 0: all
	sections    []int32
	experts     int
	used        int // experts per token
	ff          int // width of an expert
	ffShared    int // width of the shared expert
	ropeBase    float32
	eps         float32
	context     int
	vocab       int // tokens
	special     int // id of the first special token
	merges      int
	quant       quant
	rules       []rule // go before what quant says; matrices only
	seed        uint64
	skew        float64
	residual    float64 // gain of the matrices that add to the hidden state
	router      float64 // gain of the router

	interval   int // every such layer is full attention, the others are recurrent
	conv       int // taps of a delta net's convolution
	state      int // head size of the delta net
	keyHeads   int
	valueHeads int

	// MLA and what comes with it.
	rank, queryRank, nope, value int
	lead, ffDense                int // blocks without experts, and their width
	predict                      int // blocks of multi-token prediction
	groups, groupsUsed           int
	gating                       uint32
	normalise                    bool
	scale                        float32
	bias                         float64 // standard deviation of the router's choice bias
	clamps, sharedClamps         []float32
	yarn                         []float32 // factor, original context, log multiplier

	window int // of every second block
}

// quant says which type each matrix has and what general.file_type says about it.
type quant struct {
	name     string
	fileType uint32
}

var (
	allF32 = quant{"F32", 0}
	allQ8  = quant{"Q8_0", 7}
	q4km   = quant{"Q4_K_M", 15}
	mxfp4  = quant{"MXFP4", 38}
)

// rule gives the tensors whose name matches a type.
type rule struct {
	match *regexp.Regexp
	typ   gguf.Type
}

func rules(pairs ...any) []rule {
	var list []rule
	for p := range slices.Chunk(pairs, 2) {
		list = append(list, rule{regexp.MustCompile(p[0].(string)), p[1].(gguf.Type)})
	}
	return list
}

func shapes() []shape {
	var list []shape
	for _, of := range []func(base shape) []shape{qwenShapes, bailingShapes, deepseekShapes, ossShapes} {
		list = append(list, of(shape{vocab: 384, special: 370, merges: 100, context: 4096, eps: 1e-6, seed: 1, residual: 1, router: 1.5})...)
	}
	return list
}

// large is what real shapes share. With 40 and more layers and a residual gain of 1, rounding noise grows until two correct
// programs choose other experts; 0.3 keeps it small.
func (s *shape) large(name, about string, layers, vocab, special int) {
	s.name, s.about, s.layers, s.vocab, s.special = name, about, layers, vocab, special
	s.merges, s.skew, s.residual, s.router = 160, 1.5, 0.3, 0.8
}

func qwenShapes(base shape) []shape {
	q3 := base
	q3.family, q3.ropeBase = &qwen3, 1e6

	q35 := base
	q35.family, q35.ropeBase, q35.interval, q35.conv = &qwen35, 1e7, 4, 4

	micro3 := q3
	micro3.name, micro3.about = "micro-qwen3moe", "F32, 3 layers, 8 experts, 2 per token"
	micro3.layers, micro3.embd, micro3.heads, micro3.kv, micro3.headDim = 3, 32, 4, 2, 16
	micro3.experts, micro3.used, micro3.ff, micro3.quant = 8, 2, 24, allF32

	micro35 := q35
	micro35.name, micro35.about = "micro-qwen35moe", "F32, 3 delta nets and 1 attention, 8 experts, 3 per token"
	micro35.layers, micro35.embd, micro35.heads, micro35.kv, micro35.headDim = 4, 32, 4, 2, 16
	micro35.rotated, micro35.sections = 8, []int32{2, 1, 1, 0}
	micro35.experts, micro35.used, micro35.ff, micro35.ffShared = 8, 3, 24, 40
	micro35.state, micro35.keyHeads, micro35.valueHeads, micro35.quant = 16, 2, 4, allF32

	tiny3 := q3
	tiny3.name, tiny3.about = "tiny-qwen3moe-q8", "Q8_0, 4 layers, 16 experts, 4 per token"
	tiny3.layers, tiny3.embd, tiny3.heads, tiny3.kv, tiny3.headDim = 4, 64, 4, 2, 32
	tiny3.experts, tiny3.used, tiny3.ff, tiny3.quant, tiny3.seed = 16, 4, 32, allQ8, 2

	tiny35 := q35
	tiny35.name, tiny35.about = "tiny-qwen35moe-q4k", "types of a Q4_K_M file, 4 layers, 8 experts of two sizes, 3 per token"
	tiny35.layers, tiny35.embd, tiny35.heads, tiny35.kv, tiny35.headDim = 4, 256, 4, 2, 64
	tiny35.rotated, tiny35.sections = 16, []int32{3, 3, 2, 0}
	tiny35.experts, tiny35.used, tiny35.ff, tiny35.ffShared = 8, 3, 256, 256
	tiny35.state, tiny35.keyHeads, tiny35.valueHeads, tiny35.quant, tiny35.seed = 64, 2, 4, q4km, 3

	mix := tiny35
	mix.name, mix.about = "mix-qwen35moe", "the shape of tiny-qwen35moe-q4k with ten types of matrices"
	mix.rules = rules("token_embd", gguf.Q8_0, "^output", gguf.Q5_K, "gate_exps", gguf.IQ4XS, "up_exps", gguf.Q5_K,
		"blk.[02].ffn_down_exps", gguf.MXFP4, "down_exps", gguf.IQ4NL, "attn_qkv", gguf.Q8_0, "attn_gate", gguf.BF16,
		"ssm_out", gguf.F16, "attn_q.weight", gguf.Q4_0, "attn_output", gguf.IQ4XS, "shexp.weight", gguf.Q4_0)

	small35 := tiny35
	small35.name, small35.about = "small-qwen35moe-q4k", "as tiny-qwen35moe-q4k with 8 layers and 32 experts, 4 per token"
	small35.layers, small35.experts, small35.used, small35.residual = 8, 32, 4, 0.5

	real35 := q35
	real35.large("qwen35moe-35b", "the shape of Qwen3.5-35B-A3B Q4_K_M: 40 layers, 256 experts, 8 per token, 20 GiB", 40, 248320, 248044)
	real35.embd, real35.heads, real35.kv, real35.headDim = 2048, 16, 2, 256
	real35.rotated, real35.sections = 64, []int32{11, 11, 10, 0}
	real35.experts, real35.used, real35.ff, real35.ffShared = 256, 8, 512, 512
	real35.state, real35.keyHeads, real35.valueHeads, real35.quant = 128, 16, 32, q4km
	real35.context = 262144

	real3 := q3
	real3.large("qwen3moe-30b", "the shape of Qwen3-30B-A3B Q4_K_M: 48 layers, 128 experts, 8 per token, 17 GiB", 48, 151936, 151643)
	real3.embd, real3.heads, real3.kv, real3.headDim = 2048, 32, 4, 128
	real3.experts, real3.used, real3.ff, real3.quant = 128, 8, 768, q4km
	real3.context = 40960

	return []shape{micro3, micro35, tiny3, tiny35, mix, small35, real35, real3}
}
