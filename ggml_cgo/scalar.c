// The set every machine can run: plain C for the baseline instruction set.
#define AHEAD 0
#define FLOAT_LANES 4
#define FLOAT_ROWS 1
#define FLOAT_COLS 1
#include "plain.h"
#include "quantize.h"
#include "floats.h"

mat_books mat_book;

uint64_t mat_xcr0(void) {
#ifdef __x86_64__
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
#else
    return 0;
#endif
}

const mat_set mat_scalar = {
    .name = "scalar",
    .rows = {FORMATS_K(PLAIN_ROW) FORMATS_32(PLAIN_ROW) [0] = f32_rows, [1] = f16_rows, [30] = bf16_rows},
    .quantize_k = quantize_k, .quantize_32 = quantize_32,
};

#ifdef __x86_64__
extern const mat_set mat_avx2, mat_avxvnni, mat_avx512;
#endif
#ifdef __aarch64__
extern const mat_set mat_neon;
#endif
const mat_set *const mat_sets[] = {
    &mat_scalar,
#ifdef __x86_64__
    &mat_avx2, &mat_avxvnni, &mat_avx512,
#endif
#ifdef __aarch64__
    &mat_neon,
#endif
    0,
};
