// Rows of every quantised format by plain C, 8 columns at a time: the whole scalar set, and what the other sets have
// nothing faster for. Included by each set under its own instruction target.
#include "unpack.h"
#include <math.h>

INLINE const void *column(const cols_t *x, int c) { return x->base + (size_t)x->index[c] * x->stride; }

// Rows whose weights stay in the first-level cache while further columns pass over them.
INLINE int rows_at_once(size_t row_bytes) { return row_bytes > 8192 ? 2 : (int)(16384 / row_bytes) & ~1; }

INLINE int32_t dot256(const int16_t *w, const int8_t *x) {
    int32_t sum = 0;
    for (int i = 0; i < 256; i++) sum += w[i] * (int16_t)x[i];
    return sum;
}

INLINE int32_t dot_bytes(const int8_t *w, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += (int16_t)w[i] * (int16_t)x[i];
    return sum;
}

INLINE float tree4(const float *v) { return (v[0] + v[1]) + (v[2] + v[3]); }

#define ROWS_ARGS const char *w, size_t row_bytes, int rows, const cols_t *x, int n, float *y, size_t ldy

typedef void (*unpack_k_fn)(const uint8_t *p, block_k *t);
typedef void (*unpack_32_fn)(const uint8_t *p, block_32 *t);

INLINE float value_k(const block_k *t, const int16_t *scaled, const act_k *a, int s, int mins) {
    float dx = a->d[s], v = (t->d * dx) * (float)dot256(scaled, a->q[s]);
    if (!mins) return v;
    int32_t m = 0;
    for (int i = 0; i < 16; i++) m += t->min[i] * a->s16[s][i];
    return fmaf(-(t->dmin * dx), (float)-(m >> 4), v);
}

UNPACK void plain_k(ROWS_ARGS, unpack_k_fn unpack, int size, int mins) {
    for (int r = 0; r < rows; r++)
        for (int c0 = 0; c0 < x->n; c0 += 8) {
            int cols = x->n - c0 < 8 ? x->n - c0 : 8;
            float acc[8] = {0}, v[8][4] = {{0}};
            for (int b = 0; b < n; b++) {
                block_k t;
                _Alignas(64) int16_t scaled[256];
                unpack((const uint8_t *)w + r * row_bytes + (size_t)b * size, &t);
                for (int i = 0; i < 256; i++) scaled[i] = t.scale[i / 16] * t.q[i];
                for (int c = 0; c < cols; c++) {
                    v[c][b % 4] = value_k(&t, scaled, (const act_k *)column(x, c0 + c) + b / 4, b % 4, mins);
                    if (b % 4 != 3 && b != n - 1) continue;
                    acc[c] += tree4(v[c]);
                    memset(v[c], 0, sizeof v[c]);
                }
            }
            for (int c = 0; c < cols; c++) y[(c0 + c) * ldy + r] = acc[c];
        }
}

// The eight values of a group of 32; kind: 0 plain, 1 with mins, 2 two scales per block.
INLINE void values32(const block_32 *t, const act_32 *a, float v[8], int kind) {
    for (int b = 0; b < 8; b++) {
        float dx = a->d[b];
        int32_t s0 = dot_bytes(t->q + 32 * b, a->q + 32 * b, 16), s1 = dot_bytes(t->q + 32 * b + 16, a->q + 32 * b + 16, 16);
        if (kind == 2) v[b] = (t->d[2 * b] * dx) * (float)s0 + (t->d[2 * b + 1] * dx) * (float)s1;
        else v[b] = (t->d[2 * b] * dx) * (float)(s0 + s1);
        if (kind == 1) v[b] = fmaf(t->m[b] * dx, (float)a->sum[b], v[b]);
    }
}

enum { LARGEST_32 = 272 }; // bytes of eight blocks of Q8_0

// The last group of a row, completed with zeros: their values are 0.
INLINE const char *whole_group(const char *p, int blocks, size_t size, char *copy) {
    if (blocks >= 8) return p;
    memset(copy, 0, size);
    return memcpy(copy, p, blocks * size / 8);
}

UNPACK void plain_32(ROWS_ARGS, unpack_32_fn unpack, int size, int kind) {
    for (int r = 0; r < rows; r++)
        for (int c0 = 0; c0 < x->n; c0 += 8) {
            int cols = x->n - c0 < 8 ? x->n - c0 : 8;
            float acc[8] = {0}, v[8];
            for (int g = 0; g * 8 < n; g++) {
                char copy[LARGEST_32];
                block_32 t;
                unpack((const uint8_t *)whole_group(w + r * row_bytes + (size_t)g * size, n - 8 * g, size, copy), &t);
                for (int c = 0; c < cols; c++) {
                    values32(&t, (const act_32 *)column(x, c0 + c) + g, v, kind);
                    acc[c] += tree4(v);
                    acc[c] += tree4(v + 4);
                }
            }
            for (int c = 0; c < cols; c++) y[(c0 + c) * ldy + r] = acc[c];
        }
}

#define PLAIN_K(name, number, size, mins) \
    static void plain_##name(ROWS_ARGS) { plain_k(w, row_bytes, rows, x, n, y, ldy, unpack_##name, size, mins); }
#define PLAIN_32(name, number, size, kind) \
    static void plain_##name(ROWS_ARGS) { plain_32(w, row_bytes, rows, x, n, y, ldy, unpack_##name, size, kind); }
FORMATS_K(PLAIN_K)
FORMATS_32(PLAIN_32)
#define PLAIN_ROW(name, number, size, kind) [number] = plain_##name,
