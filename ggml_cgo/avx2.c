//go:build amd64

#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>
#define NAME "avx2"
#define SET mat_avx2
#include "avx2.h"
