// Attention over one kv head's cache, in blocks of 32 absolute positions with a running softmax. What a row gets depends on
// its query, its limit and the borders of the call only: rows share the widened keys and values, never a sum.
//
//   score: one chain of 16 lanes over the components, summed over the lanes as sum does, times scale
//   block: m' = max(m, scores); w = e^(score - m'); sum = sum e^(m - m') + (weights of the block);
//          acc = acc e^(m - m') + (w v added position by position, from 0)
#if VEC_HALF
#include <immintrin.h>
#endif

enum { BLOCK = 32, GROUP = 64, PANEL = 64, SCRATCH = 8192 }; // positions, rows, columns of values, floats (32 KiB: the L1 cache)

// A tile of TILE_R rows by TILE_P positions, or TILE_C chunks of 16 columns, fills the registers.
#if VEC_WIDTH == 16
enum { TILE_R = 4, TILE_P = 4, TILE_C = 4 };
#elif VEC_WIDTH == 8
enum { TILE_R = 2, TILE_P = 2, TILE_C = 2 };
#else
enum { TILE_R = 1, TILE_P = 2, TILE_C = 2 };
#endif

INLINE float half_to_float(uint16_t h) {
    uint32_t x = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float f;
    memcpy(&f, &x, 4);
    f *= 0x1p112f; // moves the exponent's bias; subnormals come out exact
    memcpy(&x, &f, 4);
    if ((h & 0x7c00) == 0x7c00) x |= 0x7f800000;
    x |= sign;
    memcpy(&f, &x, 4);
    return f;
}

// Round to nearest, ties to even.
INLINE uint16_t float_to_half(float f) {
    uint32_t x, sign, e;
    memcpy(&x, &f, 4);
    sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x1ff));
    if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // 65520 and above
    if (x >= 0x38800000) return (uint16_t)(sign | (x + 0xfff + (x >> 13 & 1) - (112u << 23)) >> 13);
    memcpy(&f, &x, 4);
    f += 0.5f; // the last bit of 0.5 is worth the unit of subnormal halves
    memcpy(&e, &f, 4);
    return (uint16_t)(sign | (e - 0x3f000000));
}

INLINE v16 load_half(const uint8_t *p) {
    v16 r;
#if VEC_HALF && VEC_WIDTH == 16
    r.p[0] = (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif VEC_HALF
    r.p[0] = (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    r.p[1] = (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16)));
#else
    uint16_t h[16];
    float t[16];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 16; i++) t[i] = half_to_float(h[i]);
    r = load(t);
#endif
    return r;
}

INLINE v16 load_int8(const uint8_t *p) {
    v16 r;
#if VEC_HALF && VEC_WIDTH == 16
    r.p[0] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif VEC_HALF
    r.p[0] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
    r.p[1] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8))));
#else
    float t[16];
    for (int i = 0; i < 16; i++) t[i] = (float)(int8_t)p[i];
    r = load(t);
#endif
    return r;
}

