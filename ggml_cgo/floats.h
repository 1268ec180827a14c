// Matrices of F32, F16 and BF16 against float32 columns. 32 lanes: lane i adds the products of elements i, i + 32, ...
// in order (a multiply, then an add); then lanes i and i + 16, i and i + 8, i and i + 4, i and i + 2, the last two.
// The set defines FLOAT_LANES (of its vectors), FLOAT_ROWS and FLOAT_COLS (how much fits its registers), and LOAD_F16 where
// it has an instruction.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
enum { FLOAT_VECTORS = 32 / FLOAT_LANES };
typedef float fv __attribute__((vector_size(4 * FLOAT_LANES)));
typedef float fvu __attribute__((vector_size(4 * FLOAT_LANES), aligned(1), may_alias));
typedef uint16_t hvu __attribute__((vector_size(2 * FLOAT_LANES), aligned(1), may_alias));
typedef uint32_t uv __attribute__((vector_size(4 * FLOAT_LANES)));

INLINE fv load_f32(const char *p) { return *(const fvu *)p; }
INLINE fv load_bf16(const char *p) { return (fv)(__builtin_convertvector(*(const hvu *)p, uv) << 16); }
#ifdef LOAD_F16
INLINE fv load_f16(const char *p) { return LOAD_F16(p); }
#else
INLINE fv load_f16(const char *p) {
    fv v;
    for (int i = 0; i < FLOAT_LANES; i++) v[i] = half(p + 2 * i);
    return v;
}
#endif

INLINE float add_lanes(const fv *acc) {
    fv a[FLOAT_VECTORS];
    float s[FLOAT_LANES];
#pragma GCC unroll 8
    for (int i = 0; i < FLOAT_VECTORS; i++) a[i] = acc[i];
#pragma GCC unroll 4
    for (int half = FLOAT_VECTORS / 2; half; half /= 2)
#pragma GCC unroll 4
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    memcpy(s, a, sizeof s);
    for (int half = FLOAT_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    return s[0];
}

#define FLOATS(name, bytes)                                                                                          \
    INLINE void name##_tile(const char *w, size_t row_bytes, const float *const *x, int n, float *y, size_t ldy, const int R, const int C) { \
        enum { L = FLOAT_LANES, V = FLOAT_VECTORS };                                                                 \
        fv acc[FLOAT_ROWS][FLOAT_COLS][V];                                                                           \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                          \
            _Pragma("GCC unroll 8") for (int c = 0; c < C; c++)                                                      \
                _Pragma("GCC unroll 8") for (int k = 0; k < V; k++) acc[r][c][k] = (fv){0};                          \
        for (int i = 0; i + 32 <= n; i += 32) {                                                                      \
            if (R * C == 1) __builtin_prefetch(w + i * bytes + AHEAD), bytes == 4 ? __builtin_prefetch(w + i * bytes + 64 + AHEAD) : (void)0; \
            _Pragma("GCC unroll 8") for (int k = 0; k < V; k++) {                                                    \
                fv u[FLOAT_ROWS];                                                                                    \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) u[r] = load_##name(w + r * row_bytes + (i + L * k) * bytes); \
                _Pragma("GCC unroll 8") for (int c = 0; c < C; c++) {                                                \
                    fv a = *(const fv *)(x[c] + i + L * k);                                                          \
                    _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) acc[r][c][k] += u[r] * a;                    \
                }                                                                                                    \
            }                                                                                                        \
        }                                                                                                            \
        int rest = n % 32;                                                                                           \
        if (rest)                                                                                                    \
            for (int r = 0; r < R; r++) {                                                                            \
                char last[32 * bytes] = {0};                                                                         \
                memcpy(last, w + r * row_bytes + (n - rest) * bytes, rest * bytes);                                  \
                for (int c = 0; c < C; c++)                                                                          \
                    for (int k = 0; k < V; k++) acc[r][c][k] += load_##name(last + L * k * bytes) * *(const fv *)(x[c] + n - rest + L * k); \
            }                                                                                                        \
        for (int r = 0; r < R; r++)                                                                                  \
            for (int c = 0; c < C; c++) y[c * ldy + r] = add_lanes(acc[r][c]);                                       \
    }                                                                                                                \
    INLINE void name##_block(const char *w, size_t row_bytes, int rows, const float *const *x, const int C, int n, float *y, size_t ldy) { \
        int r = 0;                                                                                                   \
        if (FLOAT_ROWS > 1 && C > 1)                                                                                 \
            for (; r + FLOAT_ROWS <= rows; r += FLOAT_ROWS) name##_tile(w + r * row_bytes, row_bytes, x, n, y + r, ldy, FLOAT_ROWS, C); \
        for (; r < rows; r++) name##_tile(w + r * row_bytes, row_bytes, x, n, y + r, ldy, 1, C);                     \
    }                                                                                                                \
    static void name##_rows(ROWS_ARGS) {                                                                             \
        const int few = rows_at_once(row_bytes), step = x->n <= FLOAT_COLS ? rows : few < FLOAT_ROWS ? FLOAT_ROWS : few; \
        const int cols = x->n >= FLOAT_COLS ? FLOAT_COLS : 1; /* at a time: the last ones overlap those before */    \
        for (int r = 0; r < rows; r += step) {                                                                       \
            const int count = rows - r < step ? rows - r : step;                                                     \
            for (int at = 0; at < x->n; at += cols) {                                                                \
                const float *p[FLOAT_COLS];                                                                          \
                const int c = at + cols <= x->n ? at : x->n - cols;                                                  \
                for (int k = 0; k < cols; k++) p[k] = column(x, c + k);                                              \
                if (cols == 1) name##_block(w + r * row_bytes, row_bytes, count, p, 1, n, y + c * ldy + r, ldy);     \
                else name##_block(w + r * row_bytes, row_bytes, count, p, FLOAT_COLS, n, y + c * ldy + r, ldy);      \
            }                                                                                                        \
        }                                                                                                            \
    }
FLOATS(f32, 4)
FLOATS(f16, 2)
FLOATS(bf16, 2)
