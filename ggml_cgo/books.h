// Super-blocks of code books for the sets that have AVX2: signed codes and scales of 256 weights, by vectors of 32. The layouts
// are beside their plain twins in unpack.h. Codes are at most 62 in magnitude; d takes in the constant of the format.

INLINE __m256i load32(const void *p) { return _mm256_loadu_si256(p); }
INLINE __m256i widen16(const void *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128(p)); }

// Four entries of eight codes, eight of four.
INLINE __m256i entries8(const uint64_t *book, unsigned a, unsigned b, unsigned c, unsigned d) {
    return _mm256_setr_epi64x((long long)book[a], (long long)book[b], (long long)book[c], (long long)book[d]);
}
INLINE __m256i entries4(const uint32_t *book, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h) {
    return _mm256_setr_epi32((int)book[a], (int)book[b], (int)book[c], (int)book[d], (int)book[e], (int)book[f], (int)book[g], (int)book[h]);
}

// -1 in byte 8i + k where bit k of byte i is set, or, for bits of 8, where that bit of it is.
INLINE __m256i spread_bits(const void *four, const long long bits) {
    const __m256i at = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303), bit = _mm256_set1_epi64x(bits);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)word32(four)), at);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

// codes, negated where the bit of 32 at signs is set.
INLINE void store_signed(int8_t *q, __m256i codes, const void *signs) {
    __m256i minus = spread_bits(signs, (long long)0x8040201008040201);
    _mm256_store_si256((void *)q, _mm256_sub_epi8(_mm256_xor_si256(codes, minus), minus));
}

// Bit 7 of every byte makes the number of its bits even.
INLINE __m256i even_bits(__m256i s) {
    __m256i p = _mm256_xor_si256(s, _mm256_srli_epi32(s, 4));
    p = _mm256_xor_si256(p, _mm256_srli_epi32(p, 2));
    p = _mm256_xor_si256(p, _mm256_srli_epi32(p, 1));
    return _mm256_or_si256(s, _mm256_slli_epi32(_mm256_and_si256(p, _mm256_set1_epi8(1)), 7));
}

// Eight words of four times seven signs and a scale: 32 signs each, and the scales.
INLINE __m256i signs_and_scales(__m256i aux, block_k *t) {
    __m256i s = _mm256_add_epi32(_mm256_slli_epi32(_mm256_srli_epi32(aux, 28), 1), _mm256_set1_epi32(1));
    _mm256_storeu_si256((void *)t->scale, _mm256_or_si256(s, _mm256_slli_epi32(s, 16)));
    __m256i a = _mm256_and_si256(aux, _mm256_set1_epi32(0x7f)), b = _mm256_and_si256(_mm256_slli_epi32(aux, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(aux, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(aux, 3), _mm256_set1_epi32(0x7f000000));
    return even_bits(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d)));
}

// 2 s + 1 of 16 words.
INLINE void store_odd(block_k *t, __m256i s) {
    _mm256_storeu_si256((void *)t->scale, _mm256_add_epi16(_mm256_add_epi16(s, s), _mm256_set1_epi16(1)));
}
// The 16 nibbles of eight bytes, low ones first.
INLINE __m256i nibbles16(const void *p) {
    __m128i v = _mm_cvtepu8_epi16(_mm_loadl_epi64(p)), low = _mm_and_si128(v, _mm_set1_epi16(15)), high = _mm_srli_epi16(v, 4);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(low, high)), _mm_unpackhi_epi16(low, high), 1);
}

UNPACK void codes_iq2_xxs(const uint8_t *p, block_k *t) {
    _Alignas(32) uint8_t signs[32];
    __m256 a = _mm256_castsi256_ps(load32(p + 2)), b = _mm256_castsi256_ps(load32(p + 34));
    __m256i aux = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8); // every second word
    _mm256_store_si256((void *)signs, signs_and_scales(aux, t));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint8_t *q = p + 2 + 8 * i;
        store_signed(t->q + 32 * i, entries8(mat_book.iq2xxs, q[0], q[1], q[2], q[3]), signs + 4 * i);
    }
    t->d = half(p) * 0.125f;
}

