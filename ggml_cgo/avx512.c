//go:build amd64

// AVX-512 with VNNI, on the blocks as the file holds them. Two shapes:
//   rows: four super-blocks (or eight blocks of 32) of one row times 1 to 4 columns, unpacked in registers.
//   wide: lane = column, 16 or 32 columns; weights unpacked to the first-level cache and broadcast (wide512.h).
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#include <immintrin.h>
#define AHEAD 8192
#define FLOAT_ROWS 4
#define FLOAT_COLS 3
#define FLOAT_LANES 16
#define LOAD_F16(p) ((fv)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p))))
#include "plain.h"
#include "quantize.h"
#include "floats.h"
#include "rows.h"

// Sums of the 16 lanes of a, b, c, d, as four lanes.
INLINE __m128i sum4(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i t = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
}

INLINE __m512i load4(const void *a, const void *b, const void *c, const void *d) { // 16 bytes of each of four rows
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(a));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(d), 3);
}

// Q4_K headers of four rows -> per 128-bit lane: 8 scales, 8 mins, one byte each.
INLINE __m512i q4k_scales(__m512i head) {
    const __m512i pick = _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i high = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    const __m512i shift = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 0, 4));
    const __m512i keep = _mm512_broadcast_i32x4(_mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    __m512i a = _mm512_srlv_epi32(_mm512_shuffle_epi8(head, pick), shift);
    __m512i b = _mm512_srli_epi32(_mm512_shuffle_epi8(head, high), 2);
    return _mm512_and_si512(_mm512_ternarylogic_epi32(keep, a, b, 0xca), _mm512_set1_epi8(0x3f)); // keep ? a : b
}

INLINE __m512i pair_index(int lo, int hi) { // byte lo to the words of the lower half, byte hi to those of the upper half
    __m256i a = _mm256_set1_epi16((short)(0x8000 | lo)), b = _mm256_set1_epi16((short)(0x8000 | hi));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// a, with bit 4 of h rotated left: by lo in the lower half, by hi in the upper one.
INLINE __m512i fifth(__m512i a, __m512i h, int lo, int hi) {
    h = _mm512_rolv_epi64(h, _mm512_setr_epi64(lo, lo, lo, lo, hi, hi, hi, hi));
    return _mm512_ternarylogic_epi32(a, h, _mm512_set1_epi8(16), 0xf8); // a | (h & 16)
}

// Four super-blocks at p[0..3] times C columns: v[c] = their four values. With rows of four super-blocks or more, p[] is one
// sequential stream, which is what the hardware prefetcher wants; four rows side by side cost a third of the DRAM speed.
INLINE void q45_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4], const int five) {
    const __m512i low = _mm512_set1_epi8(15), zero = _mm512_setzero_si512();
    const __m512i i0 = pair_index(0, 2), i1 = pair_index(1, 3), i2 = pair_index(4, 6), i3 = pair_index(5, 7);
    const __m512i dpos = _mm512_castsi128_si512(_mm_setr_epi16(0, 8, 16, 24, 1, 9, 17, 25));
    const __m512i mpos = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    __m512i head = load4(p[0], p[1], p[2], p[3]), sc = q4k_scales(head);
    __m256 dm = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(dpos, head)));
    __m512i mins = _mm512_unpackhi_epi8(sc, zero), sum[4][4];
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        __m512i own = s == 0 ? _mm512_shuffle_i32x4(sc, sc, 0x00) : s == 1 ? _mm512_shuffle_i32x4(sc, sc, 0x55)
                    : s == 2 ? _mm512_shuffle_i32x4(sc, sc, 0xaa) : _mm512_shuffle_i32x4(sc, sc, 0xff);
        __m512i k0 = _mm512_shuffle_epi8(own, i0), k1 = _mm512_shuffle_epi8(own, i1);
        __m512i k2 = _mm512_shuffle_epi8(own, i2), k3 = _mm512_shuffle_epi8(own, i3);
        const char *q = p[s] + (five ? 48 : 16);
        __m512i w0 = _mm512_loadu_si512(q), w1 = _mm512_loadu_si512(q + 64);
        __m512i a0 = _mm512_and_si512(w0, low), a1 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), low);
        __m512i a2 = _mm512_and_si512(w1, low), a3 = _mm512_and_si512(_mm512_srli_epi16(w1, 4), low);
        if (five) { // bit n of 32 bytes belongs to group n: to place 4, by rotation
            __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(p[s] + 16)));
            a0 = fifth(a0, h, 4, 2), a1 = fifth(a1, h, 3, 1), a2 = fifth(a2, h, 0, 62), a3 = fifth(a3, h, 63, 61);
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            const int8_t *a = x[c][g].p[s];
            __m512i t = _mm512_madd_epi16(_mm512_maddubs_epi16(a0, _mm512_load_si512(a)), k0);
            t = _mm512_dpwssd_epi32(t, _mm512_maddubs_epi16(a1, _mm512_load_si512(a + 64)), k1);
            t = _mm512_dpwssd_epi32(t, _mm512_maddubs_epi16(a2, _mm512_load_si512(a + 128)), k2);
            sum[s][c] = _mm512_dpwssd_epi32(t, _mm512_maddubs_epi16(a3, _mm512_load_si512(a + 192)), k3);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        __m128i isum = sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
        __m512i m = _mm512_madd_epi16(mins, _mm512_load_si512(x[c][g].s32));
        m = _mm512_add_epi32(m, _mm512_shuffle_epi32(m, 0x4e));
        m = _mm512_add_epi32(m, _mm512_shuffle_epi32(m, 0xb1));
        __m128i msum = _mm512_castsi512_si128(_mm512_permutexvar_epi32(mpos, m));
        __m128 dx = _mm_load_ps(x[c][g].d);
        __m128 dw = _mm_mul_ps(_mm256_castps256_ps128(dm), dx), dmin = _mm_mul_ps(_mm256_extractf128_ps(dm, 1), dx);
        v[c] = _mm_fnmadd_ps(dmin, _mm_cvtepi32_ps(msum), _mm_mul_ps(dw, _mm_cvtepi32_ps(isum)));
    }
}

