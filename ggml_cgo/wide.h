// The wide shape: lane = column. Weights are unpacked to panels in the first-level cache and broadcast; the columns lie
// side by side in groups of 16 (wide_k, wide_32), which are LANES columns to a vector.
//
// Where fewer than half of a vector's columns are left, each is packed D = 2 or 4 times, and a vector holds D rows times
// LANES / D columns: lane = D * column + row. So an expert of a few tokens, and the rest of any batch, fill the vectors too.
//
// The set says before: LANES (16 or 8) and the types vi and vf of so many integers and floats;
//   spread(p, D)  the D integers at p, over and over
//   dot_first(u, x, any), dot(p, u, x, any)  products of groups of four codes and columns, and their sum; any: codes that
//                 are not small (see wide256.h)
//   fold(sum, p, scale, any), plus(sum, p, any)  sum + p * scale, sum + p
//   muladd(sum, a, b)  sum + products of pairs of words;  fused(a, b, c), fused_minus(a, b, c)  c + a * b, c - a * b
#include <stddef.h>

// Integers at the end of a panel's row. SCALES: one per 32 weights (Q4_K, Q5_K) or per 16, as fold wants them; MINS: mins or
// excess in pairs of words. Blocks of 32 have eight floats of scales and as many of mins there.
enum { BAND = 64, TILE_ROWS = 16, VECTORS = 8, SCALES = 64, MINS = 80, SCALES_32 = 64, MINS_32 = 72, ROW_BYTES = 384 };

// 256 weights of up to 16 rows: 64 times four codes, then what belongs to them. With D > 1 the rows are interleaved in
// place, D by D: place() says where the k-th integers of D rows begin.
typedef struct {
    _Alignas(64) uint8_t row[TILE_ROWS][ROW_BYTES];
    float d[TILE_ROWS], dmin[TILE_ROWS];
} panel;

INLINE int place(int k, const int D) {
    const int S = 4 / D, quads = LANES / 4; // a step of four integers gives S places in each of D rows
    if (D == 1) return 4 * k;
    return k % 4 / S * ROW_BYTES + k / LANES * 4 * LANES + (k / 4 % quads * S + k % S) * 4 * D;
}

INLINE int copies(int columns) { return columns > LANES / 2 ? 1 : columns > LANES / 4 || LANES == 8 ? 2 : 4; }

// What a product needs to know of a format. fill unpacks rows rows (the last of them again and again, up to total) of 256
// weights to a panel; blocks: how many of eight there are in the row, for blocks of 32; ahead: where, from w, the rows lie
// that are wanted after these.
typedef struct {
    int size, per, mins, excess; // bytes of 256 weights; blocks in them; excess: what was added to the codes of blocks of 32
    void (*fill)(const char *w, size_t row_bytes, int rows, int total, int blocks, ptrdiff_t ahead, panel *t);
    void (*values)(const panel *t, const char *const *x, int G, int D, int mins, int excess, vf *v);
} wide_format;

INLINE vi load_lanes(const void *p) { return *(const vi *)p; }
INLINE vf to_floats(vi v) { return __builtin_convertvector(v, vf); }

// The values of one super-block: R vectors of rows x G vectors of columns. share: how many groups of four weights share a
// scale; chunk: how many groups fold takes at once.
INLINE void values_k(const panel *t, const char *const *x, const int R, const int G, const int D, const int share, const int chunk,
                     const int any, int mins, vf *v) {
    vi sum[VECTORS], m[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < R * G; i++) sum[i] = m[i] = (vi){0};
    if (share == 8 || !any || EXCESS_ANY)
        for (int k = 0; k < (share == 8 ? 4 : 8); k++) {
            const size_t sums = (share == 8 ? offsetof(wide_k, s32) : offsetof(wide_k, s16)) + 64 * k;
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vi pair = spread(t->row[r * D] + place(MINS + k, D), D);
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) m[r * G + g] = muladd(m[r * G + g], pair, load_lanes(x[g] + sums));
            }
        }
    if (share == 4)
