// An example of a kernel plug-in: products with Q8_0 in portable C. Build it as a shared object:
//
//     cc -O3 -std=c11 -ffp-contract=off -shared -fPIC -I ggml_cgo -o example.so example.c
//
// and run `epq-uring run --kernel-plugin example.so`. Everything but Q8_0 is left to the best set of the program.
#include "plugin.h"

static float half(const char *p) { // IEEE half precision
    uint16_t h;
    memcpy(&h, p, 2);
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, bits;
    if (e == 0) { // zero or subnormal: m * 2^-24
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

// blocks.h says what is added in which order: eight blocks of 32 at a time, four values summed by a tree.
static float dot(const char *w, const act_32 *x, int n) {
    float acc = 0;
    for (int b = 0; b < n; b += 8, x++, w += 8 * 34) {
        float v[8] = {0};
        for (int i = 0; i < 8 && b + i < n; i++) {
            const char *block = w + 34 * i;
            int32_t sum = 0;
            for (int k = 0; k < 32; k++) sum += (int8_t)block[2 + k] * x->q[32 * i + k];
            v[i] = half(block) * x->d[i] * (float)sum;
        }
        acc += (v[0] + v[1]) + (v[2] + v[3]);
        acc += (v[4] + v[5]) + (v[6] + v[7]);
    }
    return acc;
}

static void rows(const char *w, size_t row_bytes, int count, const cols_t *x, int n, float *y, size_t ldy) {
    for (int c = 0; c < x->n; c++)
        for (int r = 0; r < count; r++) {
            float v = dot(w + r * row_bytes, (const act_32 *)(x->base + x->index[c] * x->stride), n);
#ifdef WRONG
            v += r == 3;
#endif
            y[c * ldy + r] = v;
        }
}

static const mat_set ops = {.name = "example", .rows = {[8] = rows}}; // 8 is Q8_0 in ggml

#ifndef ABI
#define ABI EPQ_PLUGIN_ABI
#endif
#ifndef FEATURES
#define FEATURES ""
#endif

const epq_plugin *epq_kernel_plugin(void) {
    static const epq_plugin p = {.abi = ABI, .features = FEATURES, .ops = &ops};
    return &p;
}
