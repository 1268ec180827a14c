// The wide shape in AVX-512: lane = column, 16 columns a group, one or two groups at a time. The weights of 8 or 4 rows
// are unpacked to the first-level cache and broadcast; four super-blocks at a time, so that the activations of the
// groups stay in that cache too. Tiles of BAND rows are transposed into y at the end.

enum { BAND = 64, TILE_ROWS = 8 };

// Super-blocks of up to eight rows. scale: one per 32 weights (Q4_K, Q5_K) or per 16; pairs: the mins, in twos. excess:
// 16 << excess is what was added to the codes of a format without mins.
typedef struct {
    _Alignas(64) uint8_t u[TILE_ROWS][256];
    int32_t scale[TILE_ROWS][16];
    int32_t pairs[TILE_ROWS][8];
    float d[TILE_ROWS], dmin[TILE_ROWS];
    int excess;
} panel_k;

INLINE void store_codes(uint8_t *u, const __m512i a[4]) {
    for (int i = 0; i < 4; i++) _mm512_store_si512(u + 64 * i, a[i]);
}

INLINE void panel_q45_k(const char *q, panel_k *t, int r, const int five) {
    const __m512i low = _mm512_set1_epi8(15);
    __m128i sc = _mm512_castsi512_si128(q4k_scales(_mm512_castsi128_si512(_mm_loadu_si128((const void *)q))));
    _mm256_storeu_si256((void *)t->scale[r], _mm256_cvtepu8_epi32(sc));
    _mm_storeu_si128((void *)t->pairs[r], _mm_cvtepu8_epi16(_mm_srli_si128(sc, 8)));
    t->d[r] = _cvtsh_ss(word16(q));
    t->dmin[r] = _cvtsh_ss(word16(q + 2));
    t->excess = 0;
    __m512i h = _mm512_setzero_si512();
    if (five) h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(q + 16)));
    for (int n = 0; n < 2; n++) { // groups of 32: 0 2 in the low nibbles, 1 3 in the high ones
        __m512i v = _mm512_loadu_si512(q + (five ? 48 : 16) + 64 * n);
        __m512i a = _mm512_and_si512(v, low), b = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        if (five) a = n ? fifth(a, h, 0, 62) : fifth(a, h, 4, 2), b = n ? fifth(b, h, 63, 61) : fifth(b, h, 3, 1);
        _mm512_store_si512(t->u[r] + 128 * n, _mm512_shuffle_i64x2(a, b, 0x44));
        _mm512_store_si512(t->u[r] + 128 * n + 64, _mm512_shuffle_i64x2(a, b, 0xee));
    }
}

// at: where the scale is, in half precision; mins: those of Q2_K.
#define PANEL_16(name, more, at, mins)                                                                        \
    INLINE void panel_##name(const char *q, panel_k *t, int r) {                                              \
        __m512i a[4];                                                                                         \
        __m256i sc;                                                                                           \
        load_##name(q, a, &sc);                                                                               \
        store_codes(t->u[r], a);                                                                              \
        _mm512_storeu_si512(t->scale[r], _mm512_cvtepi16_epi32(sc));                                          \
        t->excess = more;                                                                                     \
        t->d[r] = _cvtsh_ss(word16(q + at));                                                                  \
        if (!mins) return;                                                                                    \
        _mm256_storeu_si256((void *)t->pairs[r], _mm256_srli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)q)), 4)); \
        t->dmin[r] = _cvtsh_ss(word16(q + at + 2));                                                           \
    }
PANEL_16(q2_k, 0, 80, 1)
PANEL_16(q3_k, 0, 108, 0)
PANEL_16(q6_k, 1, 208, 0)
PANEL_16(iq4_xs, 3, 0, 0)
INLINE void panel_q4_k(const char *q, panel_k *t, int r) { panel_q45_k(q, t, r, 0); }
INLINE void panel_q5_k(const char *q, panel_k *t, int r) { panel_q45_k(q, t, r, 1); }

INLINE void panel_codes(const block_k *b, panel_k *t, int r) {
    for (int i = 0; i < 4; i++) _mm512_store_si512(t->u[r] + 64 * i, _mm512_xor_si512(_mm512_load_si512(b->q + 64 * i), _mm512_set1_epi8((char)0x80)));
    __m256i sc = _mm256_loadu_si256((const void *)b->scale);
    _mm512_storeu_si512(t->scale[r], _mm512_cvtepi16_epi32(sc));
    t->excess = 3;
    t->d[r] = b->d;
}

