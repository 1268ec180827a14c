// The wide shape in AVX2: 8 columns to a vector. With AVX-VNNI products go straight to sums of 32 bits. Without, they go
// to words, where they must not saturate: the pairs of two groups of codes up to 63, of four up to 31 or of eight up to 15
// are summed there before they are multiplied by the scale; codes of any size are widened to words first.
#define LANES 8
typedef int32_t vi __attribute__((vector_size(32), may_alias));
typedef float vf __attribute__((vector_size(32), may_alias));

INLINE vi spread(const void *p, const int D) {
    uint64_t two;
    if (D == 1) return (vi)_mm256_set1_epi32((int)word32(p));
    memcpy(&two, p, 8);
    return (vi)_mm256_set1_epi64x((long long)two);
}

#if VNNI
enum { EXCESS_ANY = 1 };
INLINE vi dot(vi p, vi u, vi x, const int any) { return (void)any, (vi)_mm256_dpbusd_avx_epi32((__m256i)p, (__m256i)u, (__m256i)x); }
INLINE vi dot_first(vi u, vi x, const int any) { return dot((vi){0}, u, x, any); }
INLINE vi fold(vi sum, vi p, vi scale, const int any) { return (void)any, sum + p * scale; }
INLINE vi plus(vi sum, vi p, const int any) { return (void)any, sum + p; }
#else
enum { EXCESS_ANY = 0 };
INLINE __m256i even(vi v) { return _mm256_srai_epi16(_mm256_slli_epi16((__m256i)v, 8), 8); }
INLINE __m256i odd(vi v) { return _mm256_srai_epi16((__m256i)v, 8); }
INLINE vi dot_first(vi u, vi x, const int any) {
    if (any) return (vi)_mm256_add_epi32(_mm256_madd_epi16(even(u), even(x)), _mm256_madd_epi16(odd(u), odd(x)));
    return (vi)_mm256_maddubs_epi16((__m256i)u, (__m256i)x);
}
INLINE vi dot(vi p, vi u, vi x, const int any) {
    vi q = dot_first(u, x, any), sum = (vi)_mm256_add_epi16((__m256i)p, (__m256i)q);
    if (any) sum = p + q;
    __asm__("" : "+x"(sum)); // one after the other: the compiler would keep all products, on the stack, and add them in pairs
    return sum;
}
INLINE vi fold(vi sum, vi p, vi scale, const int any) {
    if (any) return sum + p * scale;
    return sum + (vi)_mm256_madd_epi16((__m256i)p, (__m256i)scale);
}
INLINE vi plus(vi sum, vi p, const int any) {
    if (any) return sum + p;
    return sum + (vi)_mm256_madd_epi16((__m256i)p, _mm256_set1_epi16(1));
}
#endif
INLINE vi muladd(vi sum, vi a, vi b) { return (vi)MULADD((__m256i)sum, (__m256i)a, (__m256i)b); }
INLINE vf fused(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf fused_minus(vf a, vf b, vf c) { return (vf)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#include "wide.h"

// Two rows: two integers of one, two of the other, as place() says.
INLINE void interleave(const uint8_t (*rows)[ROW_BYTES], uint8_t (*to)[ROW_BYTES], const int D) {
    (void)D;
#pragma GCC unroll 1
    for (int i = 0; i < ROW_BYTES; i += 32) {
        __m256i a = _mm256_load_si256((const void *)(rows[0] + i)), b = _mm256_load_si256((const void *)(rows[1] + i));
        _mm256_store_si256((void *)(to[0] + i), _mm256_unpacklo_epi32(a, b));
        _mm256_store_si256((void *)(to[1] + i), _mm256_unpackhi_epi32(a, b));
    }
}

#if VNNI
VALUES_K(values_by_32, 8, 8, 0, 0, 0)
VALUES_K(values_by_16, 4, 4, 0, 0, 0)
VALUES_32(values_32, 8, 0, 0, 0)
#define values_q4_k values_by_32
#define values_book values_by_16
#define values_any values_by_16
#define values_32_any values_32
#else
VALUES_K(values_q4_k, 8, 8, 0, 0, 0)
VALUES_K(values_by_32, 8, 4, 0, 0, 0)
VALUES_K(values_by_16, 4, 2, 0, 0, 0)
VALUES_K(values_book, 4, 1, 0, 0, 0)
VALUES_K(values_any, 4, 4, 1, 0, 0)
VALUES_32(values_32, 4, 0, 0, 0)
VALUES_32(values_32_any, 8, 1, 0, 0)
#endif

// Scales as fold wants them: integers, or the same word twice.
INLINE __m256i scale_pairs(__m256i s, const int any) {
    return VNNI || any ? s : _mm256_or_si256(_mm256_and_si256(s, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(s, 16));
}

INLINE void panel_q45_k(const char *q, uint8_t *row, panel *t, int r, const int five) {
    __m128i sc = q4k_scales(q);
    _mm256_store_si256((void *)(row + 4 * SCALES), scale_pairs(_mm256_cvtepu8_epi32(sc), 0));
    _mm_store_si128((void *)(row + 4 * MINS), _mm_cvtepu8_epi16(_mm_srli_si128(sc, 8)));
    t->d[r] = _cvtsh_ss(word16(q)), t->dmin[r] = _cvtsh_ss(word16(q + 2));
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i a[2];
        load_q45_k(q, j, a, five);
        _mm256_store_si256((void *)(row + 64 * j), a[0]);
        _mm256_store_si256((void *)(row + 64 * j + 32), a[1]);
    }
}
INLINE void panel_q4_k(const char *q, uint8_t *row, panel *t, int r) { panel_q45_k(q, row, t, r, 0); }
INLINE void panel_q5_k(const char *q, uint8_t *row, panel *t, int r) { panel_q45_k(q, row, t, r, 1); }

// 16 << excess is what was added to the codes.
INLINE void store_16(uint8_t *row, const __m256i a[8], __m256i sc, const int excess, const int any) {
    for (int i = 0; i < 8; i++) _mm256_store_si256((void *)(row + 32 * i), a[i]);
    _mm256_store_si256((void *)(row + 4 * SCALES), scale_pairs(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sc)), any));
    _mm256_store_si256((void *)(row + 4 * SCALES + 32), scale_pairs(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(sc, 1)), any));
    _mm256_store_si256((void *)(row + 4 * MINS), _mm256_slli_epi16(sc, excess));
}