INLINE void q4_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) { q45_k_group(p, x, C, g, v, 0); }
INLINE void q5_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) { q45_k_group(p, x, C, g, v, 1); }
ROWS_K(q4_k_rows, q4_k_group, 144)
ROWS_K(q5_k_rows, q5_k_group, 176)

// ---- formats with a scale per 16 weights -----------------------------------------------------------------------------
// load(p, a, &sc): 256 codes above 0 in natural order, 16 scales as words.

INLINE void load_q6_k(const char *q, __m512i a[4], __m256i *sc) {
    const __m512i low = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63);
    const __m512i left = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), right = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    *sc = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(q + 192)));
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++) {
        __m512i ql = _mm512_loadu_si512(q + 64 * n);
        __m512i qh = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(q + 128 + 32 * n)));
        __m512i h0 = _mm512_sllv_epi64(qh, left), h1 = _mm512_srlv_epi64(qh, right);
        a[2 * n] = _mm512_and_si512(_mm512_ternarylogic_epi32(low, ql, h0, 0xca), six);
        a[2 * n + 1] = _mm512_and_si512(_mm512_ternarylogic_epi32(low, _mm512_srli_epi16(ql, 4), h1, 0xca), six);
    }
}

// Bits 2n and 2n + 1 of 32 bytes, n = 0, 1 in a[0] and n = 2, 3 in a[1].
INLINE void pairs_of_bits(const char *q, __m512i a[2]) {
    const __m512i two = _mm512_set1_epi8(3);
    __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)q));
    a[0] = _mm512_and_si512(_mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2)), two);
    a[1] = _mm512_and_si512(_mm512_srlv_epi64(v, _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6)), two);
}