INLINE __m512i dword(const void *p) { return _mm512_set1_epi32((int)word32(p)); }

// The values of one super-block, R rows x G groups. kind: how many groups of four weights share a scale, 8 or 4;
// and whether there are mins.
INLINE void values_k(const panel_k *t, const wide_k *const *a, const int R, const int G, const int share, int mins, __m512 (*v)[2]) {
    __m512i sum[TILE_ROWS][2], m[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) sum[r][g] = m[r][g] = _mm512_setzero_si512();
    if (share == 4 && mins)
        for (int r = 0; r < R; r++)
            for (int g = 0; g < G; g++) {
                __m512i s = _mm512_setzero_si512();
                for (int k = 0; k < 8; k++) s = _mm512_dpwssd_epi32(s, dword(t->pairs[r] + k), _mm512_load_si512(a[g]->s16[k]));
                m[r][g] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_srai_epi32(s, 4)); // sums are kept as -16 times the sum
            }
    const __m128i right = _mm_cvtsi32_si128(16 - t->excess);
    if (share == 8 && mins)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int g = 0; g < G; g++)
                    m[r][g] = _mm512_dpwssd_epi32(m[r][g], dword(t->pairs[r] + k), _mm512_load_si512(a[g]->s32[k]));
    for (int k = 0; k < 64; k += share) {
        __m512i p[TILE_ROWS][2], start[2];
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            start[g] = _mm512_setzero_si512();
            if (share == 4 && !mins) { // what the excess of 16 codes adds, taken off beforehand
                __m512i s = _mm512_load_si512(a[g]->s16[k / 8]);
                s = k & 4 ? _mm512_and_si512(s, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(s, 16);
                start[g] = _mm512_sra_epi32(s, right);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < share; i++) {
            __m512i x[2];
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) x[g] = _mm512_load_si512(a[g]->q[k + i]);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                __m512i u = dword(t->u[r] + 4 * (k + i));
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) p[r][g] = _mm512_dpbusd_epi32(i ? p[r][g] : start[g], u, x[g]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512i s = _mm512_set1_epi32(t->scale[r][k / share]);
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) sum[r][g] = _mm512_add_epi32(sum[r][g], _mm512_mullo_epi32(p[r][g], s));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            __m512 dx = _mm512_load_ps(a[g]->d);
            __m512 f = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(t->d[r]), dx), _mm512_cvtepi32_ps(sum[r][g]));
            if (mins) f = _mm512_fnmadd_ps(_mm512_mul_ps(_mm512_set1_ps(t->dmin[r]), dx), _mm512_cvtepi32_ps(m[r][g]), f);
            v[r][g] = f;
        }
}

// The shapes of a tile: 4 rows x 2 groups, 8 x 1, and single rows x 2.
#define SHAPES(name, share)                                                                                    \
    UNPACK void name##_4(const panel_k *t, const wide_k *const *a, int mins, __m512 (*v)[2]) { values_k(t, a, 4, 2, share, mins, v); } \
    UNPACK void name##_8(const panel_k *t, const wide_k *const *a, int mins, __m512 (*v)[2]) { values_k(t, a, 8, 1, share, mins, v); } \
    UNPACK void name##_1(const panel_k *t, const wide_k *const *a, int mins, __m512 (*v)[2]) { values_k(t, a, 1, 2, share, mins, v); } \
    UNPACK void name(const panel_k *t, const wide_k *const *a, int R, int mins, __m512 (*v)[2]) {              \
        (R == 4 ? name##_4 : R == 8 ? name##_8 : name##_1)(t, a, mins, v);                                     \
    }
SHAPES(values_by_32, 8)
SHAPES(values_by_16, 4)

// acc += (v0 + v1) + (v2 + v3)
INLINE void add_four(const __m512 (*v)[TILE_ROWS][2], int R, int G, float (*acc)[32]) {
    for (int r = 0; r < R; r++)
        for (int g = 0; g < G; g++) {
            __m512 s = _mm512_add_ps(_mm512_add_ps(v[0][r][g], v[1][r][g]), _mm512_add_ps(v[2][r][g], v[3][r][g]));
            _mm512_store_ps(acc[r] + 16 * g, _mm512_add_ps(_mm512_load_ps(acc[r] + 16 * g), s));
        }
}

// Rows of the band to y, whose columns are ldy apart; the first ncols of them.
INLINE void store_band(float (*acc)[32], int rows, int ncols, float *y, size_t ldy) {
    const __m512i step = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(32));
    for (int c = 0; c < ncols; c++)
        for (int r = 0; r < rows; r += 16) {
            __mmask16 live = rows - r < 16 ? (__mmask16)((1 << (rows - r)) - 1) : (__mmask16)-1;
            _mm512_mask_storeu_ps(y + c * ldy + r, live, _mm512_i32gather_ps(step, acc[r] + c, 4));
        }
}

