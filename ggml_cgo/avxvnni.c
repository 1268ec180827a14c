//go:build amd64

// AVX2 with AVX-VNNI: the multiply and add of words in one instruction.
#pragma GCC target("avx2,fma,f16c,avxvnni")
#include <immintrin.h>
#define MULADD(acc, p, s) _mm256_dpwssd_avx_epi32(acc, p, s)
#define VNNI 1
#define NAME "avxvnni"
#define SET mat_avxvnni
#include "avx2.h"
