//go:build arm64

// The place of the NEON set: plain C, which the compiler turns into NEON.
#define AHEAD 0
#define FLOAT_LANES 4
#define FLOAT_ROWS 1
#define FLOAT_COLS 2
#include "plain.h"
#include "quantize.h"
#include "floats.h"

const mat_set mat_neon = {
    .name = "neon",
    .rows = {FORMATS_K(PLAIN_ROW) FORMATS_32(PLAIN_ROW) [0] = f32_rows, [1] = f16_rows, [30] = bf16_rows},
    .quantize_k = quantize_k, .quantize_32 = quantize_32,
};