UNPACK void codes_iq2_xs(const uint8_t *p, block_k *t) {
    _Alignas(32) uint8_t signs[32];
    _Alignas(32) uint16_t at[32];
    __m256i a = load32(p + 2), b = load32(p + 34), nine = _mm256_set1_epi16(511);
    _mm256_store_si256((void *)at, _mm256_and_si256(a, nine));
    _mm256_store_si256((void *)(at + 16), _mm256_and_si256(b, nine));
    __m256i s = _mm256_permute4x64_epi64(_mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(b, 9)), 0xd8);
    _mm256_store_si256((void *)signs, even_bits(s));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint16_t *k = at + 4 * i;
        store_signed(t->q + 32 * i, entries8(mat_book.iq2xs, k[0], k[1], k[2], k[3]), signs + 4 * i);
    }
    store_odd(t, nibbles16(p + 66));
    t->d = half(p) * 0.125f;
}

UNPACK void codes_iq2_s(const uint8_t *p, block_k *t) {
    _Alignas(32) uint16_t at[32];
    const __m256i left = _mm256_set1_epi64x(0x0004001000400100), places = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,
                                                                                         2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1);
    for (int i = 0; i < 2; i++) { // two more bits of each index
        __m256i h = _mm256_mullo_epi16(_mm256_shuffle_epi8(_mm256_set1_epi32((int)word32(p + 66 + 4 * i)), places), left);
        _mm256_store_si256((void *)(at + 16 * i), _mm256_or_si256(widen16(p + 2 + 16 * i), _mm256_and_si256(h, _mm256_set1_epi16(0x300))));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint16_t *k = at + 4 * i;
        store_signed(t->q + 32 * i, entries8(mat_book.iq2s, k[0], k[1], k[2], k[3]), p + 34 + 4 * i);
    }
    store_odd(t, nibbles16(p + 74));
    t->d = half(p) * 0.125f;
}

UNPACK void codes_iq3_xxs(const uint8_t *p, block_k *t) {
    _Alignas(32) uint8_t signs[32];
    _mm256_store_si256((void *)signs, signs_and_scales(load32(p + 66), t));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint8_t *k = p + 2 + 8 * i;
        store_signed(t->q + 32 * i, entries4(mat_book.iq3xxs, k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]), signs + 4 * i);
    }
    t->d = half(p) * 0.25f;
}

UNPACK void codes_iq3_s(const uint8_t *p, block_k *t) {
    _Alignas(32) uint16_t at[64];
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, (short)0x8000);
    for (int i = 0; i < 4; i++) { // a ninth bit of each index
        __m256i h = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16((short)word16(p + 66 + 2 * i)), bit), bit);
        _mm256_store_si256((void *)(at + 16 * i), _mm256_or_si256(widen16(p + 2 + 16 * i), _mm256_and_si256(h, _mm256_set1_epi16(256))));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint16_t *k = at + 8 * i;
        store_signed(t->q + 32 * i, entries4(mat_book.iq3s, k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]), p + 74 + 4 * i);
    }
    __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32((int)word32(p + 106)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    s = _mm256_and_si256(s, _mm256_set1_epi32(15));
    store_odd(t, _mm256_or_si256(s, _mm256_slli_epi32(s, 16)));
    t->d = half(p);
}

// Eight times codes of -1, 0, 1, plus shift.
INLINE void store_eighths(int8_t *q, __m256i codes, __m256i shift) {
    codes = _mm256_and_si256(_mm256_slli_epi16(codes, 3), _mm256_set1_epi8((char)0xf8));
    _mm256_store_si256((void *)q, _mm256_add_epi8(codes, shift));
}

// Eight times three bits, from 0, 3, 6, 9 of two words.
INLINE __m256i threes(const void *two) {
    __m256i v = _mm256_srlv_epi32(_mm256_set1_epi32((int)word32(two)), _mm256_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25));
    return _mm256_and_si256(v, _mm256_set1_epi32(7));
}

UNPACK void codes_iq1_s(const uint8_t *p, block_k *t) {
    _Alignas(32) uint32_t at[32];
    for (int i = 0; i < 4; i++) // three more bits of each index
        _mm256_store_si256((void *)(at + 8 * i), _mm256_or_si256(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 2 + 8 * i))),
                                                                 _mm256_slli_epi32(threes(p + 34 + 4 * i), 8)));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint32_t *k = at + 4 * i;
        store_eighths(t->q + 32 * i, entries8(mat_book.iq1s, k[0], k[1], k[2], k[3]), _mm256_set1_epi8(p[35 + 2 * i] & 0x80 ? -1 : 1));
    }
    __m256i s = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + 34)));
    s = _mm256_and_si256(_mm256_srli_epi32(s, 12), _mm256_set1_epi32(7));
    store_odd(t, _mm256_or_si256(s, _mm256_slli_epi32(s, 16)));
    t->d = half(p) * 0.125f;
}