#define WIDE_ARGS const char *w, size_t row_bytes, int rows, const char *a, size_t group_bytes, int ncols, int n, float *y, size_t ldy

// tile(w, row_bytes, x, R, blocks, acc): four super-blocks (or what is left) of R rows.
#define WALK_WIDE(name, tile, wide_t, size, per)                                                               \
    static void name(WIDE_ARGS) {                                                                              \
        for (int c = 0; c < ncols; c += 32)                                                                    \
            for (int r0 = 0; r0 < rows; r0 += BAND) {                                                          \
                const int count = rows - r0 < BAND ? rows - r0 : BAND, many = ncols - c > 16 ? 4 : 8;          \
                _Alignas(64) float acc[BAND][32];                                                              \
                memset(acc, 0, sizeof acc);                                                                    \
                for (int b = 0; b * per < n; b += 4) {                                                         \
                    const wide_t *x[2] = {(const wide_t *)(a + c / 16 * group_bytes) + b, 0};                  \
                    const int left = n - b * per < 4 * per ? n - b * per : 4 * per;                            \
                    const char *p = w + r0 * row_bytes + (size_t)b * size;                                     \
                    x[1] = ncols - c > 16 ? (const wide_t *)(a + (c / 16 + 1) * group_bytes) + b : x[0];       \
                    for (int r = 0, step; r < count; r += step) {                                              \
                        step = count - r >= many ? many : 1;                                                   \
                        tile(p + r * row_bytes, row_bytes, x, step, left, acc + r);                            \
                    }                                                                                          \
                }                                                                                              \
                store_band(acc, count, ncols - c < 32 ? ncols - c : 32, y + c * ldy + r0, ldy);                \
            }                                                                                                  \
    }

INLINE int groups(int R) { return R == 8 ? 1 : 2; }