INLINE void store_half(uint8_t *p, v16 x) {
#if VEC_HALF && VEC_WIDTH == 16
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)x.p[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif VEC_HALF
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)x.p[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((void *)(p + 16), _mm256_cvtps_ph((__m256)x.p[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    uint16_t h[16];
    float t[16];
    store(t, x);
    for (int i = 0; i < 16; i++) h[i] = float_to_half(t[i]);
    memcpy(p, h, sizeof h);
#endif
}

// Blocks of Q8_0: a half d, then 32 signed bytes q; the value is d q.
INLINE void store_q8_0(uint8_t *dst, const float *x) {
    v16 a = load(x), b = load(x + 16), top = larger(larger(a, sub(zero(), a)), larger(b, sub(zero(), b)));
    float amax = largest(top), d = amax / 127, inv = amax == 0 ? 0 : 127 / amax, t[32];
    uint16_t h = float_to_half(d);
    v16 shift = splat(12582912.0f); // rounds to nearest even
    memcpy(dst, &h, 2);
    store(t, sub(add(mul(a, splat(inv)), shift), shift));
    store(t + 16, sub(add(mul(b, splat(inv)), shift), shift));
    for (int i = 0; i < 32; i++) {
        float c = t[i] >= -127 ? t[i] : -127; // a NaN becomes -127
        dst[2 + i] = (uint8_t)(int8_t)(c <= 127 ? c : 127);
    }
}

static void op_store_kv(uint8_t *dst, const float *x, ptrdiff_t n, int type) {
    ptrdiff_t i = 0;
    switch (type) {
    case VEC_F32: memcpy(dst, x, 4 * (size_t)n); break;
    case VEC_F16:
        for (; i + 16 <= n; i += 16) store_half(dst + 2 * i, load(x + i));
        if (i < n) {
            uint8_t t[32];
            store_half(t, load_n(x + i, n - i, 0));
            memcpy(dst + 2 * i, t, 2 * (size_t)(n - i));
        }
        break;
    case VEC_Q8_0:
        for (; i + 32 <= n; i += 32) store_q8_0(dst + i / 32 * 34, x + i);
        break;
    }
}

// widen converts components [c0, c0+n) of rows to floats, ld apart; missing components of the last chunk of 16 become 0.
INLINE void widen_row(float *dst, const uint8_t *src, int type, ptrdiff_t c0, ptrdiff_t n) {
    for (ptrdiff_t c = 0; c < n; c += 16) {
        ptrdiff_t left = n - c;
        if (type == VEC_F32) {
            store(dst + c, at((const float *)(src + 4 * (c0 + c)), left, 0));
        } else if (type == VEC_F16) {
            if (left >= 16) {
                store(dst + c, load_half(src + 2 * (c0 + c)));
                continue;
            }
            uint8_t t[32] = {0};
            memcpy(t, src + 2 * (c0 + c), 2 * (size_t)left);
            store(dst + c, load_half(t));
        } else {
            const uint8_t *b = src + (c0 + c) / 32 * 34;
            uint16_t d;
            memcpy(&d, b, 2);
            store(dst + c, mul(load_int8(b + 2 + (c0 + c) % 32), splat(half_to_float(d))));
        }
    }
}
static void widen(float *dst, ptrdiff_t ld, const uint8_t *src, ptrdiff_t stride, int type, ptrdiff_t rows, ptrdiff_t c0, ptrdiff_t n) {
    for (ptrdiff_t r = 0; r < rows; r++, dst += ld, src += stride) {
        switch (type) {
        case VEC_F32: widen_row(dst, src, VEC_F32, c0, n); break;
        case VEC_F16: widen_row(dst, src, VEC_F16, c0, n); break;
        default: widen_row(dst, src, VEC_Q8_0, c0, n);
        }
    }
}

// score fills s[r*BLOCK + p] for nr rows and TILE_P positions.
INLINE void score(float *s, const float *q, const float *k, ptrdiff_t dk, ptrdiff_t ld, int nr, float scale) {
    v16 t[TILE_R * TILE_P];
    UNROLL for (int i = 0; i < nr * TILE_P; i++) t[i] = zero();
    for (ptrdiff_t c = 0; c + 16 <= dk; c += 16) {
        v16 x[TILE_P];
        UNROLL for (int p = 0; p < TILE_P; p++) x[p] = load(k + p * ld + c);
        UNROLL for (int r = 0; r < nr; r++) {
            v16 y = load(q + r * dk + c);
            UNROLL for (int p = 0; p < TILE_P; p++) t[r * TILE_P + p] = add(t[r * TILE_P + p], mul(y, x[p]));
        }
    }
    if (dk % 16) {
        ptrdiff_t c = dk / 16 * 16;
        UNROLL for (int r = 0; r < nr; r++) {
            v16 y = load_n(q + r * dk + c, dk - c, 0);
            UNROLL for (int p = 0; p < TILE_P; p++) t[r * TILE_P + p] = add(t[r * TILE_P + p], mul(y, load(k + p * ld + c)));
        }
    }
#if VEC_WIDTH == 16
    UNROLL for (int r = 0; r < nr; r++) {
        f4 x = sum4(t[r * TILE_P], t[r * TILE_P + 1], t[r * TILE_P + 2], t[r * TILE_P + 3]) * scale;
        memcpy(s + r * BLOCK, &x, 16);
    }
#else
    UNROLL for (int r = 0; r < nr; r++)
        UNROLL for (int p = 0; p < TILE_P; p++) s[r * BLOCK + p] = sum(t[r * TILE_P + p]) * scale;
#endif
}

// weigh adds w v over the positions each of nr rows sees to TILE_C chunks of its part.
INLINE void weigh(float *part, ptrdiff_t width, const float *w, const int32_t *seen, const float *fade, const float *v, ptrdiff_t left, int nr) {
    v16 t[TILE_R * TILE_C];
    int32_t common = seen[0];
    for (int r = 1; r < nr; r++) common = seen[r] < common ? seen[r] : common;
    UNROLL for (int i = 0; i < nr * TILE_C; i++) t[i] = zero();
    for (int32_t p = 0; p < common; p++) {
        v16 x[TILE_C];
        UNROLL for (int c = 0; c < TILE_C; c++) x[c] = load(v + p * PANEL + 16 * c);
        UNROLL for (int r = 0; r < nr; r++) {
            v16 y = splat(w[r * BLOCK + p]);
            UNROLL for (int c = 0; c < TILE_C; c++) t[r * TILE_C + c] = add(t[r * TILE_C + c], mul(y, x[c]));
        }
    }
    UNROLL for (int r = 0; r < nr; r++) {
        if (seen[r] == 0) continue; // the part stays as it is
        for (int32_t p = common; p < seen[r]; p++)
            UNROLL for (int c = 0; c < TILE_C; c++) t[r * TILE_C + c] = add(t[r * TILE_C + c], mul(splat(w[r * BLOCK + p]), load(v + p * PANEL + 16 * c)));
        v16 f = splat(fade[r]);
        UNROLL for (int c = 0; c < TILE_C; c++) {
            float *a = part + r * width + 16 * c;
            ptrdiff_t n = left - 16 * c;
            if (n > 0) put(a, add(mul(at(a, n, 0), f), t[r * TILE_C + c]), n);
        }
    }
}

// soften turns scores into weights, and renews maximum and sum of each row; fade is e^(old maximum - new).
static void soften(float *s, const int32_t *seen, float *fade, float *part, ptrdiff_t dv, ptrdiff_t rows) {
    float top[GROUP];
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *x = s + r * BLOCK, old = part[r * (dv + 2) + dv];
        for (int p = seen[r]; p < BLOCK; p++) x[p] = -INFINITY;
        float m = largest(larger(larger(splat(-INFINITY), load(x)), load(x + 16)));
        top[r] = m > old ? m : old;
        fade[r] = old - top[r];
    }
    for (ptrdiff_t r = 0; r < rows; r += 16) put(fade + r, vexp(at(fade + r, rows - r, 0)), rows - r);
    for (ptrdiff_t r = 0; r < rows; r++) {
        if (seen[r] == 0) continue;
        float *x = s + r * BLOCK, *p = part + r * (dv + 2) + dv;
        v16 m = splat(top[r]), a = vexp(sub(load(x), m)), b = vexp(sub(load(x + 16), m));
        store(x, a);
        store(x + 16, b);
        p[0] = top[r];
        p[1] = p[1] * fade[r] + sum(add(a, b));
    }
}

// attend_scores computes the scores of n positions for all rows, keys widened once for as many positions as the scratch holds.
static void attend_scores(float *s, const float *q, ptrdiff_t rows, const uint8_t *k, const struct vec_cache *c, ptrdiff_t n, float scale, float *scratch) {
    ptrdiff_t dk = c->dk, ld = (dk + 15) / 16 * 16, step = SCRATCH / ld / 4 * 4;
    for (ptrdiff_t p0 = 0; p0 < n; p0 += step) {
        ptrdiff_t np = n - p0 < step ? n - p0 : step, full = (np + TILE_P - 1) / TILE_P * TILE_P;
        widen(scratch, ld, k + p0 * c->k_stride, c->k_stride, c->k_type, np, 0, dk);
        memset(scratch + np * ld, 0, 4 * (size_t)((full - np) * ld));
        ptrdiff_t r = 0;
        for (; r + TILE_R <= rows; r += TILE_R)
            for (ptrdiff_t p = 0; p < full; p += TILE_P) score(s + r * BLOCK + p0 + p, q + r * dk, scratch + p * ld, dk, ld, TILE_R, scale);
        for (; r < rows; r++)
            for (ptrdiff_t p = 0; p < full; p += TILE_P) score(s + r * BLOCK + p0 + p, q + r * dk, scratch + p * ld, dk, ld, 1, scale);
    }
}

static void attend_values(float *part, const float *w, ptrdiff_t rows, const int32_t *seen, const float *fade, const uint8_t *v, const struct vec_cache *c, ptrdiff_t n, float *scratch) {
    ptrdiff_t dv = c->dv, width = dv + 2;
    for (ptrdiff_t c0 = 0; c0 < dv; c0 += PANEL) {
        ptrdiff_t nc = dv - c0 < PANEL ? dv - c0 : PANEL;
        if (nc < PANEL) memset(scratch, 0, 4 * PANEL * (size_t)n);
        widen(scratch, PANEL, v, c->v_stride, c->v_type, n, c0, nc);
        for (ptrdiff_t col = 0; col < nc; col += 16 * TILE_C) {
            float *a = part + c0 + col;
            ptrdiff_t r = 0;
            for (; r + TILE_R <= rows; r += TILE_R) weigh(a + r * width, width, w + r * BLOCK, seen + r, fade + r, scratch + col, nc - col, TILE_R);
            for (; r < rows; r++) weigh(a + r * width, width, w + r * BLOCK, seen + r, fade + r, scratch + col, nc - col, 1);
        }
    }
}

static void attend_group(float *part, const float *q, ptrdiff_t rows, const int32_t *limit, const uint8_t *k, const uint8_t *v, const struct vec_cache *c, ptrdiff_t from, ptrdiff_t to, float scale) {
    float s[GROUP * BLOCK] __attribute__((aligned(64))), scratch[SCRATCH] __attribute__((aligned(64))), fade[GROUP];
    int32_t seen[GROUP];
    ptrdiff_t end = from;
    for (ptrdiff_t r = 0; r < rows; r++) {
        float *p = part + r * (c->dv + 2);
        memset(p, 0, 4 * (size_t)(c->dv + 2));
        p[c->dv] = -INFINITY;
        end = limit[r] > end ? limit[r] : end;
    }
    end = end < to ? end : to;
    for (ptrdiff_t b = from, n; b < end; b += n) {
        n = BLOCK - b % BLOCK;
        n = n < end - b ? n : end - b;
        for (ptrdiff_t r = 0; r < rows; r++) {
            ptrdiff_t left = limit[r] - b;
            seen[r] = (int32_t)(left < 0 ? 0 : left < n ? left : n);
        }
        attend_scores(s, q, rows, k + b * c->k_stride, c, n, scale, scratch);
        soften(s, seen, fade, part, c->dv, rows);
        attend_values(part, s, rows, seen, fade, v + b * c->v_stride, c, n, scratch);
    }
}

static void op_attend(float *part, const float *q, ptrdiff_t rows, const int32_t *limit, const uint8_t *k, const uint8_t *v, const struct vec_cache *c, ptrdiff_t from, ptrdiff_t to, float scale) {
    for (ptrdiff_t r = 0; r < rows; r += GROUP) {
        ptrdiff_t n = rows - r < GROUP ? rows - r : GROUP;
        attend_group(part + r * (c->dv + 2), q + r * c->dk, n, limit + r, k, v, c, from, to, scale);
    }
}

INLINE float exp1(float x) {
    float t[16];
    store(t, vexp(splat(x)));
    return t[0];
}

// op_merge joins the parts of one row, stride floats apart: out = sum of acc e^(m - M) / sum of sum e^(m - M), in order. The
// sink, where there is one, is one more score without a value.
static void op_merge(float *out, const float *parts, ptrdiff_t count, ptrdiff_t stride, ptrdiff_t dv, const float *sink) {
    float top = sink ? *sink : -INFINITY, weight = 0;
    for (ptrdiff_t i = 0; i < count; i++) top = parts[i * stride + dv] > top ? parts[i * stride + dv] : top;
    for (ptrdiff_t c = 0; c < dv; c += 16) put(out + c, zero(), dv - c);
    for (ptrdiff_t i = 0; i < count; i++) {
        const float *p = parts + i * stride;
        if (p[dv + 1] == 0) continue; // saw no position
        float e = exp1(p[dv] - top);
        weight += p[dv + 1] * e;
        op_add_scaled(out, p, dv, e);
    }
    if (sink) weight += exp1(*sink - top);
    if (weight != 0) op_scale(out, dv, 1 / weight);
}
