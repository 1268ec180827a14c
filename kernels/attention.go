package kernels

import (
	"errors"
	"fmt"
	"math"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

// Segment is the number of positions that are best given to one unit of work: AttendPart over [i*Segment, (i+1)*Segment)
// each, then AttendMerge. It must be the same whenever bits are to be the same. At 128 numbers per key and 16-bit cache a
// segment is 256 KiB of keys and values, some 10 us of work for a group of 8 heads.
const Segment = 512

// ErrCacheType is the kind of error for an element type or a head that an attention cache cannot hold.
var ErrCacheType = errors.New("kernels: attention cache")

// CheckCache tells whether keys of dk and values of dv numbers can be cached in the types tk and tv: F32, F16, or Q8_0 where
// the length is a multiple of 32. The longest head has 2048 numbers.
func CheckCache(tk, tv gguf.Type, dk, dv int) error {
	for _, c := range []struct {
		what string
		t    gguf.Type
		n    int
	}{{"key", tk, dk}, {"value", tv, dv}} {
		switch {
		case c.t != gguf.F32 && c.t != gguf.F16 && c.t != gguf.Q8_0:
			return fmt.Errorf("%w: %s of type %v, possible are F32, F16 and Q8_0", ErrCacheType, c.what, c.t)
		case c.n < 1 || c.n > ggml_cgo.MaxHeadDim:
			return fmt.Errorf("%w: %s of %d numbers, possible are 1 to %d", ErrCacheType, c.what, c.n, ggml_cgo.MaxHeadDim)
		case c.t == gguf.Q8_0 && c.n%32 != 0:
			return fmt.Errorf("%w: %s of %d numbers in Q8_0, whose blocks are 32: use F16", ErrCacheType, c.what, c.n)
		}
	}
	return nil
}

// KVBytes is what n numbers of one head take in a cache of type t, one CheckCache allows.
func KVBytes(t gguf.Type, n int) int {
	switch t {
	case gguf.F32:
		return 4 * n
	case gguf.F16:
		return 2 * n
	case gguf.Q8_0:
		return n / 32 * 34
	}
	panic("kernels: KVBytes of a type no cache has")
}

// StoreKV writes one head's key or value, KVBytes(t, len(x)) bytes, to dst. F16 and the scale of Q8_0 are rounded to nearest even.
func (s *Set) StoreKV(dst []byte, x []float32, t gguf.Type) {
	s.vec.StoreKV(dst[:KVBytes(t, len(x))], x, int(t))
}

// PartLen is the number of floats AttendPart writes per row: dv accumulators, the largest score, the sum of weights.
func PartLen(dv int) int { return dv + 2 }

// AttendPart lets rows query vectors of one kv head (several heads and tokens; dk numbers each, rows of q) look at the
// positions [from, to): row i sees those below limit[i]. k and v are this head's cache from position 0 on, rows dense; v nil:
// the value is the first dv numbers of the key (absorbed MLA), and tv is not used. part: PartLen(dv) floats per row.
//
// A row's part depends on its query, its limit, from and to alone; of two calls with different ends only a row whose limit lies
// below both gets the same.
func (s *Set) AttendPart(part, q []float32, rows int, limit []int32, k, v []byte, t, tv gguf.Type, dk, dv, from, to int, scale float32) {
	if rows < 1 {
		return
	}
	c := ggml_cgo.CacheShape{KType: int32(t), VType: int32(tv), KeyDim: int32(dk), VDim: int32(dv), KStride: int64(KVBytes(t, dk))}
	if v == nil {
		v, c.VType, c.VStride = k, c.KType, c.KStride
	} else {
		c.VStride = int64(KVBytes(tv, dv))
	}
	to = min(to, int(maxLimit(limit[:rows])))
	if to > from {
		k, v = k[:int64(to)*c.KStride], v[:int64(to-1)*c.VStride+int64(KVBytes(gguf.Type(c.VType), dv))]
	}
	if from < 0 || dk < 1 || dk > ggml_cgo.MaxHeadDim || dv < 1 {
		panic("kernels: AttendPart of a shape CheckCache refuses")
	}
	s.vec.Attend(part[:rows*PartLen(dv)], q[:rows*dk], rows, limit, k, v, &c, from, to, scale)
}

func maxLimit(limit []int32) int32 {
	m := int32(math.MinInt32)
	for _, l := range limit {
		m = max(m, l)
	}
	return m
}

// AttendMerge joins the parts of one row, of consecutive segments in their order, stride floats apart: out is the
// softmax-weighted value, dv numbers. A row that saw no position gives 0.
func (s *Set) AttendMerge(out, parts []float32, nparts, stride, dv int) {
	s.merge(out, parts, nparts, stride, dv, nil)
}

// AttendMergeSink is AttendMerge with one more score that has no value: it takes weight and adds nothing.
func (s *Set) AttendMergeSink(out, parts []float32, nparts, stride, dv int, sink float32) {
	one := [1]float32{sink}
	s.merge(out, parts, nparts, stride, dv, one[:])
}

func (s *Set) merge(out, parts []float32, nparts, stride, dv int, sink []float32) {
	if nparts > 0 {
		parts = parts[:(nparts-1)*stride+PartLen(dv)]
	}
	s.vec.Merge(out[:dv], parts, nparts, stride, sink)
}
