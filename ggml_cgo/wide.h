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

// A panel to be filled: 256 weights of rows rows (the last of them again and again, where a tile has more); 0: none.
typedef struct {
    const char *w;
    size_t row_bytes;
    int rows, blocks; // blocks: how many of eight there are in the row, for blocks of 32
    ptrdiff_t ahead;  // where, from w, the rows lie that are wanted after these
    panel *t, *other; // other: the one that is computed meanwhile
} panel_job;

// What a product needs to know of a format. values computes on a panel and fills the next one between its products, which
// need other parts of the CPU; where it does not, fill does it before (apart).
typedef struct {
    int size, per, mins, excess, apart; // bytes of 256 weights; blocks in them; excess: what was added to the codes of blocks of 32
    void (*fill)(const panel_job *next, int rows, int D);
    void (*values)(const panel *t, const char *const *x, int G, int D, int mins, int excess, const panel_job *next, vf *v);
} wide_format;

// Of a set: 256 weights of a format, by its number, to row, and their scales to row r of the panel; D rows, interleaved.
INLINE void panel_row(const int format, const char *q, uint8_t *row, panel *t, int r, int blocks);
INLINE void interleave(const uint8_t (*rows)[ROW_BYTES], uint8_t (*to)[ROW_BYTES], const int D);

// D rows of a panel from row r on.
INLINE void fill_rows(const panel_job *j, int r, const int format, const int size, const int D) {
    _Alignas(64) uint8_t rows[4][ROW_BYTES];
#pragma GCC unroll 4
    for (int k = 0; k < D; k++) {
        const char *q = j->w + (size_t)(r + k < j->rows ? r + k : j->rows - 1) * j->row_bytes;
        for (int i = 0; i < size; i += 64) _mm_prefetch(q + j->ahead + i, _MM_HINT_T0);
        panel_row(format, q, D == 1 ? j->t->row[r] : rows[k], j->t, r + k, j->blocks);
    }
    if (D > 1) interleave((const uint8_t(*)[ROW_BYTES])rows, j->t->row + r, D);
}

// The rows of the next panel whose turn it is after each of the eight parts of a product. format 0: none.
INLINE void fill_part(const panel_job *j, int part, const int total, const int format, const int size, const int D) {
    if (!format || !j->rows) return;
    if (total == 4 && part % 2 == 0) fill_rows(j, part / 2, format, size, 1);
    if (total == 8) fill_rows(j, part, format, size, 1);
    if (total == 16 && D == 2) fill_rows(j, 2 * part, format, size, 2);
    if (total == 16 && D == 4 && part % 2 == 0) fill_rows(j, 2 * part, format, size, 4);
}

INLINE vi load_lanes(const void *p) { return *(const vi *)p; }
INLINE vf to_floats(vi v) { return __builtin_convertvector(v, vf); }

// The values of one super-block: R vectors of rows x G vectors of columns. share: how many groups of four weights share a
// scale; chunk: how many groups fold takes at once.
INLINE void values_k(const panel *t, const char *const *x, const int R, const int G, const int D, const int share, const int chunk,
                     const int any, int mins, const int format, const int size, const panel_job *next, vf *v) {
    const panel_job job = *next;
    vi sum[VECTORS], m[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < R * G; i++) sum[i] = m[i] = (vi){0};
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
        if (k % 8 + chunk == 8) fill_part(&job, k / 8, R * D, format, size, D);
    }
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
            else sum[i] += m[i];
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
                      int mins, int excess, const int format, const int size, const panel_job *next, vf *acc) {
    const panel_job job = *next;
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
            fill_part(&job, k + b, R * D, format, size, D);
        }
        add_four((const vf(*)[VECTORS])v, R * G, acc);
    }
}

// The shapes of a tile: 4 vectors of rows x 2 of columns, 8 x 1, and with two or four rows in a vector.
#define SHAPE(name, shape, call) \
    UNPACK void name##shape(const panel *t, const char *const *x, int mins, int excess, const panel_job *next, vf *v) { call; }
