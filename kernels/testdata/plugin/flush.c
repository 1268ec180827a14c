// A library that makes the thread that loads it treat subnormal numbers as zeros, as those built with -ffast-math do.
#include <stdint.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
__attribute__((constructor)) static void flush(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
#elif defined(__aarch64__)
__attribute__((constructor)) static void flush(void) {
    uint64_t r;
    __asm__ volatile("mrs %0, fpcr" : "=r"(r));
    __asm__ volatile("msr fpcr, %0" ::"r"(r | 1 << 24));
}
#endif