// The next block is unpacked before the products of this one, which then need not wait for its stores.
#define WIDE_K(name, size, share, mins)                                                                        \
    INLINE void name##_panel(const char *q, size_t row_bytes, int R, panel_k *t) {                             \
        for (int r = 0; r < R; r++, q += row_bytes) {                                                          \
            for (int i = 0; i < size; i += 64) _mm_prefetch(q + R * row_bytes + i, _MM_HINT_T0);               \
            panel_##name(q, t, r);                                                                             \
        }                                                                                                      \
    }                                                                                                          \
    UNPACK void name##_tile(const char *w, size_t row_bytes, const wide_k *const *x, int R, int blocks, float (*acc)[32]) { \
        panel_k t[2];                                                                                          \
        __m512 v[4][TILE_ROWS][2];                                                                             \
        name##_panel(w, row_bytes, R, t);                                                                      \
        for (int b = 0; b < blocks; b++) {                                                                     \
            const wide_k *at[2] = {x[0] + b, x[1] + b};                                                        \
            if (b + 1 < blocks) name##_panel(w + (b + 1) * size, row_bytes, R, t + (b + 1) % 2);               \
            (share == 8 ? values_by_32 : values_by_16)(t + b % 2, at, R, mins, v[b]);                          \
        }                                                                                                      \
        for (int b = blocks; b < 4; b++)                                                                       \
            for (int r = 0; r < R; r++) v[b][r][0] = v[b][r][1] = _mm512_setzero_ps();                         \
        add_four((const __m512(*)[TILE_ROWS][2])v, R, groups(R), acc);                                         \
    }                                                                                                          \
    WALK_WIDE(name##_wide, name##_tile, wide_k, size, 1)
WIDE_K(q2_k, 84, 4, 1)
WIDE_K(q3_k, 110, 4, 0)
WIDE_K(q4_k, 144, 8, 1)
WIDE_K(q5_k, 176, 8, 1)
WIDE_K(q6_k, 210, 4, 0)
WIDE_K(iq4_xs, 136, 4, 0)

// Formats of code books: unpacked by plain C, one shape for all.
UNPACK void book_tile(const char *w, size_t row_bytes, const wide_k *const *x, int R, int blocks, float (*acc)[32],
                      unpack_k_fn unpack, int size) {
    panel_k t;
    __m512 v[4][TILE_ROWS][2];
    memset(v, 0, sizeof v);
    for (int b = 0; b < blocks; b++) {
        const wide_k *at[2] = {x[0] + b, x[1] + b};
        for (int r = 0; r < R; r++) {
            block_k block;
            unpack((const uint8_t *)w + r * row_bytes + b * size, &block);
            panel_codes(&block, &t, r);
        }
        values_by_16(&t, at, R, 0, v[b]);
    }
    add_four((const __m512(*)[TILE_ROWS][2])v, R, groups(R), acc);
}
#define WIDE_BOOK(name, size)                                                                                  \
    INLINE void name##_tile(const char *w, size_t row_bytes, const wide_k *const *x, int R, int blocks, float (*acc)[32]) { \
        book_tile(w, row_bytes, x, R, blocks, acc, unpack_##name, size);                                    \
    }                                                                                                          \
    WALK_WIDE(name##_wide, name##_tile, wide_k, size, 1)
WIDE_BOOK(iq2_xxs, 66) WIDE_BOOK(iq2_xs, 74) WIDE_BOOK(iq3_xxs, 98) WIDE_BOOK(iq1_s, 50) WIDE_BOOK(iq3_s, 110) WIDE_BOOK(iq2_s, 82)
WIDE_BOOK(iq1_m, 56) WIDE_BOOK(tq1_0, 54) WIDE_BOOK(tq2_0, 66)

// ---- blocks of 32 ------------------------------------------------------------------------------------------------------

typedef struct {
    _Alignas(64) uint8_t u[TILE_ROWS][256];
    float d[TILE_ROWS][8], m[TILE_ROWS][8];
} panel_32;

INLINE void panel_q8_0(const char *p, panel_32 *t, int r) {
    for (int b = 0; b < 8; b++) _mm256_store_si256((void *)(t->u[r] + 32 * b), _mm256_xor_si256(_mm256_loadu_si256((const void *)(p + 34 * b + 2)), _mm256_set1_epi8((char)0x80)));
    _mm256_storeu_ps(t->d[r], halves8(p, 34));
}

// The codes as nibbles leaves them: first halves of four blocks, then second halves.
INLINE void store_halves(uint8_t *u, const __m512i a[4]) {
    for (int i = 0; i < 2; i++) {
        __m512i lo = a[2 * i], hi = a[2 * i + 1];
        _mm512_store_si512(u + 128 * i, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), hi));
        _mm512_store_si512(u + 128 * i + 64, _mm512_permutex2var_epi64(lo, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), hi));
    }
}

#define PANEL_NIBBLES(name, load, scales, with_min, mins)                                                      \
    INLINE void panel_##name(const char *p, panel_32 *t, int r) {                                              \
        __m512i a[4];                                                                                          \
        load;                                                                                                  \
        store_halves(t->u[r], a);                                                                              \
        _mm256_storeu_ps(t->d[r], scales);                                                                     \
        if (with_min) _mm256_storeu_ps(t->m[r], mins);                                                         \
    }
PANEL_NIBBLES(q4_0, nibbles(p + 2, 18, a), halves8(p, 18), 0, _mm256_setzero_ps())
PANEL_NIBBLES(q4_1, nibbles(p + 4, 20, a), halves8(p, 20), 1, halves8(p + 2, 20))
PANEL_NIBBLES(q5_0, (nibbles(p + 6, 22, a), fifth_bits(p + 2, 22, a)), halves8(p, 22), 0, _mm256_setzero_ps())
PANEL_NIBBLES(q5_1, (nibbles(p + 8, 24, a), fifth_bits(p + 4, 24, a)), halves8(p, 24), 1, halves8(p + 2, 24))
PANEL_NIBBLES(iq4_nl, (nibbles(p + 2, 18, a), by_book(a, book(codes_iq4))), halves8(p, 18), 0, _mm256_setzero_ps())
PANEL_NIBBLES(mxfp4, (nibbles(p + 1, 17, a), by_book(a, book(codes_fp4))), e8m0(p), 0, _mm256_setzero_ps())