#define DISPATCH(name, four)                                                                                   \
    static void name(const panel *t, const char *const *x, int G, int D, int mins, int excess, const panel_job *next, vf *v) { \
        (G == 2 ? name##_2 : D == 1 ? name##_1 : D == 2 ? name##_half : four)(t, x, mins, excess, next, v);    \
    }
#if LANES == 16
#define QUARTER(...) __VA_ARGS__
#define FOUR(name) name##_quarter
#else
#define QUARTER(...)
#define FOUR(name) name##_half
#endif
#define VALUES_K(name, share, chunk, any, format, size)                                                        \
    SHAPE(name, _2, values_k(t, x, 4, 2, 1, share, chunk, any, mins, format, size, next, v))                   \
    SHAPE(name, _1, values_k(t, x, 8, 1, 1, share, chunk, any, mins, format, size, next, v))                   \
    SHAPE(name, _half, values_k(t, x, 8, 1, 2, share, chunk, any, mins, format, size, next, v))                \
    QUARTER(SHAPE(name, _quarter, values_k(t, x, 4, 1, 4, share, chunk, any, mins, format, size, next, v)))    \
    DISPATCH(name, FOUR(name))
#define VALUES_32(name, chunk, any, format, size)                                                              \
    SHAPE(name, _2, add_eight(t, x, 4, 2, 1, chunk, any, mins, excess, format, size, next, v))                 \
    SHAPE(name, _1, add_eight(t, x, 8, 1, 1, chunk, any, mins, excess, format, size, next, v))                 \
    SHAPE(name, _half, add_eight(t, x, 8, 1, 2, chunk, any, mins, excess, format, size, next, v))              \
    QUARTER(SHAPE(name, _quarter, add_eight(t, x, 4, 1, 4, chunk, any, mins, excess, format, size, next, v)))  \
    DISPATCH(name, FOUR(name))

// The rows of a tile: as many vectors of rows as the shape has, D rows each.
INLINE int tile_rows(int G, int D) { return D == 4 ? 16 : 8 * D / G; }

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

// A walk over the tiles of a matrix: rows in bands, whose sums stay in the cache; in a band four super-blocks at a time, so
// that the columns stay there too. The panel after the one that is computed is filled meanwhile, across tiles and bands.
typedef struct { int band, block, row; } wide_tile; // first row, fours of super-blocks before it, row within the band
typedef struct {
    const wide_format *f;
    const char *w;
    size_t row_bytes;
    int rows, n, G, D;
} wide_walk;

INLINE int per_tile(const wide_walk *k) { return 4 * k->f->per; } // super-blocks or blocks of a row
INLINE int band_rows(const wide_walk *k, int band) { return k->rows - band < BAND ? k->rows - band : BAND; }

INLINE wide_tile tile_after(const wide_walk *k, wide_tile t) {
    t.row += tile_rows(k->G, k->D);
    if (t.row < band_rows(k, t.band)) return t;
    t.row = 0;
    if (++t.block * per_tile(k) < k->n) return t;
    return (wide_tile){t.band + BAND, 0, 0};
}

INLINE const char *tile_bytes(const wide_walk *k, wide_tile t) {
    return k->w + (size_t)(t.band + t.row) * k->row_bytes + (size_t)t.block * 4 * k->f->size;
}

// The first panel of a tile; of one beyond the matrix nothing is filled.
INLINE void first_panel(const wide_walk *k, wide_tile t, panel_job *job) {
    const int left = band_rows(k, t.band) - t.row, most = tile_rows(k->G, k->D);
    job->w = tile_bytes(k, t);
    job->ahead = tile_bytes(k, tile_after(k, t)) - job->w;
    job->rows = t.band >= k->rows ? 0 : left < most ? left : most;
    job->blocks = k->n - t.block * per_tile(k);
}

// Adds the values of a tile: four super-blocks (or what is left of the row), or as many groups of eight blocks. job: its
// first panel, filled; then that of the next tile.
UNPACK void add_tile(const wide_walk *k, wide_tile at, wide_tile next, const char *const *x, panel_job *job, vf *acc) {
    vf v[4][VECTORS];
    const wide_format *f = k->f;
    const int vectors = tile_rows(k->G, k->D) / k->D * k->G, step = f->per == 1 ? sizeof(wide_k) : sizeof(wide_32);
    const char *column[2] = {x[0] + at.block * 4 * step, x[1] + at.block * 4 * step};
    int left = k->n - at.block * per_tile(k), b = 0;
    if (left > per_tile(k)) left = per_tile(k);
    for (; left > 0; b++, left -= f->per) {
        const panel *now = job->t;
        job->t = job->other, job->other = (panel *)now;
        if (left > f->per) job->w += f->size, job->blocks -= f->per;
        else first_panel(k, next, job);
        if (f->apart && job->rows) f->fill(job, tile_rows(k->G, k->D), k->D);
        f->values(now, column, k->G, k->D, f->mins, f->excess, job, f->per == 1 ? v[b] : acc);
        column[0] += step, column[1] += step;
    }
    if (f->per > 1) return;
    for (; b < 4; b++) memset(v[b], 0, vectors * sizeof(vf));
    add_four((const vf(*)[VECTORS])v, vectors, acc);
}

UNPACK void walk_wide(const wide_format *f, WIDE_ARGS) {
    for (int c = 0, G; c < ncols; c += G * LANES) {
        const int left = ncols - c, D = copies(left);
        G = left > LANES + LANES / 2 ? 2 : 1;
        const char *x[2] = {a + c / 16 * group_bytes + c % 16 * 4, a + (c + LANES) / 16 * group_bytes + (c + LANES) % 16 * 4};
        if (G == 1) x[1] = x[0];
        const wide_walk k = {f, w, row_bytes, rows, n, G, D};
        panel t[2];
        vf acc[BAND * 2];
        panel_job job = {.row_bytes = row_bytes, .t = t, .other = t + 1};
        wide_tile at = {0}, next;
        first_panel(&k, at, &job);
        f->fill(&job, tile_rows(G, D), D);
        for (; at.band < rows; at = next) {
            next = tile_after(&k, at);
            if (at.row == 0 && at.block == 0) memset(acc, 0, BAND / D * G * sizeof(vf));
            add_tile(&k, at, next, x, &job, acc + at.row / D * G);
            if (next.band != at.band)
                store_band((const float *)acc, G * LANES, D, band_rows(&k, at.band), left < G * LANES ? left : G * LANES, y + c * ldy + at.band, ldy);
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

#define FILL(name, number, size)                                                                               \
    UNPACK void fill_##name(const panel_job *j, int rows, int D) {                                             \
        const panel_job job = *j; /* stores to the panel could change *j, for all the compiler knows */        \
        if (D == 1) for (int r = 0; r < rows; r++) fill_rows(&job, r, number, size, 1);                        \
        if (D == 2) for (int r = 0; r < rows; r += 2) fill_rows(&job, r, number, size, 2);                     \
        QUARTER(if (D == 4) for (int r = 0; r < rows; r += 4) fill_rows(&job, r, number, size, 4);)            \
    }
#define WIDE(name, ...)                                                                                        \
    static const wide_format wide_##name = {__VA_ARGS__, .fill = fill_##name};                                 \
    static void name##_wide(WIDE_ARGS) { walk_wide(&wide_##name, w, row_bytes, rows, a, group_bytes, ncols, n, y, ldy); }
// by: the products, which fill panels too or not (apart).
#define WIDE_K(name, number, bytes, by, no_fill, with_mins) \
    FILL(name, number, bytes) WIDE(name, .size = bytes, .per = 1, .apart = no_fill, .mins = with_mins, .values = by)
#define WIDE_32(name, number, bytes, by, no_fill, with_mins, more) \
    FILL(name, number, bytes) WIDE(name, .size = bytes, .per = 8, .apart = no_fill, .mins = with_mins, .excess = more, .values = by)
#define WIDE_BOOK(name, number, bytes, by) FILL(name, number, bytes) WIDE(name, .size = bytes, .per = 1, .apart = 1, .values = by)
#define WIDE_BOOKS(by)                                                                                         \
    WIDE_BOOK(iq2_xxs, 16, 66, by) WIDE_BOOK(iq2_xs, 17, 74, by) WIDE_BOOK(iq3_xxs, 18, 98, by) WIDE_BOOK(iq1_s, 19, 50, by)       \
    WIDE_BOOK(iq3_s, 21, 110, by) WIDE_BOOK(iq2_s, 22, 82, by) WIDE_BOOK(iq1_m, 29, 56, by) WIDE_BOOK(tq1_0, 34, 54, by)           \
    WIDE_BOOK(tq2_0, 35, 66, by)

#define PANEL_K(name, number) case number: panel_##name(q, row, t, r); break;
#define PANEL_32(name, number, size) case number: panel_##name(whole_group(q, blocks, size, copy), row, t, r); break;
#define PANEL_BOOK(codes, number) case number: codes((const uint8_t *)q, &b), panel_book(&b, row, t, r); break;
#define PANEL_ROW                                                                                              \
    INLINE void panel_row(const int format, const char *q, uint8_t *row, panel *t, int r, int blocks) {        \
        char copy[LARGEST_32];                                                                                 \
        block_k b;                                                                                             \
        switch (format) {                                                                                      \
            PANEL_K(q2_k, 10) PANEL_K(q3_k, 11) PANEL_K(q4_k, 12) PANEL_K(q5_k, 13) PANEL_K(q6_k, 14) PANEL_K(iq4_xs, 23)              \
            PANEL_BOOK(codes_iq2_xxs, 16) PANEL_BOOK(codes_iq2_xs, 17) PANEL_BOOK(codes_iq3_xxs, 18) PANEL_BOOK(codes_iq1_s, 19) PANEL_BOOK(codes_iq3_s, 21)         \
            PANEL_BOOK(codes_iq2_s, 22) PANEL_BOOK(codes_iq1_m, 29) PANEL_BOOK(unpack_tq1_0, 34) PANEL_BOOK(unpack_tq2_0, 35)            \
            PANEL_32(q4_0, 2, 144) PANEL_32(q4_1, 3, 160) PANEL_32(q5_0, 6, 176) PANEL_32(q5_1, 7, 192) PANEL_32(q8_0, 8, 272)         \
            PANEL_32(iq4_nl, 20, 144) PANEL_32(mxfp4, 39, 136)                                                 \
        }                                                                                                      \
    }

#define WIDE_TABLE                                                                                             \
    .wide = {[2] = q4_0_wide, [3] = q4_1_wide, [6] = q5_0_wide, [7] = q5_1_wide, [8] = q8_0_wide, [10] = q2_k_wide, [11] = q3_k_wide, \
             [12] = q4_k_wide, [13] = q5_k_wide, [14] = q6_k_wide, [16] = iq2_xxs_wide, [17] = iq2_xs_wide, [18] = iq3_xxs_wide,      \
             [19] = iq1_s_wide, [20] = iq4_nl_wide, [21] = iq3_s_wide, [22] = iq2_s_wide, [23] = iq4_xs_wide, [29] = iq1_m_wide,      \
             [34] = tq1_0_wide, [35] = tq2_0_wide, [39] = mxfp4_wide},