#pragma GCC unroll 8
        for (int i = 0; i < R * G; i++) {
            if (mins) m[i] = -(m[i] >> 4); // sums of 16 are kept as -16 times the sum
            else sum[i] = m[i];
        }
    for (int k = 0; k < 64; k += chunk) {
        const int at = place(k, D), scale = place(SCALES + k / share, D);
        vi p[VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < chunk; i++) {
            vi column[2];
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) column[g] = load_lanes(x[g] + 64 * (k + i));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vi u = spread(t->row[r * D] + at + place(i, D), D);
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) p[r * G + g] = i ? dot(p[r * G + g], u, column[g], any) : dot_first(u, column[g], any);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vi s = spread(t->row[r * D] + scale, D);
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) sum[r * G + g] = fold(sum[r * G + g], p[r * G + g], s, any);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        vf d = (vf)spread(t->d + r * D, D), dmin = (vf)spread(t->dmin + r * D, D);
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            vf dx = (vf)load_lanes(x[g] + offsetof(wide_k, d)), f = (d * dx) * to_floats(sum[r * G + g]);
            v[r * G + g] = mins ? fused_minus(dmin * dx, to_floats(m[r * G + g]), f) : f;
        }
    }
}

// acc += (v0 + v1) + (v2 + v3)
INLINE void add_four(const vf (*v)[VECTORS], int vectors, vf *acc) {
    for (int i = 0; i < vectors; i++) acc[i] += (v[0][i] + v[1][i]) + (v[2][i] + v[3][i]);
}

// Eight blocks of 32: two sums of four values each.
INLINE void add_eight(const panel *t, const char *const *x, const int R, const int G, const int D, const int chunk, const int any,
                      int mins, int excess, vf *acc) {
    for (int k = 0; k < 8; k += 4) {
        vf v[4][VECTORS];
        for (int b = 0; b < 4; b++) {
            vi sum[VECTORS], xsum[2];
#pragma GCC unroll 2
            for (int g = 0; g < G; g++) {
                xsum[g] = load_lanes(x[g] + offsetof(wide_32, sum) + 64 * (k + b));
                vi start = xsum[g] * -excess;
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) sum[r * G + g] = start;
            }
#pragma GCC unroll 8
            for (int j = 0; j < 8; j += chunk) {
                const int at = place(8 * (k + b) + j, D);
                vi p[VECTORS];
#pragma GCC unroll 8
                for (int i = 0; i < chunk; i++) {
                    vi column[2];
#pragma GCC unroll 2
                    for (int g = 0; g < G; g++) column[g] = load_lanes(x[g] + 64 * (8 * (k + b) + j + i));
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) {
                        vi u = spread(t->row[r * D] + at + place(i, D), D);
#pragma GCC unroll 2
                        for (int g = 0; g < G; g++) p[r * G + g] = i ? dot(p[r * G + g], u, column[g], any) : dot_first(u, column[g], any);
                    }
                }
#pragma GCC unroll 8
                for (int i = 0; i < R * G; i++) sum[i] = plus(sum[i], p[i], any);
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vf d = (vf)spread(t->row[r * D] + place(SCALES_32 + k + b, D), D), m = (vf)spread(t->row[r * D] + place(MINS_32 + k + b, D), D);
#pragma GCC unroll 2
                for (int g = 0; g < G; g++) {
                    vf dx = (vf)load_lanes(x[g] + offsetof(wide_32, d) + 64 * (k + b)), f = (d * dx) * to_floats(sum[r * G + g]);
                    v[b][r * G + g] = mins ? fused(m * dx, to_floats(xsum[g]), f) : f;
                }
            }
        }
        add_four((const vf(*)[VECTORS])v, R * G, acc);
    }
}

// The shapes of a tile: 4 vectors of rows x 2 of columns, 8 x 1, and with two or four rows in a vector.
#define SHAPE(name, shape, call) \
    UNPACK void name##shape(const panel *t, const char *const *x, int mins, int excess, vf *v) { call; }
