// Vector operations with AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")
#endif
#define VEC_SET vec_avx512
#define VEC_WIDTH 16
#define VEC_HALF 1
#include "vec_table.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
