// The wide shape in AVX-512: 16 columns to a vector.
#define LANES 16
typedef int32_t vi __attribute__((vector_size(64), may_alias));
typedef float vf __attribute__((vector_size(64), may_alias));

INLINE vi spread(const void *p, const int D) {
    uint64_t two;
    if (D == 4) return (vi)_mm512_broadcast_i32x4(_mm_loadu_si128(p));
    if (D == 1) return (vi)_mm512_set1_epi32((int)word32(p));
    memcpy(&two, p, 8);
    return (vi)_mm512_set1_epi64((long long)two);
}

// Products of unsigned codes (128 is added to signed ones) go straight to sums of 32 bits.
enum { EXCESS_ANY = 1 };
INLINE vi dot(vi p, vi u, vi x, const int any) { return (void)any, (vi)_mm512_dpbusd_epi32((__m512i)p, (__m512i)u, (__m512i)x); }
INLINE vi dot_first(vi u, vi x, const int any) { return dot((vi){0}, u, x, any); }
INLINE vi fold(vi sum, vi p, vi scale, const int any) { return (void)any, sum + p * scale; }
INLINE vi plus(vi sum, vi p, const int any) { return (void)any, sum + p; }
INLINE vi muladd(vi sum, vi a, vi b) { return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b); }
INLINE vf fused(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vf fused_minus(vf a, vf b, vf c) { return (vf)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#include "wide.h"

// D rows: their four integers each become four (D = 4) or two times two (D = 2) of all, as place() says.
INLINE void interleave(const uint8_t (*rows)[ROW_BYTES], uint8_t (*to)[ROW_BYTES], const int D) {
#pragma GCC unroll 6
    for (int i = 0; i < ROW_BYTES; i += 64) { // unrolled, so that rows stay in registers
        __m512i a = _mm512_load_si512(rows[0] + i), b = _mm512_load_si512(rows[1] + i);
        __m512i lo = _mm512_unpacklo_epi32(a, b), hi = _mm512_unpackhi_epi32(a, b);
        if (D == 2) {
            _mm512_store_si512(to[0] + i, lo), _mm512_store_si512(to[1] + i, hi);
            continue;
        }
        __m512i c = _mm512_load_si512(rows[2] + i), d = _mm512_load_si512(rows[3] + i);
        __m512i lo2 = _mm512_unpacklo_epi32(c, d), hi2 = _mm512_unpackhi_epi32(c, d);
        _mm512_store_si512(to[0] + i, _mm512_unpacklo_epi64(lo, lo2));
        _mm512_store_si512(to[1] + i, _mm512_unpackhi_epi64(lo, lo2));
        _mm512_store_si512(to[2] + i, _mm512_unpacklo_epi64(hi, hi2));
        _mm512_store_si512(to[3] + i, _mm512_unpackhi_epi64(hi, hi2));
    }
}

VALUES_K(values_q4_k, 8, 8, 0, 12, 144)
VALUES_K(values_q5_k, 8, 8, 0, 13, 176)
VALUES_K(values_q6_k, 4, 4, 0, 14, 210)
VALUES_K(values_by_16, 4, 4, 0, 0, 0)
VALUES_32(values_q8_0, 8, 0, 8, 272)
VALUES_32(values_32, 8, 0, 0, 0)

INLINE void store_codes(uint8_t *u, const __m512i a[4]) {
    for (int i = 0; i < 4; i++) _mm512_store_si512(u + 64 * i, a[i]);
}

INLINE void panel_q45_k(const char *q, uint8_t *row, panel *t, int r, const int five) {
    const __m512i low = _mm512_set1_epi8(15);
    __m128i sc = _mm512_castsi512_si128(q4k_scales(_mm512_castsi128_si512(_mm_loadu_si128((const void *)q))));
    _mm512_store_si512(row + 4 * SCALES, _mm512_cvtepu8_epi32(sc));
    _mm512_store_si512(row + 4 * MINS, _mm512_zextsi128_si512(_mm_cvtepu8_epi16(_mm_srli_si128(sc, 8))));
    t->d[r] = _cvtsh_ss(word16(q)), t->dmin[r] = _cvtsh_ss(word16(q + 2));
    __m512i h = _mm512_setzero_si512();
    if (five) h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(q + 16)));
    for (int n = 0; n < 2; n++) { // groups of 32: 0 2 in the low nibbles, 1 3 in the high ones
        __m512i v = _mm512_loadu_si512(q + (five ? 48 : 16) + 64 * n);
        __m512i a = _mm512_and_si512(v, low), b = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        if (five) a = n ? fifth(a, h, 0, 62) : fifth(a, h, 4, 2), b = n ? fifth(b, h, 63, 61) : fifth(b, h, 3, 1);
        _mm512_store_si512(row + 128 * n, _mm512_shuffle_i64x2(a, b, 0x44));
        _mm512_store_si512(row + 128 * n + 64, _mm512_shuffle_i64x2(a, b, 0xee));
    }
}
INLINE void panel_q4_k(const char *q, uint8_t *row, panel *t, int r) { panel_q45_k(q, row, t, r, 0); }
INLINE void panel_q5_k(const char *q, uint8_t *row, panel *t, int r) { panel_q45_k(q, row, t, r, 1); }

// 16 << excess is what was added to the codes.
INLINE void store_16(uint8_t *row, const __m512i a[4], __m256i sc, const int excess) {
    store_codes(row, a);
    _mm512_store_si512(row + 4 * SCALES, _mm512_cvtepi16_epi32(sc));
    _mm512_store_si512(row + 4 * MINS, _mm512_zextsi256_si512(_mm256_slli_epi16(sc, excess)));
}