// at: where the scale is, in half precision.
#define PANEL_16(name, load, excess, at)                                                                       \
    INLINE void panel_##name(const char *q, uint8_t *row, panel *t, int r) {                                                 \
        __m256i a[8], sc;                                                                                      \
        load(q, a, &sc);                                                                                       \
        store_16(row, a, sc, excess, 0);                                                                  \
        t->d[r] = _cvtsh_ss(word16(q + at));                                                                   \
    }
PANEL_16(q3_k, load_q3_k, 0, 108)
PANEL_16(q6_k, load_q6_k, 1, 208)
PANEL_16(q2_codes, load_q2_k, 0, 80)

INLINE void panel_q2_k(const char *q, uint8_t *row, panel *t, int r) {
    panel_q2_codes(q, row, t, r);
    t->dmin[r] = _cvtsh_ss(word16(q + 82));
    _mm256_store_si256((void *)(row + 4 * MINS), _mm256_srli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)q)), 4));
}

// Codes of any size: 128 more of them where products are of unsigned codes.
INLINE __m256i any_codes(__m256i a) { return VNNI ? _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80)) : a; }

INLINE void panel_book(const block_k *b, uint8_t *row, panel *t, int r) { // codes are below 64 in magnitude
    __m256i a[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_add_epi8(_mm256_load_si256((const void *)(b->q + 32 * i)), _mm256_set1_epi8(64));
    store_16(row, a, _mm256_loadu_si256((const void *)b->scale), 2, 0);
    t->d[r] = b->d;
}

INLINE void panel_iq4_xs(const char *q, uint8_t *row, panel *t, int r) {
    block_k b;
    __m256i a[8];
    codes_iq4_xs((const uint8_t *)q, &b);
    for (int i = 0; i < 8; i++) a[i] = any_codes(_mm256_load_si256((const void *)(b.q + 32 * i)));
    store_16(row, a, _mm256_loadu_si256((const void *)b.scale), 3, 1);
    t->d[r] = b.d;
}

// code: the 32 codes of the block at q.
#define PANEL_BLOCKS(name, size, code, scales, mins)                                                               \
    INLINE void panel_##name(const char *p, uint8_t *row, panel *t, int r) {                                                 \
        for (int b = 0; b < 8; b++) {                                                                          \
            const char *q = p + b * (size / 8);                                                                \
            _mm256_store_si256((void *)(row + 32 * b), code);                                            \
        }                                                                                                      \
        _mm256_store_ps((void *)(row + 4 * SCALES_32), scales);                                          \
        _mm256_store_ps((void *)(row + 4 * MINS_32), mins);                                              \
    }
PANEL_BLOCKS(q8_0, 272, any_codes(_mm256_loadu_si256((const void *)(q + 2))), halves8(p, 34), _mm256_setzero_ps())
PANEL_BLOCKS(q4_0, 144, nibbles(q + 2), halves8(p, 18), _mm256_setzero_ps())
PANEL_BLOCKS(q4_1, 160, nibbles(q + 4), halves8(p, 20), halves8(p + 2, 20))
PANEL_BLOCKS(q5_0, 176, _mm256_or_si256(nibbles(q + 6), fifth_bits(q + 2)), halves8(p, 22), _mm256_setzero_ps())
PANEL_BLOCKS(q5_1, 192, _mm256_or_si256(nibbles(q + 8), fifth_bits(q + 4)), halves8(p, 24), halves8(p + 2, 24))
PANEL_BLOCKS(iq4_nl, 144, any_codes(by_book(codes_iq4, nibbles(q + 2))), halves8(p, 18), _mm256_setzero_ps())
PANEL_BLOCKS(mxfp4, 136, _mm256_add_epi8(by_book(codes_fp4, nibbles(q + 1)), _mm256_set1_epi8(12)), e8m0(p), _mm256_setzero_ps())

PANEL_ROW

WIDE_K(q2_k, 10, 84, values_by_16, 1, 1)
WIDE_K(q3_k, 11, 110, values_by_16, 1, 0)
WIDE_K(q4_k, 12, 144, values_q4_k, 1, 1)
WIDE_K(q5_k, 13, 176, values_by_32, 1, 1)
WIDE_K(q6_k, 14, 210, values_by_16, 1, 0)
WIDE_K(iq4_xs, 23, 136, values_any, 1, 0)
WIDE_BOOKS(values_book)
WIDE_32(q8_0, 8, 272, values_32_any, 1, 0, VNNI ? 128 : 0)
WIDE_32(q4_0, 2, 144, values_32, 1, 0, 8)
WIDE_32(q4_1, 3, 160, values_32, 1, 1, 0)
WIDE_32(q5_0, 6, 176, values_32, 1, 0, 16)
WIDE_32(q5_1, 7, 192, values_32, 1, 1, 0)
WIDE_32(iq4_nl, 20, 144, values_32_any, 1, 0, VNNI ? 128 : 0)
WIDE_32(mxfp4, 39, 136, values_32, 1, 0, 12)