INLINE void load_q2_k(const char *q, __m512i a[4], __m256i *sc) {
    *sc = _mm256_and_si256(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)q)), _mm256_set1_epi16(15));
    pairs_of_bits(q + 16, a);
    pairs_of_bits(q + 48, a + 2);
}

// Codes are -4 to 3; 16 more than that, so that the sums of 16 correct them as they are.
INLINE void load_q3_k(const char *q, __m512i a[4], __m256i *sc) {
    uint32_t s[3], even = 0x0f0f0f0f, high = 0x03030303;
    memcpy(s, q + 96, 12);
    __m128i scales = _mm_setr_epi32((int)((s[0] & even) | (s[2] & high) << 4), (int)((s[1] & even) | (s[2] >> 2 & high) << 4),
                                    (int)((s[0] >> 4 & even) | (s[2] >> 4 & high) << 4), (int)((s[1] >> 4 & even) | (s[2] >> 6 & high) << 4));
    *sc = _mm256_sub_epi16(_mm256_cvtepu8_epi16(scales), _mm256_set1_epi16(32));
    __m512i h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)q)), four = _mm512_set1_epi8(4), twelve = _mm512_set1_epi8(12);
    pairs_of_bits(q + 32, a);
    pairs_of_bits(q + 64, a + 2);
    const __m512i left[4] = {_mm512_setr_epi64(2, 2, 2, 2, 1, 1, 1, 1), _mm512_setr_epi64(0, 0, 0, 0, 63, 63, 63, 63),
                             _mm512_setr_epi64(62, 62, 62, 62, 61, 61, 61, 61), _mm512_setr_epi64(60, 60, 60, 60, 59, 59, 59, 59)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) // bit 2i or 2i + 1 of each byte to place 2
        a[i] = _mm512_add_epi8(_mm512_ternarylogic_epi32(four, _mm512_rolv_epi64(h, left[i]), a[i], 0xea), twelve); // (four & h) | a
}

INLINE __m512i book(const int8_t *codes) { // a code book of 16, 128 added
    return _mm512_broadcast_i32x4(_mm_xor_si128(_mm_loadu_si128((const void *)codes), _mm_set1_epi8((char)0x80)));
}

INLINE void load_iq4_xs(const char *q, __m512i a[4], __m256i *sc) {
    const __m512i low = _mm512_set1_epi8(15), codes = book(codes_iq4);
    uint32_t h = word16(q + 2), l = word32(q + 4);
    __m256i lo = _mm256_srlv_epi32(_mm256_set1_epi32((int)l), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i hi = _mm256_slli_epi32(_mm256_srlv_epi32(_mm256_set1_epi32((int)h), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)), 4);
    __m256i s = _mm256_or_si256(_mm256_and_si256(lo, _mm256_set1_epi32(15)), _mm256_and_si256(hi, _mm256_set1_epi32(48)));
    s = _mm256_sub_epi32(s, _mm256_set1_epi32(32)); // one per 32 weights, used for both 16
    *sc = _mm256_or_si256(_mm256_and_si256(s, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(s, 16));
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++) {
        __m512i v = _mm512_loadu_si512(q + 8 + 64 * n); // four blocks of 16 bytes: low nibbles first, then high ones
        __m512i lo4 = _mm512_shuffle_epi8(codes, _mm512_and_si512(v, low)), hi4 = _mm512_shuffle_epi8(codes, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
        a[2 * n] = _mm512_permutex2var_epi64(lo4, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), hi4);
        a[2 * n + 1] = _mm512_permutex2var_epi64(lo4, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), hi4);
    }
}

#define ONES 0x0001000100010001

