// Float32 vector operations: one table of functions per instruction set. All tables give the same bits: every operation is
// written once (vec_ops.h, attention.h, delta.h) over 16 virtual lanes (vec_lanes.h), with multiplications and additions
// rounded one by one in an order that depends on lengths only.
#ifndef EPQ_VEC_H
#define EPQ_VEC_H
#include <stddef.h>
#include <stdint.h>

enum vec_format { VEC_F32 = 0, VEC_F16 = 1, VEC_Q8_0 = 8 }; // element types of an attention cache, ggml's numbers

// Shape of the cache of one kv head.
struct vec_cache {
    int64_t k_stride, v_stride; // bytes from one position to the next
    int32_t k_type, v_type, dk, dv;
};

// Shape of a delta net run: tokens of one head, the steps in floats from one token to the next.
struct vec_delta {
    int64_t dk, dv, tokens, q_step, k_step, v_step, o_step, decay_step, beta_step;
    int32_t per_key; // decay has a factor per key component
};

struct vec_table {
    void (*rms_norm)(float *y, const float *x, const float *w, ptrdiff_t n, float eps);
    void (*l2_norm)(float *y, const float *x, ptrdiff_t n, float eps, float scale);
    void (*add)(float *y, const float *x, ptrdiff_t n);
    void (*add_scaled)(float *y, const float *x, ptrdiff_t n, float a);
    void (*scale)(float *y, ptrdiff_t n, float a);
    void (*silu)(float *y, const float *x, ptrdiff_t n);
    void (*silu_mul)(float *y, const float *gate, const float *up, ptrdiff_t n);
    void (*sigmoid)(float *y, const float *x, ptrdiff_t n);
    void (*sigmoid_mul)(float *y, const float *x, const float *gate, ptrdiff_t n);
    void (*exp)(float *y, const float *x, ptrdiff_t n);
    void (*softmax)(float *x, ptrdiff_t n);
    float (*dot)(const float *a, const float *b, ptrdiff_t n);
    ptrdiff_t (*arg_max)(const float *x, ptrdiff_t n);
    void (*rope_half)(float *x, const float *cos, const float *sin, ptrdiff_t pairs);
    void (*rope_adjacent)(float *x, const float *cos, const float *sin, ptrdiff_t pairs);
    void (*conv)(float *y, const float *u, const float *w, float *state, ptrdiff_t channels, ptrdiff_t c0, ptrdiff_t c1, int taps, int silu);
    void (*store_kv)(uint8_t *dst, const float *x, ptrdiff_t n, int type);
    void (*attend)(float *part, const float *q, ptrdiff_t rows, const int32_t *limit, const uint8_t *k, const uint8_t *v, const struct vec_cache *c, ptrdiff_t from, ptrdiff_t to, float scale);
    void (*merge)(float *out, const float *parts, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t dv, const float *sink);
    void (*delta)(float *state, const float *q, const float *k, const float *v, const float *decay, const float *beta, float *o, const struct vec_delta *d);
};

extern const struct vec_table *const vec_tables[]; // by index of VecSets

#endif