UNPACK void codes_iq1_m(const uint8_t *p, block_k *t) {
    _Alignas(32) uint16_t at[32];
    _Alignas(32) uint8_t high[32]; // a nibble per index: three more bits of it, and the sign of the shift
    const uint8_t *s = p + 48;
    __m128i v = _mm_loadu_si128((const void *)(p + 32)), low = _mm_and_si128(v, _mm_set1_epi8(15));
    v = _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15));
    _mm_store_si128((void *)high, _mm_unpacklo_epi8(low, v));
    _mm_store_si128((void *)(high + 16), _mm_unpackhi_epi8(low, v));
    for (int i = 0; i < 2; i++) {
        __m256i h = _mm256_slli_epi16(_mm256_and_si256(widen16(high + 16 * i), _mm256_set1_epi16(7)), 8);
        _mm256_store_si256((void *)(at + 16 * i), _mm256_or_si256(widen16(p + 16 * i), h));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const uint16_t *k = at + 4 * i;
        __m256i minus = spread_bits(high + 4 * i, 0x0808080808080808);
        store_eighths(t->q + 32 * i, entries8(mat_book.iq1s, k[0], k[1], k[2], k[3]), _mm256_or_si256(minus, _mm256_set1_epi8(1)));
    }
    store_odd(t, _mm256_permute4x64_epi64(_mm256_packus_epi32(threes(s), threes(s + 4)), 0xd8));
    uint16_t d = s[1] >> 4 | (s[3] >> 4) << 4 | (s[5] >> 4) << 8 | (s[7] >> 4) << 12;
    t->d = half(&d) * 0.125f;
}

// Rows of these formats. The set says before: the type sums of partial sums, sum4, and book_dot, the sums of one super-block
// times C columns; any: codes are up to 127 in magnitude.
INLINE void book_cols(const char *w, const act_k *const *x, const int C, int cols, int n, float *y, size_t ldy, unpack_k_fn unpack, int size,
                      const int any) {
    float acc[4] = {0};
    for (int b = 0; b < n; b += 4, w += 4 * size) {
        sums sum[4][4];
        _Alignas(16) float d[4] = {0};
        ahead(w, 4 * size);
#pragma GCC unroll 1
        for (int s = 0; s < 4; s++) {
            block_k t;
            if (b + s < n) unpack((const uint8_t *)w + s * size, &t), d[s] = t.d; // past the end: anything, times 0
            else memset(&t, 0, sizeof t);
            book_dot(&t, x, C, b / 4, s, sum[s], any);
        }
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            __m128 dx = _mm_mul_ps(_mm_load_ps(d), _mm_load_ps(x[c][b / 4].d));
            acc[c] += tree(_mm_mul_ps(dx, _mm_cvtepi32_ps(sum4(sum[0][c], sum[1][c], sum[2][c], sum[3][c]))));
        }
    }
    for (int c = 0; c < cols; c++) y[c * ldy] = acc[c];
}

INLINE void book_walk(ROWS_ARGS, unpack_k_fn unpack, int size, const int any) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < x->n; c += 4) {
            const act_k *p[4];
            const int cols = x->n - c < 4 ? x->n - c : 4;
            for (int k = 0; k < 4; k++) p[k] = column(x, k < cols ? c + k : c + cols - 1);
            if (cols == 1) book_cols(w + r * row_bytes, p, 1, 1, n, y + c * ldy + r, ldy, unpack, size, any);
            else book_cols(w + r * row_bytes, p, 4, cols, n, y + c * ldy + r, ldy, unpack, size, any);
        }
}
UNPACK void book_rows(ROWS_ARGS, unpack_k_fn unpack, int size) { book_walk(w, row_bytes, rows, x, n, y, ldy, unpack, size, 0); }

#define BOOK_ROWS(name, codes, size) \
    static void name##_rows(ROWS_ARGS) { book_rows(w, row_bytes, rows, x, n, y, ldy, codes, size); }
BOOK_ROWS(iq2_xxs, codes_iq2_xxs, 66) BOOK_ROWS(iq2_xs, codes_iq2_xs, 74) BOOK_ROWS(iq2_s, codes_iq2_s, 82)
BOOK_ROWS(iq3_xxs, codes_iq3_xxs, 98) BOOK_ROWS(iq3_s, codes_iq3_s, 110) BOOK_ROWS(iq1_s, codes_iq1_s, 50)
BOOK_ROWS(iq1_m, codes_iq1_m, 56) BOOK_ROWS(tq1_0, unpack_tq1_0, 54) BOOK_ROWS(tq2_0, unpack_tq2_0, 66)