// One super-block times C columns, in 16 sums each. bias: sixteenths of what load added to the codes. small: codes are
// at most 127, so that the products of a pair fit 16 bits.
INLINE void dot_16(const __m512i a[4], __m256i sc, const act_k *const *x, const int C, int g, int s, const int bias, const int small, __m512i sum[4]) {
    __m512i k[4], shift = _mm512_zextsi256_si512(_mm256_mullo_epi16(sc, _mm256_set1_epi16(bias)));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int e = 4 * i;
        k[i] = small ? _mm512_permutexvar_epi16(_mm512_setr_epi64(e * ONES, e * ONES, (e + 1) * ONES, (e + 1) * ONES, (e + 2) * ONES, (e + 2) * ONES,
                                                                  (e + 3) * ONES, (e + 3) * ONES), _mm512_castsi256_si512(sc))
                     : _mm512_permutexvar_epi32(_mm512_setr_epi32(e, e, e, e, e + 1, e + 1, e + 1, e + 1, e + 2, e + 2, e + 2, e + 2,
                                                                  e + 3, e + 3, e + 3, e + 3), _mm512_cvtepi16_epi32(sc));
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        const int8_t *b = x[c][g].q[s];
        __m512i t = _mm512_madd_epi16(shift, _mm512_zextsi256_si512(_mm256_load_si256((const void *)x[c][g].s16[s])));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            t = small ? _mm512_dpwssd_epi32(t, _mm512_maddubs_epi16(a[i], _mm512_load_si512(b + 64 * i)), k[i])
                      : _mm512_add_epi32(t, _mm512_mullo_epi32(k[i], _mm512_dpbusd_epi32(_mm512_setzero_si512(), a[i], _mm512_load_si512(b + 64 * i))));
        sum[c] = t;
    }
}

INLINE __m128 halves(const char *const p[4], int at) {
    return _mm_cvtph_ps(_mm_setr_epi16((short)word16(p[0] + at), (short)word16(p[1] + at), (short)word16(p[2] + at), (short)word16(p[3] + at), 0, 0, 0, 0));
}

// scales: the floats of the four blocks at p.
#define GROUP_16(name, size, bias, small, scales)                                                                         \
    INLINE void name##_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) {            \
        __m512i sum[4][4];                                                                                                \
        _Pragma("GCC unroll 4") for (int s = 0; s < 4; s++) {                                                             \
            __m512i a[4];                                                                                                 \
            __m256i sc;                                                                                                   \
            load_##name(p[s], a, &sc);                                                                                    \
            dot_16(a, sc, x, C, g, s, bias, small, sum[s]);                                                               \
        }                                                                                                                 \
        __m128 d = scales;                                                                                                \
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {                                                             \
            __m128i isum = sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]);                                              \
            v[c] = _mm_mul_ps(_mm_mul_ps(d, _mm_load_ps(x[c][g].d)), _mm_cvtepi32_ps(isum));                              \
        }                                                                                                                 \
    }                                                                                                                     \
    ROWS_K(name##_rows, name##_group, size)
GROUP_16(q6_k, 210, 2, 1, halves(p, 208))
GROUP_16(q3_k, 110, 1, 1, halves(p, 108))
GROUP_16(iq4_xs, 136, 8, 0, halves(p, 0))

typedef __m512i sums;
INLINE void book_dot(const block_k *t, const act_k *const *x, const int C, int g, int s, sums sum[4], const int any) {
    __m512i a[4];
    (void)any;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = _mm512_add_epi8(_mm512_load_si512(t->q + 64 * i), _mm512_set1_epi8(64));
    dot_16(a, _mm256_loadu_si256((const void *)t->scale), x, C, g, s, 4, 1, sum);
}
#include "books.h"

// Q2_K has a min per 16: the only one of these formats with mins.
INLINE void q2_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) {
    __m512i sum[4][4], m[4][4];
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        __m512i a[4];
        __m256i sc, mins = _mm256_srli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p[s])), 4);
        load_q2_k(p[s], a, &sc);
        dot_16(a, sc, x, C, g, s, 0, 1, sum[s]);
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) m[s][c] = _mm512_zextsi256_si512(_mm256_madd_epi16(mins, _mm256_load_si256((const void *)x[c][g].s16[s])));
    }
    __m128 d = halves(p, 80), dmin = halves(p, 82);
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        __m128i isum = sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]), msum = sum4(m[0][c], m[1][c], m[2][c], m[3][c]);
        msum = _mm_sub_epi32(_mm_setzero_si128(), _mm_srai_epi32(msum, 4));
        __m128 dx = _mm_load_ps(x[c][g].d);
        v[c] = _mm_fnmadd_ps(_mm_mul_ps(dmin, dx), _mm_cvtepi32_ps(msum), _mm_mul_ps(_mm_mul_ps(d, dx), _mm_cvtepi32_ps(isum)));
    }
}
ROWS_K(q2_k_rows, q2_k_group, 84)