#define DISPATCH(name, four)                                                                                   \
    static void name(const panel *t, const char *const *x, int G, int D, int mins, int excess, vf *v) {        \
        (G == 2 ? name##_2 : D == 1 ? name##_1 : D == 2 ? name##_half : four)(t, x, mins, excess, v);          \
    }
#if LANES == 16
#define QUARTER(...) __VA_ARGS__
#define FOUR(name) name##_quarter
#else
#define QUARTER(...)
#define FOUR(name) name##_half
#endif
#define VALUES_K(name, share, chunk, any)                                                                      \
    SHAPE(name, _2, values_k(t, x, 4, 2, 1, share, chunk, any, mins, v))                                       \
    SHAPE(name, _1, values_k(t, x, 8, 1, 1, share, chunk, any, mins, v))                                       \
    SHAPE(name, _half, values_k(t, x, 8, 1, 2, share, chunk, any, mins, v))                                    \
    QUARTER(SHAPE(name, _quarter, values_k(t, x, 4, 1, 4, share, chunk, any, mins, v)))                        \
    DISPATCH(name, FOUR(name))
#define VALUES_32(name, chunk, any)                                                                            \
    SHAPE(name, _2, add_eight(t, x, 4, 2, 1, chunk, any, mins, excess, v))                                     \
    SHAPE(name, _1, add_eight(t, x, 8, 1, 1, chunk, any, mins, excess, v))                                     \
    SHAPE(name, _half, add_eight(t, x, 8, 1, 2, chunk, any, mins, excess, v))                                  \
    QUARTER(SHAPE(name, _quarter, add_eight(t, x, 4, 1, 4, chunk, any, mins, excess, v)))                      \
    DISPATCH(name, FOUR(name))

static void interleave(panel *t, int rows, int D);

// The rows of a tile: as many vectors of rows as the shape has, D rows each.
INLINE int tile_rows(int G, int D) { return D == 4 ? 16 : 8 * D / G; }

// Four super-blocks (or what is left of the row), or as many groups of eight blocks. The next one is unpacked before the
// products of this one, which then need not wait for its stores.
UNPACK void tile_wide(const wide_format *f, const char *w, size_t row_bytes, int rows, ptrdiff_t ahead, const char *const *x, int G, int D, int n,
                      vf *acc) {
    panel t[2];
    vf v[4][VECTORS];
    const int total = tile_rows(G, D), vectors = total / D * G, step = f->per == 1 ? sizeof(wide_k) : sizeof(wide_32);
    const char *at[2] = {x[0], x[1]};
    int b = 0;
    f->fill(w, row_bytes, rows, total, n, ahead, t);
    if (D > 1) interleave(t, total, D);
    for (; n > 0; b++, n -= f->per) {
        if (n > f->per) {
            f->fill(w += f->size, row_bytes, rows, total, n - f->per, ahead, t + (b + 1) % 2);
            if (D > 1) interleave(t + (b + 1) % 2, total, D);
        }
        f->values(t + b % 2, at, G, D, f->mins, f->excess, f->per == 1 ? v[b] : acc);
        at[0] += step, at[1] += step;
    }
    if (f->per > 1) return;
    for (; b < 4; b++) memset(v[b], 0, vectors * sizeof(vf));
    add_four((const vf(*)[VECTORS])v, vectors, acc);
}

// Four integers of each of four rows become four rows of one of each, stride bytes apart.
INLINE void turn4(const void *a, const void *b, const void *c, const void *d, char *to, size_t stride) {
    __m128i v0 = _mm_loadu_si128(a), v1 = _mm_loadu_si128(b), v2 = _mm_loadu_si128(c), v3 = _mm_loadu_si128(d);
    __m128i lo = _mm_unpacklo_epi32(v0, v1), hi = _mm_unpackhi_epi32(v0, v1), lo2 = _mm_unpacklo_epi32(v2, v3), hi2 = _mm_unpackhi_epi32(v2, v3);
    _mm_storeu_si128((void *)to, _mm_unpacklo_epi64(lo, lo2));
    _mm_storeu_si128((void *)(to + stride), _mm_unpackhi_epi64(lo, lo2));
    _mm_storeu_si128((void *)(to + 2 * stride), _mm_unpacklo_epi64(hi, hi2));
    _mm_storeu_si128((void *)(to + 3 * stride), _mm_unpackhi_epi64(hi, hi2));
}

// Rows of the band to y, whose columns are ldy apart; the first columns of them. A row of vectors is width floats.
UNPACK void store_band(const float *acc, int width, int D, int rows, int columns, float *y, size_t ldy) {
    const int c4 = D == 1 ? columns & ~3 : 0, r4 = rows & ~3;
    for (int c = 0; c < c4; c += 4)
        for (int r = 0; r < r4; r += 4) {
            const float *from = acc + r * width + c;
            turn4(from, from + width, from + 2 * width, from + 3 * width, (char *)(y + c * ldy + r), 4 * ldy);
        }
    for (int c = 0; c < columns; c++)
        for (int r = c < c4 ? r4 : 0; r < rows; r += D)
            memcpy(y + c * ldy + r, acc + r / D * width + c * D, 4 * (rows - r < D ? rows - r : D));
}

#define WIDE_ARGS const char *w, size_t row_bytes, int rows, const char *a, size_t group_bytes, int ncols, int n, float *y, size_t ldy

// Rows in bands, whose sums stay in the cache; in a band four super-blocks at a time, so that the columns stay there too.
UNPACK void walk_wide(const wide_format *f, WIDE_ARGS) {
    const int step = f->per == 1 ? sizeof(wide_k) : sizeof(wide_32), per = 4 * f->per;
    for (int c = 0, G; c < ncols; c += G * LANES) {
        const int left = ncols - c, D = copies(left);
        G = left > LANES + LANES / 2 ? 2 : 1;
        const char *x[2] = {a + c / 16 * group_bytes + c % 16 * 4, a + (c + LANES) / 16 * group_bytes + (c + LANES) % 16 * 4};
        if (G == 1) x[1] = x[0];
        for (int r0 = 0; r0 < rows; r0 += BAND) {
            const int count = rows - r0 < BAND ? rows - r0 : BAND, tile = tile_rows(G, D);
            vf acc[BAND * 2];
            memset(acc, 0, BAND / D * G * sizeof(vf));
            for (int b = 0; b * per < n; b++) {
                const char *p = w + r0 * row_bytes + (size_t)b * 4 * f->size;
                const char *at[2] = {x[0] + b * 4 * step, x[1] + b * 4 * step};
                const char *after = (b + 1) * per < n ? p + 4 * f->size : w + (r0 + BAND) * row_bytes; // of these columns
                for (int r = 0; r < count; r += tile) {
                    const char *q = p + r * row_bytes, *next = r + tile < count ? q + tile * row_bytes : after;
                    tile_wide(f, q, row_bytes, count - r < tile ? count - r : tile, next - q, at, G, D,
                              n - b * per < per ? n - b * per : per, acc + r / D * G);
                }
            }
            store_band((const float *)acc, G * LANES, D, count, left < G * LANES ? left : G * LANES, y + c * ldy + r0, ldy);
        }
    }
}

// ---- columns side by side ----------------------------------------------------------------------------------------------

// The column of every lane of a group: where few are left they are taken several times, see copies.
INLINE int lanes_of(const cols_t *x, const char *from[16]) {
    int lane = 0;
    for (int c = 0; c < x->n; c += LANES) {
        const int left = x->n - c < LANES ? x->n - c : LANES, D = copies(left);
        for (int i = 0; i < LANES; i++, lane++) from[lane] = column(x, c + (i / D < left ? i / D : left - 1));
    }
    return lane;
}

INLINE void turn(const char *const *from, size_t at, int count, char *to) { // count integers of four columns
    for (int i = 0; i < count; i += 4, at += 16) turn4(from[0] + at, from[1] + at, from[2] + at, from[3] + at, to + 64 * i, 64);
}

static void pack_k(const cols_t *x, int nb, void *packed) {
    const char *from[16];
    const int lanes = lanes_of(x, from);
    for (int b = 0; b < nb; b++) {
        wide_k *a = (wide_k *)packed + b;
        const size_t g = b / 4 * sizeof(act_k), s = b % 4;
        for (int c = 0; c < lanes; c += 4) {
            turn(from + c, g + offsetof(act_k, q) + 256 * s, 64, (char *)a->q[0][c]);
            turn(from + c, g + offsetof(act_k, s32) + 16 * s, 4, (char *)a->s32[0][c]);
            turn(from + c, g + offsetof(act_k, s16) + 32 * s, 8, (char *)a->s16[0][c]);
        }
        for (int c = 0; c < lanes; c++) a->d[c] = ((const act_k *)(from[c] + g))->d[s];
    }
}

static void pack_32(const cols_t *x, int n, void *packed) {
    const char *from[16];
    const int lanes = lanes_of(x, from);
    for (int b = 0; b * 8 < n; b++) {
        wide_32 *a = (wide_32 *)packed + b;
        const size_t g = b * sizeof(act_32);
        for (int c = 0; c < lanes; c += 4) {
            turn(from + c, g + offsetof(act_32, q), 64, (char *)a->q[0][c]);
            turn(from + c, g + offsetof(act_32, sum), 8, (char *)(a->sum[0] + c));
            turn(from + c, g + offsetof(act_32, d), 8, (char *)(a->d[0] + c));
        }
    }
}

// ---- formats -----------------------------------------------------------------------------------------------------------

// fill_name: panel_name(q, t, r) unpacks one row; whole: for blocks of 32, completes the last eight of a row.
#define FILL(name, size, whole)                                                                                \
    UNPACK void fill_##name(const char *w, size_t row_bytes, int rows, int total, int blocks, ptrdiff_t ahead, panel *t) { \
        for (int r = 0; r < total; r++) {                                                                      \
            const char *q = w + (r < rows ? r : rows - 1) * row_bytes;                                         \
            char copy[size];                                                                                   \
            for (int i = 0; i < size; i += 64) _mm_prefetch(q + ahead + i, _MM_HINT_T0);                       \
            panel_##name(whole ? whole_group(q, blocks, size, copy) : q, t, r);                                \
        }                                                                                                      \
    }
