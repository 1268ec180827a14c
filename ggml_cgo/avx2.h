// AVX2, included twice: plain (maddubs, madd, add) and with AVX-VNNI (dpwssd, dpbusd), which the file that includes it
// says with MULADD, VNNI, NAME and SET. Two shapes, as in avx512.c: rows, and wide for many columns (wide256.h).
#define AHEAD 8192
#define FLOAT_LANES 8
#define FLOAT_ROWS 1
#define FLOAT_COLS 3
#define LOAD_F16(p) ((fv)_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p))))
#include "plain.h"
#include "quantize.h"
#include "rows.h"

INLINE __m128i sum4(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

// Codes up to 63: the sum of two products stays below 16003, so maddubs cannot saturate for Q4_K nor for Q6_K.
INLINE __m256i scaled(__m256i acc, __m256i u, const int8_t *x, __m256i scale) {
    return MULADD(acc, _mm256_maddubs_epi16(u, _mm256_load_si256((const void *)x)), scale);
}
// Codes of both signs but -128, whose sign cannot change: the magnitudes of x (-128 has 128) times codes with the signs of x.
INLINE __m256i scaled_signed(__m256i acc, __m256i w, const int8_t *x, __m256i scale) {
    __m256i v = _mm256_load_si256((const void *)x);
    return MULADD(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(w, v)), scale);
}

INLINE __m128 halves(const char *const p[4], int at) {
    return _mm_cvtph_ps(_mm_setr_epi16((short)word16(p[0] + at), (short)word16(p[1] + at), (short)word16(p[2] + at), (short)word16(p[3] + at), 0, 0, 0, 0));
}

// The header of a super-block of Q4_K -> 8 scales, 8 mins, one byte each.
INLINE __m128i q4k_scales(const char *q) {
    const __m128i pick = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i high = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
    const __m128i keep = _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f), top = _mm_set1_epi8(0x30);
    __m128i head = _mm_loadu_si128((const void *)q), s = _mm_srlv_epi32(_mm_shuffle_epi8(head, pick), _mm_setr_epi32(0, 0, 0, 4));
    return _mm_or_si128(_mm_and_si128(s, keep), _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi8(head, high), 2), top));
}

// Groups 2j and 2j + 1 of 32 codes.
INLINE void load_q45_k(const char *q, const int j, __m256i a[2], const int five) {
    const __m256i low = _mm256_set1_epi8(15), n = _mm256_loadu_si256((const void *)(q + (five ? 48 : 16) + 32 * j));
    a[0] = _mm256_and_si256(n, low), a[1] = _mm256_and_si256(_mm256_srli_epi16(n, 4), low);
    if (!five) return;
    const __m256i h = _mm256_loadu_si256((const void *)(q + 16)), bit = _mm256_set1_epi8(16); // bits 2j and 2j + 1 of 32 bytes, to place 4
    __m256i l = j == 0 ? _mm256_slli_epi16(h, 4) : j == 1 ? _mm256_slli_epi16(h, 2) : j == 2 ? h : _mm256_srli_epi16(h, 2);
    __m256i u = j == 0 ? _mm256_slli_epi16(h, 3) : j == 1 ? _mm256_slli_epi16(h, 1) : j == 2 ? _mm256_srli_epi16(h, 1) : _mm256_srli_epi16(h, 3);
    a[0] = _mm256_or_si256(a[0], _mm256_and_si256(l, bit)), a[1] = _mm256_or_si256(a[1], _mm256_and_si256(u, bit));
}

