// Vector operations with what every CPU of the architecture has (128 bits: SSE2, NEON), and the list of tables.
#define VEC_SET vec_scalar
#define VEC_WIDTH 4
#define VEC_HALF 0
#include "vec_table.h"

#if defined(__x86_64__)
extern const struct vec_table vec_avx2, vec_avx512;
const struct vec_table *const vec_tables[] = {&vec_scalar, &vec_avx2, &vec_avx512};
#else
const struct vec_table *const vec_tables[] = {&vec_scalar};
#endif