// ---- blocks of 32, eight at a time -------------------------------------------------------------------------------------

// Sums of the four lanes of each block, a holding blocks 0..3 and b blocks 4..7, one per 128 bits.
INLINE __m256i sums_by_lane(__m512i a, __m512i b) {
    __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); // a b a b
    t = _mm512_add_epi32(t, _mm512_shuffle_epi32(t, 0x4e));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), t));
}

INLINE __m256 halves8(const char *p, const int step) {
    return _mm256_cvtph_ps(_mm_setr_epi16((short)word16(p), (short)word16(p + step), (short)word16(p + 2 * step), (short)word16(p + 3 * step),
                                          (short)word16(p + 4 * step), (short)word16(p + 5 * step), (short)word16(p + 6 * step), (short)word16(p + 7 * step)));
}

INLINE void q8_0_group(const char *p, const act_32 *const *x, const int C, int g, __m256 v[4]) {
    __m512i w[4];
    __m256 d = halves8(p, 34);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i u = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(p + 68 * i + 2)));
        w[i] = _mm512_xor_si512(_mm512_inserti64x4(u, _mm256_loadu_si256((const void *)(p + 68 * i + 36)), 1), _mm512_set1_epi8((char)0x80));
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        __m512i s[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[i], _mm512_load_si512(x[c][g].q + 64 * i));
        __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
        __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
        __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        __m256i lo = _mm512_castsi512_si256(t), hi = _mm512_extracti64x4_epi64(t, 1);
        __m128i e = _mm_add_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1)); // blocks 0 2 4 6
        __m128i o = _mm_add_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1)); // blocks 1 3 5 7
        __m256i isum = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi32(e, o)), _mm_unpackhi_epi32(e, o), 1);
        isum = _mm256_sub_epi32(isum, _mm256_slli_epi32(_mm256_load_si256((const void *)x[c][g].sum), 7));
        v[c] = _mm256_mul_ps(_mm256_mul_ps(d, _mm256_load_ps(x[c][g].d)), _mm256_cvtepi32_ps(isum));
    }
}
ROWS_32(q8_0_rows, q8_0_group, 272)

// Nibbles of blocks 0..3 and 4..7 at p, step bytes apart: low ones in a[0] and a[2], high ones in a[1] and a[3].
INLINE void nibbles(const char *p, const int step, __m512i a[4]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, p += 4 * step) {
        __m512i v = load4(p, p + step, p + 2 * step, p + 3 * step), low = _mm512_set1_epi8(15);
        a[2 * i] = _mm512_and_si512(v, low);
        a[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
}

// The fifth bits: 32 of each block at p.
INLINE void fifth_bits(const char *p, const int step, __m512i a[4]) {
    const __m512i sixteen = _mm512_set1_epi8(16);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, p += 4 * step) {
        __m128i h = _mm_setr_epi32((int)word32(p), (int)word32(p + step), (int)word32(p + 2 * step), (int)word32(p + 3 * step));
        h = _mm_shuffle_epi8(h, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
        __mmask64 lo = (__mmask64)_mm_extract_epi64(h, 0), hi = (__mmask64)_mm_extract_epi64(h, 1);
        a[2 * i] = _mm512_mask_add_epi8(a[2 * i], lo, a[2 * i], sixteen);
        a[2 * i + 1] = _mm512_mask_add_epi8(a[2 * i + 1], hi, a[2 * i + 1], sixteen);
    }
}

INLINE void by_book(__m512i a[4], __m512i codes) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = _mm512_shuffle_epi8(codes, a[i]);
}

