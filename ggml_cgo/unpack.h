// Every quantised format, unpacked by plain C: 256 weights to signed codes, integer scales and floats. The layouts are
// those of the GGUF formats; kernels/plain.go is the twin in Go. Sets use this where they have nothing faster.
#ifndef UNPACK_H
#define UNPACK_H
#include "kernels.h"

// A super-block: weight i is d * scale[i / 16] * q[i] - dmin * min[i / 16].
typedef struct { _Alignas(64) int8_t q[256]; int16_t scale[16], min[16]; float d, dmin; } block_k;
// Eight blocks of 32: weight i is d[i / 16] * q[i] + m[i / 32].
typedef struct { _Alignas(64) int8_t q[256]; float d[16], m[8]; } block_32;

// Not inlined: one copy of each serves every shape, and keeps the build short.
#define UNPACK static __attribute__((noinline))

INLINE float half(const void *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    uint32_t s = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
    float f;
    if (e == 0) {
        f = (float)m * 0x1p-24f;
        return s ? -f : f;
    }
    u = e == 31 ? s | 0x7f800000 | m << 13 : s | (e + 112) << 23 | m << 13;
    memcpy(&f, &u, 4);
    return f;
}
INLINE uint32_t word16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t word32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }

// ---- super-blocks of 256 ---------------------------------------------------------------------------------------------

