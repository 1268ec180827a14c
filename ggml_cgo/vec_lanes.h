// Sixteen virtual float lanes on registers of VEC_WIDTH floats (16, 8 or 4), with GCC's vector extensions (also clang's).
// A lane's result does not depend on the width, and sums over lanes are taken in one order: l + (l+8), then +4, +2, +1.
//
// The pieces are named by macros and not looped over, so that they live in registers at every width.
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else // GCC contracts nothing under -std=c11
#pragma GCC diagnostic ignored "-Wpsabi" // all of these are inlined: how a vector is passed does not matter
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float f4 __attribute__((vector_size(16)));
typedef float f8 __attribute__((vector_size(32)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef float vf __attribute__((vector_size(4 * VEC_WIDTH)));
typedef float vu __attribute__((vector_size(4 * VEC_WIDTH), aligned(1), may_alias)); // at any address
typedef int32_t vi __attribute__((vector_size(4 * VEC_WIDTH)));
typedef struct { vf p[16 / VEC_WIDTH]; } v16;
typedef struct { vi p[16 / VEC_WIDTH]; } m16; // a mask: 0 or -1 per lane; or integers

#if VEC_WIDTH == 16
#define EACH(S) S(0)
#elif VEC_WIDTH == 8
#define EACH(S) S(0) S(1)
#else
#define EACH(S) S(0) S(1) S(2) S(3)
#endif

#define BINARY(name, type, expr)                                                                                       \
    INLINE type name(v16 x, v16 y) {                                                                                   \
        type r;                                                                                                        \
        EACH(expr)                                                                                                     \
        return r;                                                                                                      \
    }
#define S(i) r.p[i] = x.p[i] + y.p[i];
BINARY(add, v16, S)
#undef S
#define S(i) r.p[i] = x.p[i] - y.p[i];
BINARY(sub, v16, S)
#undef S
#define S(i) r.p[i] = x.p[i] * y.p[i];
BINARY(mul, v16, S)
#undef S
#define S(i) r.p[i] = x.p[i] / y.p[i];
BINARY(quo, v16, S)
#undef S
#define S(i) r.p[i] = (vi)(x.p[i] > y.p[i]);
BINARY(greater, m16, S)
#undef S
#define S(i) r.p[i] = (vi)(x.p[i] == y.p[i]);
BINARY(equal, m16, S)
#undef S

// pick returns x where m is set, else y.
INLINE v16 pick(m16 m, v16 x, v16 y) {
    v16 r;
#define S(i) r.p[i] = (vf)((m.p[i] & (vi)x.p[i]) | (~m.p[i] & (vi)y.p[i]));
    EACH(S)
#undef S
    return r;
}

INLINE v16 splat(float x) {
    v16 r;
#define S(i) r.p[i] = x - (vf){};
    EACH(S)
#undef S
    return r;
}
INLINE v16 zero(void) {
    v16 r;
#define S(i) r.p[i] = (vf){};
    EACH(S)
#undef S
    return r;
}

INLINE v16 load(const float *p) {
    v16 r;
#define S(i) r.p[i] = *(const vu *)(p + i * VEC_WIDTH);
    EACH(S)
#undef S
    return r;
}
INLINE void store(float *p, v16 x) {
#define S(i) *(vu *)(p + i * VEC_WIDTH) = x.p[i];
    EACH(S)
#undef S
}

// load_n and store_n touch the first n < 16 lanes; the others are filled with pad.
INLINE v16 load_n(const float *p, ptrdiff_t n, float pad) {
    float t[16];
    for (ptrdiff_t i = 0; i < 16; i++) t[i] = pad;
    memcpy(t, p, 4 * (size_t)n); // any address
    return load(t);
}
INLINE void store_n(float *p, v16 x, ptrdiff_t n) {
    float t[16];
    store(t, x);
    for (ptrdiff_t i = 0; i < n; i++) p[i] = t[i];
}

// at and put touch what is left of an array, at most 16 floats.
INLINE v16 at(const float *p, ptrdiff_t left, float pad) { return left >= 16 ? load(p) : load_n(p, left, pad); }
INLINE void put(float *p, v16 x, ptrdiff_t left) {
    if (left >= 16)
        store(p, x);
    else
        store_n(p, x, left);
}

// larger keeps a unless b is larger: a NaN in b is passed over, a NaN in a stays.
INLINE v16 larger(v16 a, v16 b) { return pick(greater(b, a), b, a); }

INLINE f4 halves(f8 x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7); }

// fold4 adds lanes l, l+4, l+8, l+12 as (l + (l+8)) + ((l+4) + (l+12)).
INLINE f4 fold4(v16 x) {
#if VEC_WIDTH == 16
    return halves(__builtin_shufflevector(x.p[0], x.p[0], 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(x.p[0], x.p[0], 8, 9, 10, 11, 12, 13, 14, 15));
#elif VEC_WIDTH == 8
    return halves(x.p[0] + x.p[1]);
#else
    return (x.p[0] + x.p[2]) + (x.p[1] + x.p[3]);
#endif
}

INLINE float sum(v16 x) {
    f4 t = fold4(x);
    return (t[0] + t[2]) + (t[1] + t[3]);
}

// sum4 returns the sums of four vectors, each as sum adds them.
INLINE f4 sum4(v16 a, v16 b, v16 c, v16 d) {
    f4 e = fold4(a), f = fold4(b), g = fold4(c), h = fold4(d);
    f4 x = __builtin_shufflevector(e, f, 0, 1, 4, 5) + __builtin_shufflevector(e, f, 2, 3, 6, 7);
    f4 y = __builtin_shufflevector(g, h, 0, 1, 4, 5) + __builtin_shufflevector(g, h, 2, 3, 6, 7);
    return __builtin_shufflevector(x, y, 0, 2, 4, 6) + __builtin_shufflevector(x, y, 1, 3, 5, 7);
}

INLINE float largest(v16 x) {
    float t[16], m;
    store(t, x);
    m = t[0];
    for (int i = 1; i < 16; i++) m = t[i] > m ? t[i] : m;
    return m;
}

// unlike adds the lanes where x is not y to a mask.
INLINE m16 unlike(m16 m, v16 x, v16 y) {
#define S(i) m.p[i] |= (vi)(x.p[i] != y.p[i]);
    EACH(S)
#undef S
    return m;
}

INLINE int any(m16 m) {
    float t[16];
    uint32_t r = 0;
    v16 f;
#define S(i) f.p[i] = (vf)m.p[i];
    EACH(S)
#undef S
    store(t, f);
    for (int i = 0; i < 16; i++) {
        uint32_t b;
        memcpy(&b, t + i, 4);
        r |= b;
    }
    return r != 0;
}

// vexp is e^x: 2^n times a polynomial in the rest r = x - n ln 2, |r| <= ln 2 / 2. Relative error below 2e-7 where
// -86.9 <= x <= 88.72; 0 below, infinity above, NaN for NaN. Taylor's series to r^6, its terms of r^3 and r^5 corrected
// for r^7 by Chebyshev's polynomial. 2^(n-1) is put together from bits and the polynomial doubled, so that n may be 128.
#define EXP_MIN -86.9f
#define EXP_MAX 88.722839f
INLINE v16 vexp(v16 x) {
    v16 shift = splat(12582912.0f); // 1.5 * 2^23: the sum has units of 1, and n in its low bits
    v16 c = pick(greater(splat(EXP_MIN), x), splat(EXP_MIN), pick(greater(x, splat(EXP_MAX)), splat(EXP_MAX), x));
    v16 t = add(mul(c, splat(1.44269504f)), shift);
    v16 n = sub(t, shift);
    v16 r = sub(sub(c, mul(n, splat(0.693359375f))), mul(n, splat(-2.12194440e-4f))); // ln 2 in two parts, n times the first is exact
    v16 p = add(mul(r, splat(1.0f / 720)), splat(0.00837504f));
    p = add(mul(p, r), splat(1.0f / 24));
    p = add(mul(p, r), splat(0.16666416f));
    p = add(mul(p, r), splat(0.5f));
    p = add(add(mul(p, mul(r, r)), r), splat(1));
    v16 s;
#define S(i) s.p[i] = (vf)(((vi)t.p[i] + (126 - 0x4b400000)) << 23);
    EACH(S)
#undef S
    p = mul(add(p, p), s);
    p = pick(greater(splat(EXP_MIN), x), zero(), p);
    return pick(greater(x, splat(EXP_MAX)), splat(INFINITY), p);
}

INLINE v16 vsigmoid(v16 x) { return quo(splat(1), add(splat(1), vexp(sub(zero(), x)))); }
INLINE v16 vsilu(v16 x) { return quo(x, add(splat(1), vexp(sub(zero(), x)))); }