INLINE void q45_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4], const int five) {
    __m256i sum[4][4];
    __m128i m[4][4];
#pragma GCC unroll 1
    for (int r = 0; r < 4; r++) { // not unrolled: the compiler takes minutes, the sums cost one store each
        __m256i t[4];
        const char *q = p[r];
        __m128i sc = q4k_scales(q);
        __m256i k = _mm256_broadcastsi128_si256(sc);
        __m128i mins = _mm_unpackhi_epi8(sc, _mm_setzero_si128());
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            t[c] = _mm256_setzero_si256();
            m[r][c] = _mm_madd_epi16(mins, _mm_load_si128((const void *)x[c][g].s32[r]));
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m256i a[2];
            load_q45_k(q, j, a, five);
            __m256i k0 = _mm256_shuffle_epi8(k, _mm256_set1_epi16((short)(0x8000 | (2 * j))));
            __m256i k1 = _mm256_shuffle_epi8(k, _mm256_set1_epi16((short)(0x8000 | (2 * j + 1))));
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) {
                t[c] = scaled(t[c], a[0], x[c][g].q[r] + 64 * j, k0);
                t[c] = scaled(t[c], a[1], x[c][g].q[r] + 64 * j + 32, k1);
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) sum[r][c] = t[c];
    }
    __m128 d = halves(p, 0), dmin = halves(p, 2);
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
        __m128i isum = sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]);
        __m128i msum = _mm_hadd_epi32(_mm_hadd_epi32(m[0][c], m[1][c]), _mm_hadd_epi32(m[2][c], m[3][c]));
        __m128 dx = _mm_load_ps(x[c][g].d);
        v[c] = _mm_fnmadd_ps(_mm_mul_ps(dmin, dx), _mm_cvtepi32_ps(msum), _mm_mul_ps(_mm_mul_ps(d, dx), _mm_cvtepi32_ps(isum)));
    }
}

INLINE void q4_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) { q45_k_group(p, x, C, g, v, 0); }
INLINE void q5_k_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) { q45_k_group(p, x, C, g, v, 1); }
ROWS_K(q4_k_rows, q4_k_group, 144)
ROWS_K(q5_k_rows, q5_k_group, 176)

// ---- formats with a scale per 16 weights -------------------------------------------------------------------------------
// load(p, a, &sc): 256 codes of 0 to 127 in natural order, 16 scales as words.

INLINE void load_q6_k(const char *q, __m256i a[8], __m256i *sc) {
    const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30);
    *sc = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(q + 192)));
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++, a += 4) {
        __m256i h = _mm256_loadu_si256((const void *)(q + 128 + 32 * n));
        __m256i l0 = _mm256_loadu_si256((const void *)(q + 64 * n)), l1 = _mm256_loadu_si256((const void *)(q + 64 * n + 32));
        a[0] = _mm256_or_si256(_mm256_and_si256(l0, low), _mm256_and_si256(_mm256_slli_epi16(h, 4), top));
        a[1] = _mm256_or_si256(_mm256_and_si256(l1, low), _mm256_and_si256(_mm256_slli_epi16(h, 2), top));
        a[2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l0, 4), low), _mm256_and_si256(h, top));
        a[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(l1, 4), low), _mm256_and_si256(_mm256_srli_epi16(h, 2), top));
    }
}

INLINE void pairs_of_bits(const char *q, __m256i a[8]) { // 64 bytes, two bits of each at a time
    const __m256i two = _mm256_set1_epi8(3);
#pragma GCC unroll 2
    for (int n = 0; n < 2; n++, a += 4) {
        __m256i v = _mm256_loadu_si256((const void *)(q + 32 * n));
        a[0] = _mm256_and_si256(v, two);
        a[1] = _mm256_and_si256(_mm256_srli_epi16(v, 2), two);
        a[2] = _mm256_and_si256(_mm256_srli_epi16(v, 4), two);
        a[3] = _mm256_and_si256(_mm256_srli_epi16(v, 6), two);
    }
}

INLINE void load_q2_k(const char *q, __m256i a[8], __m256i *sc) {
    *sc = _mm256_and_si256(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)q)), _mm256_set1_epi16(15));
    pairs_of_bits(q + 16, a);
}