// at: where the scale is, in half precision.
#define PANEL_16(name, load, excess, at)                                                                       \
    INLINE void panel_##name(const char *q, uint8_t *row, panel *t, int r) {                                                 \
        __m512i a[4];                                                                                          \
        __m256i sc;                                                                                            \
        load(q, a, &sc);                                                                                       \
        store_16(row, a, sc, excess);                                                                    \
        t->d[r] = _cvtsh_ss(word16(q + at));                                                                   \
    }
PANEL_16(q3_k, load_q3_k, 0, 108)
PANEL_16(q6_k, load_q6_k, 1, 208)
PANEL_16(iq4_xs, load_iq4_xs, 3, 0)
PANEL_16(q2_codes, load_q2_k, 0, 80)

INLINE void panel_q2_k(const char *q, uint8_t *row, panel *t, int r) {
    panel_q2_codes(q, row, t, r);
    t->dmin[r] = _cvtsh_ss(word16(q + 82));
    __m256i mins = _mm256_srli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)q)), 4);
    _mm512_store_si512(row + 4 * MINS, _mm512_zextsi256_si512(mins));
}

INLINE void panel_book(const block_k *b, uint8_t *row, panel *t, int r) {
    __m512i a[4];
    for (int i = 0; i < 4; i++) a[i] = _mm512_xor_si512(_mm512_load_si512(b->q + 64 * i), _mm512_set1_epi8((char)0x80));
    store_16(row, a, _mm256_loadu_si256((const void *)b->scale), 3);
    t->d[r] = b->d;
}

// ---- blocks of 32 ------------------------------------------------------------------------------------------------------

// Eight scales and eight mins. Panels are stored by whole vectors, since interleave loads them so, soon after.
INLINE void store_floats(uint8_t *row, __m256 d, __m256 m) {
    _mm512_store_ps(row + 4 * SCALES_32, _mm512_insertf32x8(_mm512_castps256_ps512(d), m, 1));
    _mm512_store_si512(row + 4 * SCALES_32 + 64, _mm512_setzero_si512());
}

INLINE void panel_q8_0(const char *p, uint8_t *row, panel *t, int r) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, p += 68) {
        __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(p + 2)));
        a = _mm512_inserti64x4(a, _mm256_loadu_si256((const void *)(p + 36)), 1);
        _mm512_store_si512(row + 64 * i, _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)));
    }
    store_floats(row, halves8(p - 272, 34), _mm256_setzero_ps());
}

// The codes as nibbles leaves them: first halves of four blocks, then second halves.
INLINE void store_halves(uint8_t *u, const __m512i a[4]) {
    for (int i = 0; i < 2; i++) {
        __m512i lo = a[2 * i], hi = a[2 * i + 1];
        _mm512_store_si512(u + 128 * i, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), hi));
        _mm512_store_si512(u + 128 * i + 64, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), hi));
    }
}

#define PANEL_NIBBLES(name, load, scales, mins)                                                                \
    INLINE void panel_##name(const char *p, uint8_t *row, panel *t, int r) {                                                 \
        __m512i a[4];                                                                                          \
        load;                                                                                                  \
        store_halves(row, a);                                                                            \
        store_floats(row, scales, mins);                                                                 \
    }
PANEL_NIBBLES(q4_0, nibbles(p + 2, 18, a), halves8(p, 18), _mm256_setzero_ps())
PANEL_NIBBLES(q4_1, nibbles(p + 4, 20, a), halves8(p, 20), halves8(p + 2, 20))
PANEL_NIBBLES(q5_0, (nibbles(p + 6, 22, a), fifth_bits(p + 2, 22, a)), halves8(p, 22), _mm256_setzero_ps())
PANEL_NIBBLES(q5_1, (nibbles(p + 8, 24, a), fifth_bits(p + 4, 24, a)), halves8(p, 24), halves8(p + 2, 24))
PANEL_NIBBLES(iq4_nl, (nibbles(p + 2, 18, a), by_book(a, book(codes_iq4))), halves8(p, 18), _mm256_setzero_ps())
PANEL_NIBBLES(mxfp4, (nibbles(p + 1, 17, a), by_book(a, book(codes_fp4))), e8m0(p), _mm256_setzero_ps())

PANEL_ROW

WIDE_K(q2_k, 10, 84, values_by_16, 1, 1)
WIDE_K(q3_k, 11, 110, values_by_16, 1, 0)
WIDE_K(q4_k, 12, 144, values_q4_k, 0, 1)
WIDE_K(q5_k, 13, 176, values_q5_k, 0, 1)
WIDE_K(q6_k, 14, 210, values_q6_k, 0, 0)
WIDE_K(iq4_xs, 23, 136, values_by_16, 1, 0)
WIDE_BOOKS(values_by_16)
WIDE_32(q8_0, 8, 272, values_q8_0, 0, 0, 128)
WIDE_32(q4_0, 2, 144, values_32, 1, 0, 8)
WIDE_32(q4_1, 3, 160, values_32, 1, 1, 0)
WIDE_32(q5_0, 6, 176, values_32, 1, 0, 16)
WIDE_32(q5_1, 7, 192, values_32, 1, 1, 0)
WIDE_32(iq4_nl, 20, 144, values_32, 1, 0, 128)
WIDE_32(mxfp4, 39, 136, values_32, 1, 0, 128)
