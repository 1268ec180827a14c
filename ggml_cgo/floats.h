// Matrices of F32, F16 and BF16 against float32 columns. 32 lanes: lane i adds the products of elements i, i + 32, ...
// in order (a multiply, then an add); then lanes i and i + 16, i and i + 8, i and i + 4, i and i + 2, the last two.
// The set defines FLOAT_ROWS and FLOAT_COLS (how much fits its registers), and LOAD_F16 where it has an instruction.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
typedef float v16 __attribute__((vector_size(64)));
typedef float v16u __attribute__((vector_size(64), aligned(1), may_alias));
typedef uint16_t h16u __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint32_t u16v __attribute__((vector_size(64)));

INLINE v16 load_f32(const char *p) { return *(const v16u *)p; }
INLINE v16 load_bf16(const char *p) { return (v16)(__builtin_convertvector(*(const h16u *)p, u16v) << 16); }
#ifdef LOAD_F16
INLINE v16 load_f16(const char *p) { return LOAD_F16(p); }
#else
INLINE v16 load_f16(const char *p) {
    v16 v;
    for (int i = 0; i < 16; i++) v[i] = half(p + 2 * i);
    return v;
}
#endif

INLINE float add_lanes(v16 a, v16 b) {
    float s[16];
    a += b;
    memcpy(s, &a, 64);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    return s[0];
}

#define FLOATS(name, bytes)                                                                                          \
    INLINE void name##_tile(const char *w, size_t row_bytes, const float *const *x, int n, float *y, size_t ldy, const int R, const int C) { \
        v16 acc[FLOAT_ROWS][FLOAT_COLS][2];                                                                          \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++)                                                          \
            _Pragma("GCC unroll 8") for (int c = 0; c < C; c++) acc[r][c][0] = acc[r][c][1] = (v16){0};              \
        for (int i = 0; i + 32 <= n; i += 32) {                                                                      \
            if (R * C == 1) __builtin_prefetch(w + i * bytes + AHEAD), bytes == 4 ? __builtin_prefetch(w + i * bytes + 64 + AHEAD) : (void)0; \
            _Pragma("GCC unroll 2") for (int k = 0; k < 2; k++) {                                                    \
                v16 u[FLOAT_ROWS];                                                                                   \
                _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) u[r] = load_##name(w + r * row_bytes + (i + 16 * k) * bytes); \
                _Pragma("GCC unroll 8") for (int c = 0; c < C; c++) {                                                \
                    v16 a = *(const v16 *)(x[c] + i + 16 * k);                                                       \
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
                    for (int k = 0; k < 2; k++) acc[r][c][k] += load_##name(last + 16 * k * bytes) * *(const v16 *)(x[c] + n - rest + 16 * k); \
            }                                                                                                        \
        for (int r = 0; r < R; r++)                                                                                  \
            for (int c = 0; c < C; c++) y[c * ldy + r] = add_lanes(acc[r][c][0], acc[r][c][1]);                      \
    }                                                                                                                \
    static void name##_rows(ROWS_ARGS) {                                                                             \
        int r = 0;                                                                                                   \
        for (int step; r < rows; r += step) {                                                                        \
            step = x->n > 1 && rows - r >= FLOAT_ROWS ? FLOAT_ROWS : 1;                                              \
            for (int c = 0, cols; c < x->n; c += cols) {                                                             \
                const float *p[FLOAT_COLS];                                                                          \
                const char *at = w + r * row_bytes;                                                                  \
                float *to = y + c * ldy + r;                                                                         \
                cols = x->n - c >= FLOAT_COLS ? FLOAT_COLS : 1;                                                      \
                for (int k = 0; k < cols; k++) p[k] = column(x, c + k);                                              \
                if (cols == 1) step == 1 ? name##_tile(at, row_bytes, p, n, to, ldy, 1, 1) : name##_tile(at, row_bytes, p, n, to, ldy, FLOAT_ROWS, 1); \
                else step == 1 ? name##_tile(at, row_bytes, p, n, to, ldy, 1, FLOAT_COLS) : name##_tile(at, row_bytes, p, n, to, ldy, FLOAT_ROWS, FLOAT_COLS); \
            }                                                                                                        \
        }                                                                                                            \
    }
FLOATS(f32, 4)
FLOATS(f16, 2)
FLOATS(bf16, 2)