// Codes are -4 to 3; 16 more than that, so that the sums of 16 correct them as they are.
INLINE void load_q3_k(const char *q, __m256i a[8], __m256i *sc) {
    const __m256i twelve = _mm256_set1_epi8(12), four = _mm256_set1_epi8(4);
    uint32_t s[3], even = 0x0f0f0f0f, high = 0x03030303;
    memcpy(s, q + 96, 12);
    __m128i scales = _mm_setr_epi32((int)((s[0] & even) | (s[2] & high) << 4), (int)((s[1] & even) | (s[2] >> 2 & high) << 4),
                                    (int)((s[0] >> 4 & even) | (s[2] >> 4 & high) << 4), (int)((s[1] >> 4 & even) | (s[2] >> 6 & high) << 4));
    *sc = _mm256_sub_epi16(_mm256_cvtepu8_epi16(scales), _mm256_set1_epi16(32));
    __m256i h = _mm256_loadu_si256((const void *)q);
    pairs_of_bits(q + 32, a);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { // bit i of each byte to place 2
        __m256i b = i < 2 ? _mm256_slli_epi16(h, 2 - i) : _mm256_srli_epi16(h, i - 2);
        a[i] = _mm256_add_epi8(_mm256_or_si256(a[i], _mm256_and_si256(b, four)), twelve);
    }
}

// One super-block times C columns, in 8 sums each. bias: sixteenths of what load added to the codes; any: they have signs.
INLINE void dot_16(const __m256i a[8], __m256i sc, const act_k *const *x, const int C, int g, int s, const int bias, const int any, __m256i sum[4]) {
    __m256i even = _mm256_permute4x64_epi64(sc, 0x44), odd = _mm256_permute4x64_epi64(sc, 0xee); // scales 0..7, 8..15 in both lanes
    __m256i t[4], shift = _mm256_mullo_epi16(sc, _mm256_set1_epi16(bias));
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) t[c] = _mm256_madd_epi16(shift, _mm256_load_si256((const void *)x[c][g].s16[s]));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int k = i % 4;
        const short lo = (short)((4 * k + 1) << 8 | 4 * k), hi = (short)((4 * k + 3) << 8 | (4 * k + 2));
        __m256i scale = _mm256_shuffle_epi8(i < 4 ? even : odd, _mm256_setr_epi16(lo, lo, lo, lo, lo, lo, lo, lo, hi, hi, hi, hi, hi, hi, hi, hi));
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) t[c] = (any ? scaled_signed : scaled)(t[c], a[i], x[c][g].q[s] + 32 * i, scale);
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) sum[c] = t[c];
}

// The scale is the half at byte d, the min the one after it.
#define GROUP_16(name, size, bias, at, mins)                                                                              \
    INLINE void name##_group(const char *const p[4], const act_k *const *x, const int C, int g, __m128 v[4]) {            \
        __m256i sum[4][4], m[4][4];                                                                                       \
        _Pragma("GCC unroll 1") for (int s = 0; s < 4; s++) {                                                             \
            __m256i a[8], sc;                                                                                             \
            load_##name(p[s], a, &sc);                                                                                    \
            dot_16(a, sc, x, C, g, s, bias, 0, sum[s]);                                                                   \
            if (!mins) continue;                                                                                          \
            __m256i u = _mm256_srli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p[s])), 4);                  \
            for (int c = 0; c < C; c++) m[s][c] = _mm256_madd_epi16(u, _mm256_load_si256((const void *)x[c][g].s16[s]));  \
        }                                                                                                                 \
        __m128 d = halves(p, at), dmin = mins ? halves(p, at + 2) : d;                                                    \
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {                                                             \
            __m128i isum = sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]);                                              \
            __m128 dx = _mm_load_ps(x[c][g].d);                                                                           \
            v[c] = _mm_mul_ps(_mm_mul_ps(d, dx), _mm_cvtepi32_ps(isum));                                                  \
            if (!mins) continue;                                                                                          \
            __m128i msum = _mm_sub_epi32(_mm_setzero_si128(), _mm_srai_epi32(sum4(m[0][c], m[1][c], m[2][c], m[3][c]), 4)); \
            v[c] = _mm_fnmadd_ps(_mm_mul_ps(dmin, dx), _mm_cvtepi32_ps(msum), v[c]);                                      \
        }                                                                                                                 \
    }                                                                                                                     \
    ROWS_K(name##_rows, name##_group, size)
GROUP_16(q2_k, 84, 0, 80, 1)
GROUP_16(q3_k, 110, 1, 108, 0)
GROUP_16(q6_k, 210, 2, 208, 0)

// ---- blocks of 32, eight at a time -------------------------------------------------------------------------------------

INLINE __m256i sum8(const __m256i s[8]) {
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

INLINE __m256 halves8(const char *p, const int step) {
    return _mm256_cvtph_ps(_mm_setr_epi16((short)word16(p), (short)word16(p + step), (short)word16(p + 2 * step), (short)word16(p + 3 * step),
                                          (short)word16(p + 4 * step), (short)word16(p + 5 * step), (short)word16(p + 6 * step), (short)word16(p + 7 * step)));
}

INLINE __m256i nibbles(const char *p) {
    __m128i v = _mm_loadu_si128((const void *)p);
    return _mm256_and_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1), _mm256_set1_epi8(15));
}

