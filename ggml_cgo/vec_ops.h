// The small operations. Sums run in four chains of 16 lanes, chunk c of 16 in chain c mod 4, missing lanes 0:
// ((chain 0 + chain 1) + (chain 2 + chain 3)), then over the lanes as sum does.

// CHAINS adds E, which may use AT, over n elements to four chains.
#define AT(p) at((p) + i, left, 0)
#define CHAINS(t, n, E)                                                                                                \
    do {                                                                                                               \
        ptrdiff_t i = 0, left = 16;                                                                                    \
        while (i + 64 <= (n)) {                                                                                        \
            t[0] = add(t[0], E), i += 16;                                                                              \
            t[1] = add(t[1], E), i += 16;                                                                              \
            t[2] = add(t[2], E), i += 16;                                                                              \
            t[3] = add(t[3], E), i += 16;                                                                              \
        }                                                                                                              \
        if ((left = (n)-i) > 0) t[0] = add(t[0], E), i += 16;                                                          \
        if ((left = (n)-i) > 0) t[1] = add(t[1], E), i += 16;                                                          \
        if ((left = (n)-i) > 0) t[2] = add(t[2], E), i += 16;                                                          \
        if ((left = (n)-i) > 0) t[3] = add(t[3], E), i += 16;                                                          \
    } while (0)

// MAP stores E, which may use AT, to n elements of y.
#define MAP(y, n, E)                                                                                                   \
    do {                                                                                                               \
        ptrdiff_t i = 0;                                                                                               \
        for (; i + 16 <= (n); i += 16) {                                                                               \
            enum { left = 16 };                                                                                        \
            store((y) + i, E);                                                                                         \
        }                                                                                                              \
        ptrdiff_t left = (n)-i;                                                                                        \
        if (left > 0) store_n((y) + i, E, left);                                                                       \
    } while (0)

INLINE float join(const v16 t[4]) { return sum(add(add(t[0], t[1]), add(t[2], t[3]))); }

static float op_dot(const float *a, const float *b, ptrdiff_t n) {
    v16 t[4] = {zero(), zero(), zero(), zero()};
    CHAINS(t, n, mul(AT(a), AT(b)));
    return join(t);
}

static float total(const float *x, ptrdiff_t n) {
    v16 t[4] = {zero(), zero(), zero(), zero()};
    CHAINS(t, n, AT(x));
    return join(t);
}

// y = x / sqrt(mean(x^2) + eps) * w
static void op_rms_norm(float *y, const float *x, const float *w, ptrdiff_t n, float eps) {
    v16 r = splat(1 / sqrtf(op_dot(x, x, n) / (float)n + eps));
    if (w)
        MAP(y, n, mul(mul(AT(x), r), AT(w)));
    else
        MAP(y, n, mul(AT(x), r));
}

// y = x / max(|x|, eps) * scale
static void op_l2_norm(float *y, const float *x, ptrdiff_t n, float eps, float scale) {
    float norm = sqrtf(op_dot(x, x, n));
    v16 r = splat(scale / (norm < eps ? eps : norm));
    MAP(y, n, mul(AT(x), r));
}

static void op_add(float *y, const float *x, ptrdiff_t n) { MAP(y, n, add(AT(y), AT(x))); }
static void op_add_scaled(float *y, const float *x, ptrdiff_t n, float a) { MAP(y, n, add(AT(y), mul(AT(x), splat(a)))); }
static void op_scale(float *y, ptrdiff_t n, float a) { MAP(y, n, mul(AT(y), splat(a))); }
static void op_silu(float *y, const float *x, ptrdiff_t n) { MAP(y, n, vsilu(AT(x))); }
static void op_silu_mul(float *y, const float *gate, const float *up, ptrdiff_t n) { MAP(y, n, mul(vsilu(AT(gate)), AT(up))); }
static void op_sigmoid(float *y, const float *x, ptrdiff_t n) { MAP(y, n, vsigmoid(AT(x))); }
static void op_sigmoid_mul(float *y, const float *x, const float *gate, ptrdiff_t n) { MAP(y, n, mul(AT(x), vsigmoid(AT(gate)))); }
static void op_exp(float *y, const float *x, ptrdiff_t n) { MAP(y, n, vexp(AT(x))); }

static float largest_of(const float *x, ptrdiff_t n) {
    v16 m = splat(-INFINITY);
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) m = larger(m, load(x + i));
    if (i < n) m = larger(m, load_n(x + i, n - i, -INFINITY));
    return largest(m);
}

static void op_softmax(float *x, ptrdiff_t n) {
    v16 m = splat(largest_of(x, n));
    MAP(x, n, vexp(sub(AT(x), m)));
    v16 r = splat(1 / total(x, n));
    MAP(x, n, mul(AT(x), r));
}

// The first of the largest elements; -1 where one is not a number.
static ptrdiff_t op_arg_max(const float *x, ptrdiff_t n) {
    v16 m = splat(-INFINITY), y;
    m16 bad = equal(m, zero());
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) y = load(x + i), bad = unlike(bad, y, y), m = larger(m, y);
    if (i < n) y = load_n(x + i, n - i, -INFINITY), bad = unlike(bad, y, y), m = larger(m, y);
    if (any(bad)) return -1;
    v16 top = splat(largest(m));
    for (i = 0; i + 16 <= n && !any(equal(load(x + i), top)); i += 16) {}
    while (x[i] < top.p[0][0]) i++;
    return i;
}

// Pairs (i, i + n) and (2i, 2i+1): (a, b) <- (a cos - b sin, b cos + a sin).
static void op_rope_half(float *x, const float *cosine, const float *sine, ptrdiff_t n) {
    ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 a = load(x + i), b = load(x + n + i), c = load(cosine + i), s = load(sine + i);
        store(x + i, sub(mul(a, c), mul(b, s)));
        store(x + n + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < n; i++) {
        float a = x[i], b = x[n + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[n + i] = b * cosine[i] + a * sine[i];
    }
}
static void op_rope_adjacent(float *x, const float *cosine, const float *sine, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

// One token of a causal convolution per channel: y = w[0] state[0] + ... + w[taps-1] u, added in this order; the state moves on.
INLINE void conv(float *y, const float *u, const float *w, float *state, ptrdiff_t channels, ptrdiff_t c, ptrdiff_t left, int taps, int silu) {
    v16 last = at(u + c, left, 0), t = zero();
    for (int j = 0; j < taps; j++) {
        v16 s = j + 1 < taps ? at(state + j * channels + c, left, 0) : last;
        v16 m = mul(at(w + j * channels + c, left, 0), s);
        t = j ? add(t, m) : m;
        if (j) put(state + (j - 1) * channels + c, s, left);
    }
    put(y + c, silu ? vsilu(t) : t, left);
}
static void op_conv(float *y, const float *u, const float *w, float *state, ptrdiff_t channels, ptrdiff_t c0, ptrdiff_t c1, int taps, int silu) {
    ptrdiff_t c = c0;
    if (taps == 4 && silu)
        for (; c + 16 <= c1; c += 16) conv(y, u, w, state, channels, c, 16, 4, 1);
    for (; c < c1; c += 16) conv(y, u, w, state, channels, c, c1 - c, taps, silu);
}