#define WIDE(name, ...)                                                                                        \
    static const wide_format wide_##name = {__VA_ARGS__, .fill = fill_##name};                                 \
    static void name##_wide(WIDE_ARGS) { walk_wide(&wide_##name, w, row_bytes, rows, a, group_bytes, ncols, n, y, ldy); }
#define WIDE_K(name, bytes, by, with_mins) FILL(name, bytes, 0) WIDE(name, .size = bytes, .per = 1, .mins = with_mins, .values = by)
#define WIDE_32(name, bytes, by, with_mins, more) \
    FILL(name, bytes, 1) WIDE(name, .size = bytes, .per = 8, .mins = with_mins, .excess = more, .values = by)

// Formats of code books: unpacked by plain C.
#define WIDE_BOOK(name, bytes, by, unpack)                                                                     \
    INLINE void panel_##name(const char *q, panel *t, int r) {                                                 \
        block_k b;                                                                                             \
        unpack((const uint8_t *)q, &b);                                                                        \
        panel_any(&b, t, r);                                                                                   \
    }                                                                                                          \
    WIDE_K(name, bytes, by, 0)
#define WIDE_BOOKS(by)                                                                                         \
    WIDE_BOOK(iq2_xxs, 66, by, unpack_iq2_xxs) WIDE_BOOK(iq2_xs, 74, by, unpack_iq2_xs) WIDE_BOOK(iq3_xxs, 98, by, unpack_iq3_xxs) \
    WIDE_BOOK(iq1_s, 50, by, unpack_iq1_s) WIDE_BOOK(iq3_s, 110, by, unpack_iq3_s) WIDE_BOOK(iq2_s, 82, by, unpack_iq2_s)          \
    WIDE_BOOK(iq1_m, 56, by, unpack_iq1_m) WIDE_BOOK(tq1_0, 54, by, unpack_tq1_0) WIDE_BOOK(tq2_0, 66, by, unpack_tq2_0)

#define WIDE_TABLE                                                                                             \
    .wide = {[2] = q4_0_wide, [3] = q4_1_wide, [6] = q5_0_wide, [7] = q5_1_wide, [8] = q8_0_wide, [10] = q2_k_wide, [11] = q3_k_wide, \
             [12] = q4_k_wide, [13] = q5_k_wide, [14] = q6_k_wide, [16] = iq2_xxs_wide, [17] = iq2_xs_wide, [18] = iq3_xxs_wide,      \
             [19] = iq1_s_wide, [20] = iq4_nl_wide, [21] = iq3_s_wide, [22] = iq2_s_wide, [23] = iq4_xs_wide, [29] = iq1_m_wide,      \
             [34] = tq1_0_wide, [35] = tq2_0_wide, [39] = mxfp4_wide},