INLINE __m256i fifth_bits(const char *p) { // bit i of 32 to place 4 of byte i
    const __m256i at = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i h = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word32(p)), at), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(h, bit), _mm256_set1_epi8(16));
}

INLINE __m256i by_book(const int8_t *codes, __m256i u) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)codes)), u);
}

INLINE __m256 e8m0(const char *p) { // of eight blocks of MXFP4
    __m256i e = _mm256_setr_epi32(p[0] & 255, p[17] & 255, p[34] & 255, p[51] & 255, p[68] & 255, p[85] & 255, p[102] & 255, p[119] & 255);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e), big = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(big, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

INLINE __m256i dot_small(__m256i u, const int8_t *x) { // codes of 0 to 127
    return MULADD(_mm256_setzero_si256(), _mm256_maddubs_epi16(u, _mm256_load_si256((const void *)x)), _mm256_set1_epi16(1));
}

INLINE __m256i dot_signed(__m256i w, const int8_t *x) { return scaled_signed(_mm256_setzero_si256(), w, x, _mm256_set1_epi16(1)); }

INLINE __m256i dot_any(__m256i w, const int8_t *x) { // any bytes: in 16 bits, where nothing saturates
    __m256i lo = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)), _mm256_cvtepi8_epi16(_mm_load_si128((const void *)x)));
    return MULADD(lo, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1)), _mm256_cvtepi8_epi16(_mm_load_si128((const void *)(x + 16))));
}