UNPACK void unpack_q2_k(const uint8_t *p, block_k *t) { // scales[16] qs[64] d dmin
    for (int i = 0; i < 16; i++) t->scale[i] = p[i] & 15, t->min[i] = p[i] >> 4;
    for (int i = 0; i < 256; i++) t->q[i] = p[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
    t->d = half(p + 80), t->dmin = half(p + 82);
}

UNPACK void unpack_q3_k(const uint8_t *p, block_k *t) { // hmask[32] qs[64] scales[12] d
    const uint8_t *s = p + 96;
    for (int i = 0; i < 16; i++) t->scale[i] = ((s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
    for (int i = 0; i < 256; i++) t->q[i] = ((p[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) | (p[i % 32] >> i / 32 & 1) << 2) - 4;
    t->d = half(p + 108);
}

INLINE void scales_q4_k(const uint8_t *p, block_k *t) { // d dmin scales[12], 6 bits each
    const uint8_t *s = p + 4;
    for (int g = 0; g < 8; g++) {
        int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
        int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
        t->scale[2 * g] = t->scale[2 * g + 1] = scale;
        t->min[2 * g] = t->min[2 * g + 1] = min;
    }
    t->d = half(p), t->dmin = half(p + 2);
}

UNPACK void unpack_q4_k(const uint8_t *p, block_k *t) { // header, qs[128]
    scales_q4_k(p, t);
    for (int i = 0; i < 256; i++) t->q[i] = p[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
}

UNPACK void unpack_q5_k(const uint8_t *p, block_k *t) { // header, qh[32] qs[128]
    scales_q4_k(p, t);
    for (int i = 0; i < 256; i++) t->q[i] = (p[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15) | (p[16 + i % 32] >> i / 32 & 1) << 4;
}

UNPACK void unpack_q6_k(const uint8_t *p, block_k *t) { // ql[128] qh[64] scales[16] d
    for (int i = 0; i < 16; i++) t->scale[i] = (int8_t)p[192 + i];
    for (int i = 0; i < 256; i++) {
        int n = i / 128, l = i % 128;
        t->q[i] = ((p[64 * n + l % 64] >> l / 64 * 4 & 15) | (p[128 + 32 * n + l % 32] >> l / 32 * 2 & 3) << 4) - 32;
    }
    t->d = half(p + 208);
}

static const int8_t codes_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t codes_fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; // twice the value

UNPACK void unpack_iq4_xs(const uint8_t *p, block_k *t) { // d scales_h[2] scales_l[4] qs[128]
    for (int i = 0; i < 16; i++) t->scale[i] = ((p[4 + i / 4] >> i / 2 % 2 * 4 & 15) | (word16(p + 2) >> i / 2 * 2 & 3) << 4) - 32;
    for (int i = 0; i < 256; i++) t->q[i] = codes_iq4[p[8 + i / 32 * 16 + i % 16] >> i / 16 % 2 * 4 & 15];
    t->d = half(p);
}

UNPACK void unpack_tq1_0(const uint8_t *p, block_k *t) { // qs[48] qh[4] d; base 3 digits, highest first
    static const uint8_t pow3[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < 160; i++) t->q[i] = ((uint8_t)(p[i % 32] * pow3[i / 32]) * 3 >> 8) - 1;
    for (int i = 0; i < 80; i++) t->q[160 + i] = ((uint8_t)(p[32 + i % 16] * pow3[i / 16]) * 3 >> 8) - 1;
    for (int i = 0; i < 16; i++) t->q[240 + i] = ((uint8_t)(p[48 + i % 4] * pow3[i / 4]) * 3 >> 8) - 1;
    for (int i = 0; i < 16; i++) t->scale[i] = 1;
    t->d = half(p + 52);
}

UNPACK void unpack_tq2_0(const uint8_t *p, block_k *t) { // qs[64] d
    for (int i = 0; i < 256; i++) t->q[i] = (p[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - 1;
    for (int i = 0; i < 16; i++) t->scale[i] = 1;
    t->d = half(p + 64);
}

#define BYTES 0x0101010101010101u

// Eight codes of a book (none is 0), negated where the bit is set; all eight bytes at once.
INLINE void signed8(int8_t *q, uint64_t grid, unsigned signs) {
    uint64_t bits = signs * BYTES & 0x8040201008040201u;                          // bit i in byte i
    uint64_t one = (((bits & 0x7f * BYTES) + 0x7f * BYTES) | bits) >> 7 & BYTES; // 1 where it is set
    grid = (grid ^ one * 255) + one;
    memcpy(q, &grid, 8);
}
// Seven signs are stored; the eighth makes their number even.
INLINE unsigned even_signs(unsigned s) { return s | (unsigned)__builtin_parity(s) << 7; }

UNPACK void unpack_iq2_xxs(const uint8_t *p, block_k *t) { // d, 8 x (4 indices; 4 x 7 signs, scale)
    for (int b = 0; b < 8; b++) {
        uint32_t aux = word32(p + 2 + 8 * b + 4);
        t->scale[2 * b] = t->scale[2 * b + 1] = 2 * (aux >> 28) + 1;
        for (int l = 0; l < 4; l++) signed8(t->q + 32 * b + 8 * l, mat_book.iq2xxs[p[2 + 8 * b + l]], even_signs(aux >> 7 * l & 127));
    }
    t->d = half(p) * 0.125f;
}

UNPACK void unpack_iq2_xs(const uint8_t *p, block_k *t) { // d, 32 x (9 bits index, 7 signs), scales[8]
    for (int i = 0; i < 16; i++) t->scale[i] = 2 * (p[66 + i / 2] >> i % 2 * 4 & 15) + 1;
    for (int i = 0; i < 32; i++) {
        uint32_t v = word16(p + 2 + 2 * i);
        signed8(t->q + 8 * i, mat_book.iq2xs[v & 511], even_signs(v >> 9));
    }
    t->d = half(p) * 0.125f;
}

UNPACK void unpack_iq2_s(const uint8_t *p, block_k *t) { // d, indices[32] signs[32] qh[8] scales[8]
    for (int i = 0; i < 16; i++) t->scale[i] = 2 * (p[74 + i / 2] >> i % 2 * 4 & 15) + 1;
    for (int i = 0; i < 32; i++) signed8(t->q + 8 * i, mat_book.iq2s[p[2 + i] | (p[66 + i / 4] >> i % 4 * 2 & 3) << 8], p[34 + i]);
    t->d = half(p) * 0.125f;
}

UNPACK void unpack_iq3_xxs(const uint8_t *p, block_k *t) { // d, indices[64], 8 x (4 x 7 signs, scale)
    for (int b = 0; b < 8; b++) {
        uint32_t aux = word32(p + 66 + 4 * b);
        t->scale[2 * b] = t->scale[2 * b + 1] = 2 * (aux >> 28) + 1;
        for (int l = 0; l < 4; l++) {
            const uint8_t *i = p + 2 + 8 * b + 2 * l;
            signed8(t->q + 32 * b + 8 * l, mat_book.iq3xxs[i[0]] | (uint64_t)mat_book.iq3xxs[i[1]] << 32, even_signs(aux >> 7 * l & 127));
        }
    }
    t->d = half(p) * 0.25f;
}

UNPACK void unpack_iq3_s(const uint8_t *p, block_k *t) { // d, indices[64] qh[8] signs[32] scales[4]
    for (int i = 0; i < 16; i++) t->scale[i] = 2 * (p[106 + i / 4] >> i / 2 % 2 * 4 & 15) + 1;
    for (int i = 0; i < 32; i++) {
        int h = p[66 + i / 4] >> i % 4 * 2;
        uint64_t a = mat_book.iq3s[p[2 + 2 * i] | (h & 1) << 8], b = mat_book.iq3s[p[3 + 2 * i] | (h & 2) << 7];
        signed8(t->q + 8 * i, a | b << 32, p[74 + i]);
    }
    t->d = half(p);
}

// Eight times (code of -1, 0, 1 plus or minus an eighth).
INLINE void eighths(int8_t *q, uint64_t grid, int minus) {
    uint64_t v = grid << 3 & 0xf8 * BYTES;
    v = minus ? ((v & 0x7f * BYTES) + 0x7f * BYTES) ^ (~v & 0x80 * BYTES) : v | BYTES; // v - 1 or v + 1, byte by byte
    memcpy(q, &v, 8);
}

UNPACK void unpack_iq1_s(const uint8_t *p, block_k *t) { // d, indices[32], 8 x (4 x 3 bits of index, scale, sign of the shift)
    for (int i = 0; i < 32; i++) {
        uint32_t h = word16(p + 34 + i / 4 * 2);
        t->scale[i / 2] = 2 * (h >> 12 & 7) + 1;
        eighths(t->q + 8 * i, mat_book.iq1s[p[2 + i] | (h >> 3 * (i % 4) & 7) << 8], h >> 15);
    }
    t->d = half(p) * 0.125f;
}

UNPACK void unpack_iq1_m(const uint8_t *p, block_k *t) { // indices[32] qh[16] scales[8], whose top nibbles are d
    const uint8_t *s = p + 48;
    for (int i = 0; i < 16; i++) t->scale[i] = 2 * (word16(s + i / 4 * 2) >> i % 4 * 3 & 7) + 1;
    for (int i = 0; i < 32; i++) {
        int h = p[32 + i / 2] >> i % 2 * 4;
        eighths(t->q + 8 * i, mat_book.iq1s[p[i] | (h & 7) << 8], h & 8);
    }
    uint16_t d = s[1] >> 4 | (s[3] >> 4) << 4 | (s[5] >> 4) << 8 | (s[7] >> 4) << 12;
    t->d = half(&d) * 0.125f;
}

// ---- blocks of 32 and multiples, eight blocks of 32 at a time -----------------------------------------------------------

INLINE void scale32(block_32 *t, int b, float d) { t->d[2 * b] = t->d[2 * b + 1] = d; }

UNPACK void unpack_q8_0(const uint8_t *p, block_32 *t) { // d qs[32]
    for (int b = 0; b < 8; b++, p += 34) {
        scale32(t, b, half(p));
        memcpy(t->q + 32 * b, p + 2, 32);
    }
}

UNPACK void unpack_q4_0(const uint8_t *p, block_32 *t) { // d qs[16]
    for (int b = 0; b < 8; b++, p += 18) {
        scale32(t, b, half(p));
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = (p[2 + i % 16] >> i / 16 * 4 & 15) - 8;
    }
}

UNPACK void unpack_q4_1(const uint8_t *p, block_32 *t) { // d m qs[16]
    for (int b = 0; b < 8; b++, p += 20) {
        scale32(t, b, half(p));
        t->m[b] = half(p + 2);
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = p[4 + i % 16] >> i / 16 * 4 & 15;
    }
}

UNPACK void unpack_q5_0(const uint8_t *p, block_32 *t) { // d qh[4] qs[16]
    for (int b = 0; b < 8; b++, p += 22) {
        scale32(t, b, half(p));
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = ((p[6 + i % 16] >> i / 16 * 4 & 15) | (word32(p + 2) >> i & 1) << 4) - 16;
    }
}

UNPACK void unpack_q5_1(const uint8_t *p, block_32 *t) { // d m qh[4] qs[16]
    for (int b = 0; b < 8; b++, p += 24) {
        scale32(t, b, half(p));
        t->m[b] = half(p + 2);
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = (p[8 + i % 16] >> i / 16 * 4 & 15) | (word32(p + 4) >> i & 1) << 4;
    }
}

UNPACK void unpack_iq4_nl(const uint8_t *p, block_32 *t) { // d qs[16]
    for (int b = 0; b < 8; b++, p += 18) {
        scale32(t, b, half(p));
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = codes_iq4[p[2 + i % 16] >> i / 16 * 4 & 15];
    }
}

// Half of 2^(e - 127): the codes are twice their value.
INLINE float half_e8m0(uint8_t e) {
    uint32_t u = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

UNPACK void unpack_mxfp4(const uint8_t *p, block_32 *t) { // e qs[16]
    for (int b = 0; b < 8; b++, p += 17) {
        scale32(t, b, half_e8m0(p[0]));
        for (int i = 0; i < 32; i++) t->q[32 * b + i] = codes_fp4[p[1 + i % 16] >> i / 16 * 4 & 15];
    }
}

// Half of an unsigned float of 4 bits exponent and 3 bits mantissa; 0x7f counts as 0.
INLINE float half_ue4m3(uint8_t x) {
    if (x == 0x7f) return 0;
    int e = x >> 3 & 15;
    uint32_t u = (uint32_t)(e + 119) << 23 | (uint32_t)(x & 7) << 20; // 2^(e - 8) * (1 + m / 8)
    float f;
    memcpy(&f, &u, 4);
    return e ? f : (float)(x & 7) * 0x1p-10f;
}

UNPACK void unpack_nvfp4(const uint8_t *p, block_32 *t) { // four blocks of 64: d[4] qs[32]
    for (int s = 0; s < 16; s++) {
        const uint8_t *b = p + s / 4 * 36;
        t->d[s] = half_ue4m3(b[s % 4]);
        for (int i = 0; i < 16; i++) t->q[16 * s + i] = codes_fp4[b[4 + s % 4 * 8 + i % 8] >> i / 8 * 4 & 15];
    }
}

UNPACK void unpack_q1_0(const uint8_t *p, block_32 *t) { // two blocks of 128: d qs[16]
    for (int b = 0; b < 8; b++) scale32(t, b, half(p + b / 4 * 18));
    for (int i = 0; i < 256; i++) t->q[i] = (p[i / 128 * 18 + 2 + i % 128 / 8] >> i % 8 & 1) * 2 - 1;
}

UNPACK void unpack_q2_0(const uint8_t *p, block_32 *t) { // four blocks of 64: d qs[16]
    for (int b = 0; b < 8; b++) scale32(t, b, half(p + b / 2 * 18));
    for (int i = 0; i < 256; i++) t->q[i] = (p[i / 64 * 18 + 2 + i % 64 / 4] >> i % 4 * 2 & 3) - 1;
}

// Every format: X(name, number in the file, bytes of 256 weights, weights of a block, has mins).
#define FORMATS_K(X) \
    X(q2_k, 10, 84, 1) X(q3_k, 11, 110, 0) X(q4_k, 12, 144, 1) X(q5_k, 13, 176, 1) X(q6_k, 14, 210, 0) X(iq2_xxs, 16, 66, 0) \
    X(iq2_xs, 17, 74, 0) X(iq3_xxs, 18, 98, 0) X(iq1_s, 19, 50, 0) X(iq3_s, 21, 110, 0) X(iq2_s, 22, 82, 0) X(iq4_xs, 23, 136, 0) \
    X(iq1_m, 29, 56, 0) X(tq1_0, 34, 54, 0) X(tq2_0, 35, 66, 0)
#define FORMATS_32(X) \
    X(q4_0, 2, 144, 0) X(q4_1, 3, 160, 1) X(q5_0, 6, 176, 0) X(q5_1, 7, 192, 1) X(q8_0, 8, 272, 0) X(iq4_nl, 20, 144, 0) \
    X(mxfp4, 39, 136, 0) X(nvfp4, 40, 144, 2) X(q1_0, 41, 36, 0) X(q2_0, 42, 72, 0)
#endif
