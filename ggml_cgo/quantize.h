// Activations, quantised as Q8_K (act_k) and Q8_0 (act_32). Plain C that the compiler
// turns into vectors of the set's width; the bits are the same everywhere. Not finite input gives a scale of NaN, so
// that every result that reads it is NaN too; magnitudes below 2^-116, whose inverse scale would overflow, count as 0.

// Largest magnitude of x[0..n), as bits: they order like the numbers.
INLINE uint32_t top_bits(const float *x, int n) {
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    return top;
}

// x * inverse to the nearest integer, ties to even, by adding 1.5 * 2^23; the product is at most 127.5 in magnitude.
INLINE void to_codes(const float *x, int n, float inverse, int8_t *q) {
    for (int i = 0; i < n; i++) {
        float f = x[i] * inverse + 12582912.f;
        int32_t u;
        memcpy(&u, &f, 4);
        u -= 0x4b400000;
        q[i] = (int8_t)(u > 127 ? 127 : u);
    }
}

enum { TOO_SMALL = (127 - 116) << 23, NOT_FINITE = 0x7f800000 };

INLINE float bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

// 256 values: d = -(signed value of largest magnitude) / 127, the first of equals.
INLINE float codes_k(const float *x, int8_t *q) {
    uint32_t top = top_bits(x, 256);
    if (top < TOO_SMALL || top >= NOT_FINITE) {
        memset(q, 0, 256);
        return top < TOO_SMALL ? 0 : bits_float(0x7fc00000);
    }
    float max = bits_float(top), inverse;
    int i = 0;
    while (x[i] != max && x[i] != -max) i++;
    inverse = -127.f / x[i];
    to_codes(x, 256, inverse, q);
    return 1 / inverse;
}

INLINE float codes_32(const float *x, int8_t *q) {
    uint32_t top = top_bits(x, 32);
    if (top < TOO_SMALL || top >= NOT_FINITE) {
        memset(q, 0, 32);
        return top < TOO_SMALL ? 0 : bits_float(0x7fc00000);
    }
    float d = bits_float(top) / 127.f;
    to_codes(x, 32, 1.f / d, q);
    return d;
}

INLINE void sums_k(act_k *a, int s) {
    for (int i = 0; i < 16; i++) {
        int sum = 0;
        for (int k = 0; k < 16; k++) sum += a->q[s][16 * i + k];
        a->s16[s][i] = (int16_t)(-16 * sum);
    }
    for (int i = 0; i < 8; i++) a->s32[s][i] = (int16_t)-((a->s16[s][2 * i] + a->s16[s][2 * i + 1]) / 16);
}

INLINE void copy_k(act_k *to, int t, const act_k *from, int s) {
    memcpy(to->q[t], from->q[s], 256);
    memcpy(to->p[t], from->p[s], 256);
    memcpy(to->s16[t], from->s16[s], 32);
    memcpy(to->s32[t], from->s32[s], 16);
    to->d[t] = from->d[s];
}

INLINE void clear_k(act_k *a, int s) {
    memset(a->q[s], 0, 256);
    memset(a->p[s], 0, 256);
    memset(a->s16[s], 0, 32);
    memset(a->s32[s], 0, 16);
    a->d[s] = 0;
}

static void quantize_k(void *column, int cols, int from, const float *x, int count) {
    static const uint8_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    int nb = cols / 256, b = from / 256, end = (from + count) / 256;
    act_k *a = column;
    for (; b < end; b++, x += 256) {
        act_k *g = a + b / 4;
        int s = b % 4;
        g->d[s] = codes_k(x, g->q[s]);
        for (int i = 0; i < 8; i++) memcpy(g->p[s] + 32 * i, g->q[s] + 32 * order[i], 32);
        sums_k(g, s);
        if (nb == 2) copy_k(a, s + 2, a, s);
    }
    if (end == nb && nb != 2)
        for (; b % 4; b++) clear_k(a + b / 4, b % 4);
}

INLINE void block_of_32(act_32 *g, int s, const float *x) {
    g->d[s] = codes_32(x, g->q + 32 * s);
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += g->q[32 * s + i];
    g->sum[s] = sum;
    int8_t *h = g->h + s / 4 * 128 + s % 4 * 16;
    memcpy(h, g->q + 32 * s, 16);
    memcpy(h + 64, g->q + 32 * s + 16, 16);
}

static void quantize_32(void *column, int cols, int from, const float *x, int count) {
    static const float none[32];
    int nb = cols / 32, b = from / 32, end = (from + count) / 32;
    act_32 *a = column;
    for (; b < end; b++, x += 32) block_of_32(a + b / 8, b % 8, x);
    if (end == nb)
        for (; b % 8; b++) block_of_32(a + b / 8, b % 8, none);
}