// code: the 32 codes of the block at q, excess more than they are; kind: small, signed (but never -128) or any; min: of the eight blocks.
#define GROUP_32(name, size, code, kind, excess, scales, with_min, mins)                                                  \
    INLINE void name##_group(const char *p, const act_32 *const *x, const int C, int g, __m256 v[4]) {                    \
        __m256i s[4][8];                                                                                                  \
        _Pragma("GCC unroll 1") for (int b = 0; b < 8; b++) {                                                             \
            const char *q = p + b * (size / 8);                                                                           \
            __m256i w = code;                                                                                             \
            _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) s[c][b] = dot_##kind(w, x[c][g].q + 32 * b);              \
        }                                                                                                                 \
        __m256 d = scales, m = mins;                                                                                      \
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {                                                             \
            __m256i xsum = _mm256_load_si256((const void *)x[c][g].sum);                                                  \
            __m256i isum = _mm256_sub_epi32(sum8(s[c]), _mm256_mullo_epi32(xsum, _mm256_set1_epi32(excess)));             \
            __m256 dx = _mm256_load_ps(x[c][g].d);                                                                        \
            v[c] = _mm256_mul_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(isum));                                         \
            if (with_min) v[c] = _mm256_fmadd_ps(_mm256_mul_ps(m, dx), _mm256_cvtepi32_ps(xsum), v[c]);                   \
        }                                                                                                                 \
    }                                                                                                                     \
    ROWS_32(name##_rows, name##_group, size)
GROUP_32(q8_0, 272, _mm256_loadu_si256((const void *)(q + 2)), any, 0, halves8(p, 34), 0, d)
GROUP_32(q4_0, 144, nibbles(q + 2), small, 8, halves8(p, 18), 0, d)
GROUP_32(q4_1, 160, nibbles(q + 4), small, 0, halves8(p, 20), 1, halves8(p + 2, 20))
GROUP_32(q5_0, 176, _mm256_or_si256(nibbles(q + 6), fifth_bits(q + 2)), small, 16, halves8(p, 22), 0, d)
GROUP_32(q5_1, 192, _mm256_or_si256(nibbles(q + 8), fifth_bits(q + 4)), small, 0, halves8(p, 24), 1, halves8(p + 2, 24))
GROUP_32(iq4_nl, 144, by_book(codes_iq4, nibbles(q + 2)), signed, 0, halves8(p, 18), 0, d)
GROUP_32(mxfp4, 136, by_book(codes_fp4, nibbles(q + 1)), signed, 0, e8m0(p), 0, d)

// ---- super-blocks of code books ------------------------------------------------------------------------------------------

UNPACK void codes_iq4_xs(const uint8_t *p, block_k *t) {
    for (int i = 0; i < 16; i++) t->scale[i] = ((p[4 + i / 4] >> i / 2 % 2 * 4 & 15) | (word16(p + 2) >> i / 2 * 2 & 3) << 4) - 32;
    for (int i = 0; i < 8; i++) _mm256_store_si256((void *)(t->q + 32 * i), by_book(codes_iq4, nibbles((const char *)p + 8 + 16 * i)));
    t->d = half(p);
}

typedef __m256i sums;
INLINE void book_dot(const block_k *t, const act_k *const *x, const int C, int g, int s, sums sum[4], const int any) {
    __m256i a[8], sc = _mm256_loadu_si256((const void *)t->scale);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        a[i] = _mm256_load_si256((const void *)(t->q + 32 * i));
        if (!any) a[i] = _mm256_add_epi8(a[i], _mm256_set1_epi8(64));
    }
    dot_16(a, sc, x, C, g, s, any ? 0 : 4, any, sum);
}
#include "books.h"

UNPACK void iq4_xs_rows(ROWS_ARGS) { book_walk(w, row_bytes, rows, x, n, y, ldy, codes_iq4_xs, 136, 1); }

#include "floats.h"
#include "wide256.h"

const mat_set SET = {
    .name = NAME,
    .rows = {
        FORMATS_K(PLAIN_ROW) FORMATS_32(PLAIN_ROW) [0] = f32_rows, [1] = f16_rows, [30] = bf16_rows,
        [2] = q4_0_rows, [3] = q4_1_rows, [6] = q5_0_rows, [7] = q5_1_rows, [8] = q8_0_rows, [10] = q2_k_rows, [11] = q3_k_rows,
        [12] = q4_k_rows, [13] = q5_k_rows, [14] = q6_k_rows, [16] = iq2_xxs_rows, [17] = iq2_xs_rows, [18] = iq3_xxs_rows,
        [19] = iq1_s_rows, [20] = iq4_nl_rows, [21] = iq3_s_rows, [22] = iq2_s_rows, [23] = iq4_xs_rows, [29] = iq1_m_rows,
        [34] = tq1_0_rows, [35] = tq2_0_rows, [39] = mxfp4_rows,
    },
    WIDE_TABLE
    .quantize_k = quantize_k, .quantize_32 = quantize_32, .pack_k = pack_k, .pack_32 = pack_32,
};