INLINE __m256 e8m0(const char *p) { // of eight blocks of MXFP4
    __m256i e = _mm256_setr_epi32(p[0] & 255, p[17] & 255, p[34] & 255, p[51] & 255, p[68] & 255, p[85] & 255, p[102] & 255, p[119] & 255);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e), big = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(big, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

// Formats of nibbles: load fills a[4]; excess: log2 of what it added to the codes, or -1; d and m: eight floats.
#define GROUP_NIBBLES(name, size, load, excess, scales, with_min, mins)                                                   \
    INLINE void name##_group(const char *p, const act_32 *const *x, const int C, int g, __m256 v[4]) {                    \
        __m512i a[4], zero = _mm512_setzero_si512();                                                                      \
        load;                                                                                                             \
        __m256 d = scales, m = mins;                                                                                      \
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {                                                             \
            const int8_t *h = x[c][g].h;                                                                                  \
            __m512i s = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, a[0], _mm512_load_si512(h)), a[1], _mm512_load_si512(h + 64)); \
            __m512i t = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, a[2], _mm512_load_si512(h + 128)), a[3], _mm512_load_si512(h + 192)); \
            __m256i isum = sums_by_lane(s, t), xsum = _mm256_load_si256((const void *)x[c][g].sum);                       \
            if (excess >= 0) isum = _mm256_sub_epi32(isum, _mm256_slli_epi32(xsum, excess & 31));                         \
            __m256 dx = _mm256_load_ps(x[c][g].d);                                                                        \
            v[c] = _mm256_mul_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(isum));                                         \
            if (with_min) v[c] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(xsum), v[c]);                   \
        }                                                                                                                 \
    }                                                                                                                     \
    ROWS_32(name##_rows, name##_group, size)
GROUP_NIBBLES(q4_0, 144, nibbles(p + 2, 18, a), 3, halves8(p, 18), 0, d)
GROUP_NIBBLES(q4_1, 160, nibbles(p + 4, 20, a), -1, halves8(p, 20), 1, halves8(p + 2, 20))
GROUP_NIBBLES(q5_0, 176, (nibbles(p + 6, 22, a), fifth_bits(p + 2, 22, a)), 4, halves8(p, 22), 0, d)
GROUP_NIBBLES(q5_1, 192, (nibbles(p + 8, 24, a), fifth_bits(p + 4, 24, a)), -1, halves8(p, 24), 1, halves8(p + 2, 24))
GROUP_NIBBLES(iq4_nl, 144, (nibbles(p + 2, 18, a), by_book(a, book(codes_iq4))), 7, halves8(p, 18), 0, d)
GROUP_NIBBLES(mxfp4, 136, (nibbles(p + 1, 17, a), by_book(a, book(codes_fp4))), 7, e8m0(p), 0, d)

#include "wide512.h"

const mat_set mat_avx512 = {
    .name = "avx512",
    .rows = {
        FORMATS_K(PLAIN_ROW) FORMATS_32(PLAIN_ROW) [0] = f32_rows, [1] = f16_rows, [30] = bf16_rows,
        [2] = q4_0_rows, [3] = q4_1_rows, [6] = q5_0_rows, [7] = q5_1_rows, [8] = q8_0_rows, [10] = q2_k_rows, [11] = q3_k_rows,
        [12] = q4_k_rows, [13] = q5_k_rows, [14] = q6_k_rows, [16] = iq2_xxs_rows, [17] = iq2_xs_rows, [18] = iq3_xxs_rows,
        [19] = iq1_s_rows, [20] = iq4_nl_rows, [21] = iq3_s_rows, [22] = iq2_s_rows, [23] = iq4_xs_rows, [29] = iq1_m_rows, [34] = tq1_0_rows,
        [35] = tq2_0_rows, [39] = mxfp4_rows,
    },
    WIDE_TABLE
    .quantize_k = quantize_k, .quantize_32 = quantize_32, .pack_k = pack_k, .pack_32 = pack_32,
};
