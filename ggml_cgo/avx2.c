//go:build amd64

// AVX2, FMA and F16C.
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>
#define MULADD(acc, p, s) _mm256_add_epi32(acc, _mm256_madd_epi16(p, s))
#define VNNI 0
#define NAME "avx2"
#define SET mat_avx2
#include "avx2.h"
