// The floating-point control word of the calling thread.
#ifndef EPQ_FLOAT_H
#define EPQ_FLOAT_H
#include <stdint.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
static inline uint32_t float_control(void) { return _mm_getcsr() & ~0x3fu; } // without the sticky exception flags
static inline void float_reset(void) { _mm_setcsr(0x1f80); }                 // to nearest, subnormals kept, no traps
#elif defined(__aarch64__)
static inline uint32_t float_control(void) { uint64_t r; __asm__ volatile("mrs %0, fpcr" : "=r"(r)); return (uint32_t)r; }
static inline void float_reset(void) { __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0)); }
#else
static inline uint32_t float_control(void) { return 0; }
static inline void float_reset(void) {}
#endif
#endif
