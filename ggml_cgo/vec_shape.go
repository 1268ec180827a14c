package ggml_cgo

// Element types of an attention cache, ggml's numbers.
const (
	CacheF32 = 0
	CacheF16 = 1
	CacheQ80 = 8 // blocks of 32: half d, 32 signed bytes
)

// MaxHeadDim is the longest key attention takes: four widened keys must fit into the scratch of 32 KiB.
const MaxHeadDim = 2048

// CacheShape describes the cache of one kv head; laid out as struct vec_cache.
type CacheShape struct {
	KStride, VStride           int64 // bytes from one position to the next
	KType, VType, KeyDim, VDim int32
}

// DeltaShape describes a run of the delta net over the tokens of one head; laid out as struct vec_delta. Steps are floats
// from one token to the next.
type DeltaShape struct {
	KeyDim, ValueDim, Tokens   int64
	QStep, KStep, VStep, OStep int64
	DecayStep, BetaStep        int64
	PerKey                     int32 // 1: decay has a factor per key component
}
