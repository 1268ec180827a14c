// The walk over rows shared by the x86 sets: groups of four super-blocks (two rows per group where a row has two), or of
// eight blocks of 32, in the order of the file, 1 to 4 columns at a time.

INLINE float tree(__m128 v) { // (v0 + v1) + (v2 + v3)
    __m128 s = _mm_add_ps(v, _mm_movehdup_ps(v));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehl_ps(s, s)));
}

// The hardware prefetcher alone leaves a fifth of the memory's speed unused; BenchmarkMul shows the distance's effect.
INLINE void ahead(const char *p, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch(p + AHEAD + i, _MM_HINT_T0);
}

// Three columns are computed as four, the last one twice; only three are stored.
#define WALK(name)                                                                                             \
    static void name(ROWS_ARGS) {                                                                              \
        int step = x->n <= 4 ? rows : rows_at_once(row_bytes);                                                 \
        for (int r = 0; r < rows; r += step) {                                                                 \
            int count = rows - r < step ? rows - r : step;                                                     \
            for (int c = 0; c < x->n; c += 4) {                                                                \
                const char *at = w + r * row_bytes;                                                            \
                float *to = y + c * ldy + r;                                                                   \
                int cols = x->n - c < 4 ? x->n - c : 4;                                                        \
                const void *p[4];                                                                              \
                for (int k = 0; k < 4; k++) p[k] = column(x, k < cols ? c + k : c + cols - 1);                 \
                if (cols == 1) name##_cols(at, row_bytes, count, (const void *)p, 1, 1, n, to, ldy);           \
                else if (cols == 2) name##_cols(at, row_bytes, count, (const void *)p, 2, 2, n, to, ldy);      \
                else name##_cols(at, row_bytes, count, (const void *)p, 4, cols, n, to, ldy);                  \
            }                                                                                                  \
        }                                                                                                      \
    }

// group(p, x, C, g, v): the values of the super-blocks at p[0..3] with group g of C columns. Bytes are loaded only
// inside the row: where super-blocks are missing the first one stands in and its value is dropped.
#define ROWS_K(name, group, size)                                                                              \
    INLINE void name##_cols(const char *w, size_t row_bytes, int rows, const act_k *const *x, const int C, int cols, int n, float *y, size_t ldy) { \
        for (int r = 0, pair; r < rows; r += 1 + pair) {                                                       \
            const char *a = w + r * row_bytes;                                                                 \
            float acc[4] = {0};                                                                                \
            __m128 v[4], s;                                                                                    \
            pair = n == 2 && r + 2 <= rows;                                                                    \
            for (int b = 0; b < n; b += 4, a += 4 * size) {                                                    \
                const int left = pair ? 4 : n - b;                                                             \
                const size_t third = pair ? row_bytes : 2 * size;                                              \
                const char *const p[4] = {a, left > 1 ? a + size : a, left > 2 ? a + third : a, left > 3 ? a + third + size : a};\
                __m128 live = _mm_castsi128_ps(_mm_cmplt_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(left)));\
                ahead(a, 4 * size);                                                                            \
                group(p, x, C, b / 4, v);                                                                      \
                if (!pair)                                                                                     \
                    for (int c = 0; c < C; c++) acc[c] += tree(_mm_and_ps(v[c], live));                        \
            }                                                                                                  \
            for (int c = 0; c < cols; c++) {                                                                   \
                float *to = y + c * ldy + r;                                                                   \
                if (!pair) {                                                                                   \
                    *to = acc[c];                                                                              \
                    continue;                                                                                  \
                }                                                                                              \
                s = _mm_add_ps(_mm_add_ps(v[c], _mm_movehdup_ps(v[c])), _mm_setzero_ps());                     \
                to[0] = _mm_cvtss_f32(s), to[1] = _mm_cvtss_f32(_mm_movehl_ps(s, s));                          \
            }                                                                                                  \
        }                                                                                                      \
    }                                                                                                          \
    WALK(name)

// group(p, x, C, g, v): the values of the eight blocks at p.
#define ROWS_32(name, group, size)                                                                             \
    INLINE void name##_cols(const char *w, size_t row_bytes, int rows, const act_32 *const *x, const int C, int cols, int n, float *y, size_t ldy) { \
        for (int r = 0; r < rows; r++) {                                                                       \
            const char *a = w + r * row_bytes;                                                                 \
            float acc[4] = {0};                                                                                \
            __m256 v[4];                                                                                       \
            for (int b = 0; b < n; b += 8, a += size) {                                                        \
                char copy[size];                                                                               \
                ahead(a, size);                                                                                \
                group(whole_group(a, n - b, size, copy), x, C, b / 8, v);                                      \
                for (int c = 0; c < C; c++) {                                                                  \
                    acc[c] += tree(_mm256_castps256_ps128(v[c]));                                              \
                    acc[c] += tree(_mm256_extractf128_ps(v[c], 1));                                            \
                }                                                                                              \
            }                                                                                                  \
            for (int c = 0; c < cols; c++) y[c * ldy + r] = acc[c];                                            \
        }                                                                                                      \
    }                                                                                                          \
    WALK(name)
