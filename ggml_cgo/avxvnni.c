//go:build amd64

#pragma GCC target("avx2,fma,f16c,avxvnni")
#include <immintrin.h>
#define NAME "avxvnni"
#define SET mat_avxvnni
#include "avx2.h"