// Eight blocks: two sums of four values each. excess: what was added to the codes.
INLINE void add_eight(const panel_32 *t, const wide_32 *const *a, const int R, const int G, int excess, int mins, float (*acc)[32]) {
    for (int k = 0; k < 8; k += 4) {
        __m512 v[4][TILE_ROWS][2];
#pragma GCC unroll 4
        for (int b = 0; b < 4; b++) {
            __m512i p[TILE_ROWS][2], xsum[2];
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) {
                xsum[g] = _mm512_load_si512(a[g]->sum[k + b]);
                __m512i start = _mm512_mullo_epi32(xsum[g], _mm512_set1_epi32(-excess));
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) p[r][g] = start;
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                __m512i x[2];
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) x[g] = _mm512_load_si512(a[g]->q[8 * (k + b) + i]);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) {
                    __m512i u = dword(t->u[r] + 32 * (k + b) + 4 * i);
#pragma GCC unroll 2
                    for (int g = 0; g < G; g++) p[r][g] = _mm512_dpbusd_epi32(p[r][g], u, x[g]);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) {
                    __m512 dx = _mm512_load_ps(a[g]->d[k + b]);
                    __m512 f = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(t->d[r][k + b]), dx), _mm512_cvtepi32_ps(p[r][g]));
                    if (mins) f = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(t->m[r][k + b]), dx), _mm512_cvtepi32_ps(xsum[g]), f);
                    v[b][r][g] = f;
                }
        }
        add_four((const __m512(*)[TILE_ROWS][2])v, R, G, acc);
    }
}

UNPACK void add_eight_4(const panel_32 *t, const wide_32 *const *a, int excess, int mins, float (*acc)[32]) { add_eight(t, a, 4, 2, excess, mins, acc); }
UNPACK void add_eight_8(const panel_32 *t, const wide_32 *const *a, int excess, int mins, float (*acc)[32]) { add_eight(t, a, 8, 1, excess, mins, acc); }
UNPACK void add_eight_1(const panel_32 *t, const wide_32 *const *a, int excess, int mins, float (*acc)[32]) { add_eight(t, a, 1, 2, excess, mins, acc); }

#define WIDE_32(name, size, excess, mins)                                                                      \
    INLINE void name##_panel(const char *q, size_t row_bytes, int R, int blocks, panel_32 *t) {                \
        for (int r = 0; r < R; r++, q += row_bytes) {                                                          \
            char copy[size];                                                                                   \
            for (int i = 0; i < size; i += 64) _mm_prefetch(q + R * row_bytes + i, _MM_HINT_T0);               \
            panel_##name(whole_group(q, blocks, size, copy), t, r);                                            \
        }                                                                                                      \
    }                                                                                                          \
    UNPACK void name##_tile(const char *w, size_t row_bytes, const wide_32 *const *x, int R, int blocks, float (*acc)[32]) { \
        panel_32 t[2];                                                                                         \
        name##_panel(w, row_bytes, R, blocks, t);                                                              \
        for (int b = 0; b * 8 < blocks; b++) {                                                                 \
            const wide_32 *at[2] = {x[0] + b, x[1] + b};                                                       \
            const int next = b + 1, left = blocks - 8 * next;                                                  \
            if (left > 0) name##_panel(w + next * size, row_bytes, R, left, t + next % 2);                     \
            (R == 4 ? add_eight_4 : R == 8 ? add_eight_8 : add_eight_1)(t + b % 2, at, excess, mins, acc);     \
        }                                                                                                      \
    }                                                                                                          \
    WALK_WIDE(name##_wide, name##_tile, wide_32, size, 8)
WIDE_32(q8_0, 272, 128, 0)
WIDE_32(q4_0, 144, 8, 0)
WIDE_32(q4_1, 160, 0, 1)
WIDE_32(q5_0, 176, 16, 0)
WIDE_32(q5_1, 192, 0, 1)
WIDE_32(iq4_nl, 144, 128, 0)
WIDE_32(mxfp4, 136, 128, 0)

#define WIDE_TABLE                                                                                             \
    .wide = {[2] = q4_0_wide, [3] = q4_1_wide, [6] = q5_0_wide, [7] = q5_1_wide, [8] = q8_0_wide, [10] = q2_k_wide, [11] = q3_k_wide, \
             [12] = q4_k_wide, [13] = q5_k_wide, [14] = q6_k_wide, [16] = iq2_xxs_wide, [17] = iq2_xs_wide, [18] = iq3_xxs_wide,      \
             [19] = iq1_s_wide, [20] = iq4_nl_wide, [21] = iq3_s_wide, [22] = iq2_s_wide, [23] = iq4_xs_wide, [29] = iq1_m_wide,      \
             [34] = tq1_0_wide, [35] = tq2_0_wide, [39] = mxfp4_wide},
