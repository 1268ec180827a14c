//go:build cgo

package ggml_cgo

/*
#cgo CFLAGS: -O3 -std=c11
#cgo LDFLAGS: -lm
#include "vec.h"

#cgo noescape epq_rms_norm
#cgo nocallback epq_rms_norm
#cgo noescape epq_l2_norm
#cgo nocallback epq_l2_norm
#cgo noescape epq_add
#cgo nocallback epq_add
#cgo noescape epq_add_scaled
#cgo nocallback epq_add_scaled
#cgo noescape epq_scale
#cgo nocallback epq_scale
#cgo noescape epq_silu
#cgo nocallback epq_silu
#cgo noescape epq_silu_mul
#cgo nocallback epq_silu_mul
#cgo noescape epq_sigmoid
#cgo nocallback epq_sigmoid
#cgo noescape epq_sigmoid_mul
#cgo nocallback epq_sigmoid_mul
#cgo noescape epq_exp
#cgo nocallback epq_exp
#cgo noescape epq_softmax
#cgo nocallback epq_softmax
#cgo noescape epq_dot
#cgo nocallback epq_dot
#cgo noescape epq_arg_max
#cgo nocallback epq_arg_max
#cgo noescape epq_rope
#cgo nocallback epq_rope
#cgo noescape epq_conv
#cgo nocallback epq_conv
#cgo noescape epq_store_kv
#cgo nocallback epq_store_kv
#cgo noescape epq_attend
#cgo nocallback epq_attend
#cgo noescape epq_merge
#cgo nocallback epq_merge
#cgo noescape epq_delta
#cgo nocallback epq_delta

#define V(i) vec_tables[i]
static inline void epq_rms_norm(int s, float *y, const float *x, const float *w, ptrdiff_t n, float eps) { V(s)->rms_norm(y, x, w, n, eps); }
static inline void epq_l2_norm(int s, float *y, const float *x, ptrdiff_t n, float eps, float scale) { V(s)->l2_norm(y, x, n, eps, scale); }
static inline void epq_add(int s, float *y, const float *x, ptrdiff_t n) { V(s)->add(y, x, n); }
static inline void epq_add_scaled(int s, float *y, const float *x, ptrdiff_t n, float a) { V(s)->add_scaled(y, x, n, a); }
static inline void epq_scale(int s, float *y, ptrdiff_t n, float a) { V(s)->scale(y, n, a); }
static inline void epq_silu(int s, float *y, const float *x, ptrdiff_t n) { V(s)->silu(y, x, n); }
static inline void epq_silu_mul(int s, float *y, const float *g, const float *u, ptrdiff_t n) { V(s)->silu_mul(y, g, u, n); }
static inline void epq_sigmoid(int s, float *y, const float *x, ptrdiff_t n) { V(s)->sigmoid(y, x, n); }
static inline void epq_sigmoid_mul(int s, float *y, const float *x, const float *g, ptrdiff_t n) { V(s)->sigmoid_mul(y, x, g, n); }
static inline void epq_exp(int s, float *y, const float *x, ptrdiff_t n) { V(s)->exp(y, x, n); }
static inline void epq_softmax(int s, float *x, ptrdiff_t n) { V(s)->softmax(x, n); }
static inline float epq_dot(int s, const float *a, const float *b, ptrdiff_t n) { return V(s)->dot(a, b, n); }
static inline ptrdiff_t epq_arg_max(int s, const float *x, ptrdiff_t n) { return V(s)->arg_max(x, n); }
static inline void epq_rope(int s, float *x, const float *c, const float *d, ptrdiff_t n, int adjacent) {
    if (adjacent)
        V(s)->rope_adjacent(x, c, d, n);
    else
        V(s)->rope_half(x, c, d, n);
}
static inline void epq_conv(int s, float *y, const float *u, const float *w, float *st, ptrdiff_t n, ptrdiff_t c0, ptrdiff_t c1, int taps, int silu) {
    V(s)->conv(y, u, w, st, n, c0, c1, taps, silu);
}
static inline void epq_store_kv(int s, uint8_t *dst, const float *x, ptrdiff_t n, int type) { V(s)->store_kv(dst, x, n, type); }
static inline void epq_attend(int s, float *part, const float *q, ptrdiff_t rows, const int32_t *limit, const uint8_t *k, const uint8_t *v,
                              const struct vec_cache *c, ptrdiff_t from, ptrdiff_t to, float scale) {
    V(s)->attend(part, q, rows, limit, k, v, c, from, to, scale);
}
static inline void epq_merge(int s, float *out, const float *parts, ptrdiff_t n, ptrdiff_t stride, ptrdiff_t dv, const float *sink) {
    V(s)->merge(out, parts, n, stride, dv, sink);
}
static inline void epq_delta(int s, float *state, const float *q, const float *k, const float *v, const float *decay, const float *beta, float *o,
                             const struct vec_delta *d) {
    V(s)->delta(state, q, k, v, decay, beta, o, d);
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// VecSet is the table of float32 vector operations of one instruction set; what each computes is said at Plain. All sets
// give the same bits as Plain. Lengths are the caller's duty.
type VecSet struct {
	Name  string
	table C.int
}

// VecSets returns the tables built into this program, whether or not this CPU can run them.
func VecSets() []*VecSet {
	if runtime.GOARCH != "amd64" {
		return []*VecSet{{"scalar", 0}, {"neon", 0}}
	}
	return []*VecSet{{"scalar", 0}, {"avx2", 1}, {"avxvnni", 1}, {"avx512", 2}}
}

func fp(x []float32) *C.float    { return (*C.float)(unsafe.SliceData(x)) }
func bp(x []byte) *C.uint8_t     { return (*C.uint8_t)(unsafe.SliceData(x)) }
func ip(x []int32) *C.int32_t    { return (*C.int32_t)(unsafe.SliceData(x)) }
func ln(x []float32) C.ptrdiff_t { return C.ptrdiff_t(len(x)) }

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (s *VecSet) RMSNorm(y, x, w []float32, eps float32) {
	C.epq_rms_norm(s.table, fp(y), fp(x), fp(w), ln(x), C.float(eps))
}

func (s *VecSet) L2Norm(y, x []float32, eps, scale float32) {
	C.epq_l2_norm(s.table, fp(y), fp(x), ln(x), C.float(eps), C.float(scale))
}

func (s *VecSet) Add(y, x []float32) { C.epq_add(s.table, fp(y), fp(x), ln(x)) }

func (s *VecSet) AddScaled(y, x []float32, a float32) {
	C.epq_add_scaled(s.table, fp(y), fp(x), ln(x), C.float(a))
}

func (s *VecSet) Scale(y []float32, a float32) { C.epq_scale(s.table, fp(y), ln(y), C.float(a)) }

func (s *VecSet) SiLU(y, x []float32) { C.epq_silu(s.table, fp(y), fp(x), ln(x)) }

func (s *VecSet) SiLUMul(y, gate, up []float32) {
	C.epq_silu_mul(s.table, fp(y), fp(gate), fp(up), ln(gate))
}

func (s *VecSet) Sigmoid(y, x []float32) { C.epq_sigmoid(s.table, fp(y), fp(x), ln(x)) }

func (s *VecSet) SigmoidMul(y, x, gate []float32) {
	C.epq_sigmoid_mul(s.table, fp(y), fp(x), fp(gate), ln(x))
}

func (s *VecSet) Exp(y, x []float32) { C.epq_exp(s.table, fp(y), fp(x), ln(x)) }

func (s *VecSet) Softmax(x []float32) { C.epq_softmax(s.table, fp(x), ln(x)) }

func (s *VecSet) Dot(a, b []float32) float32 {
	return float32(C.epq_dot(s.table, fp(a), fp(b), ln(a)))
}

func (s *VecSet) ArgMax(x []float32) int { return int(C.epq_arg_max(s.table, fp(x), ln(x))) }

func (s *VecSet) RopeHalf(x, cos, sin []float32) {
	C.epq_rope(s.table, fp(x), fp(cos), fp(sin), ln(cos), 0)
}

func (s *VecSet) RopeAdjacent(x, cos, sin []float32) {
	C.epq_rope(s.table, fp(x), fp(cos), fp(sin), ln(cos), 1)
}

func (s *VecSet) Conv(y, u, w, state []float32, channels, c0, c1, taps int, silu bool) {
	C.epq_conv(s.table, fp(y), fp(u), fp(w), fp(state), C.ptrdiff_t(channels), C.ptrdiff_t(c0), C.ptrdiff_t(c1), C.int(taps), flag(silu))
}

func (s *VecSet) StoreKV(dst []byte, x []float32, cacheType int) {
	C.epq_store_kv(s.table, bp(dst), fp(x), ln(x), C.int(cacheType))
}

func (s *VecSet) Attend(part, q []float32, rows int, limit []int32, k, v []byte, c *CacheShape, from, to int, scale float32) {
	C.epq_attend(s.table, fp(part), fp(q), C.ptrdiff_t(rows), ip(limit), bp(k), bp(v), (*C.struct_vec_cache)(unsafe.Pointer(c)), C.ptrdiff_t(from), C.ptrdiff_t(to), C.float(scale))
}

func (s *VecSet) Merge(out, parts []float32, count, stride int, sink []float32) {
	C.epq_merge(s.table, fp(out), fp(parts), C.ptrdiff_t(count), C.ptrdiff_t(stride), ln(out), fp(sink))
}

func (s *VecSet) Delta(state, q, k, v, decay, beta, o []float32, d *DeltaShape) {
	C.epq_delta(s.table, fp(state), fp(q), fp(k), fp(v), fp(decay), fp(beta), fp(o), (*C.struct_vec_delta)(unsafe.Pointer(d)))
}
