// The activations as the kernels want them, and the order of float additions. Weight blocks keep the file's layout
// and are read through unpack.h or by the intrinsics of a set; sizes are in the table of unpack.h.
//
// Order of additions, the same in every set, for any number of columns and any split of rows. Values are taken 256
// weights at a time (a super-block, or eight blocks of 32).
//   super-blocks:  isum = sum of scale * code * x   exact in int32
//                  msum = sum of min * x            exact in int32, formats with mins only
//                  v[b] = (d * dx) * (float)isum    or fma(-(dmin * dx), (float)msum, (d * dx) * (float)isum)
//   blocks of 32:  v[b] = (d * dx) * (float)isum    or fma(m * dx, (float)xsum, (d * dx) * (float)isum)
//   NVFP4, whose scale covers 16:  v[b] = (d0 * dx) * (float)isum0 + (d1 * dx) * (float)isum1
// and per row, four at a time (missing ones count as 0):  acc = acc + ((v0 + v1) + (v2 + v3)).
// F32, F16, BF16: 32 lanes, lane i takes elements i, i + 32, ...; multiply, then add; see floats.h for the end.
#ifndef BLOCKS_H
#define BLOCKS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))

// Four super-blocks of one column, quantised as Q8_K. A column of two super-blocks holds them twice, so that one group
// of four covers two rows of weights.
typedef struct {
    _Alignas(64) int8_t q[4][256]; // natural order
    int8_t p[4][256];              // groups of 32 in the order 0 2 | 1 3 | 4 6 | 5 7, as the nibbles of 64 bytes of Q4_K lie
    int16_t s32[4][8];             // sums of 32
    int16_t s16[4][16];            // -16 * sums of 16
    float d[4];
} act_k;

// Eight blocks of 32 of one column, quantised as Q8_0 with the scale kept in float.
typedef struct {
    _Alignas(64) int8_t q[256]; // natural order
    int8_t h[256];              // first halves of blocks 0..3, second halves of 0..3, the same of 4..7: as the nibbles of four blocks lie
    int32_t sum[8];
    float d[8];
} act_32;

// 16 columns side by side: one super-block, or eight blocks of 32. A set may put a column into several lanes (wide.h).
typedef struct {
    _Alignas(64) int8_t q[64][16][4];
    int16_t s32[4][16][2]; // pairs of sums of 32
    int16_t s16[8][16][2]; // pairs of -16 * sums of 16
    float d[16];
} wide_k;

typedef struct {
    _Alignas(64) int8_t q[64][16][4];
    int32_t sum[8][16];
    float d[8][16];
} wide_32;

// kernels/quantize.go has the same layouts.
_Static_assert(sizeof(act_k) == 2304, "act_k");
_Static_assert(sizeof(act_32) == 576, "act_32");
_Static_assert(sizeof(wide_k) == 4928, "wide_k");
_Static_assert(sizeof(wide_32) == 5120, "wide_32");
#endif
