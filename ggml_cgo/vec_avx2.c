// Vector operations with AVX2 and F16C.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#define VEC_SET vec_avx2
#define VEC_WIDTH 8
#define VEC_HALF 1
#include "vec_table.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
