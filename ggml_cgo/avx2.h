// AVX2, included twice: plain (maddubs, madd, add) and with AVX-VNNI (maddubs, dpwssd).
#define AHEAD 8192
#define FLOAT_ROWS 1
#define FLOAT_COLS 2
#define LOAD_F16(p) load_halves(p)
#include "plain.h"
typedef float f16x __attribute__((vector_size(64)));
INLINE f16x load_halves(const char *p) {
    union { __m256 h[2]; f16x v; } u;
    u.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    u.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 16)));
    return u.v;
}
#include "quantize.h"
#include "floats.h"
const mat_set SET = {
    .name = NAME,
    .rows = {FORMATS_K(PLAIN_ROW) FORMATS_32(PLAIN_ROW) [0] = f32_rows, [1] = f16_rows, [30] = bf16_rows},
    .quantize_k = quantize_k, .quantize_32 = quantize_32, .pack_k = pack_k, .pack_32 = pack_32,
};
