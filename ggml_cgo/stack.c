// Memory that every thread of the process takes before it does anything. RLIMIT_DATA counts it whether touched or not, so
// that glibc's defaults (8 MiB of stack, an allocation arena of its own for each thread) would cost a memory budget far
// more than the program uses. A constructor runs before the Go runtime starts its threads.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>

// The deepest C frames of this program are a kernel's tiles and the resolver's buffers; Go code has stacks of its own.
enum { stack_bytes = 256 << 10 };

__attribute__((constructor)) static void shrink_threads(void) {
    pthread_attr_t a;
    if (pthread_attr_init(&a) != 0) return;
    if (pthread_attr_setstacksize(&a, stack_bytes) == 0) pthread_setattr_default_np(&a);
    pthread_attr_destroy(&a);
#ifdef M_ARENA_MAX // glibc's own
    mallopt(M_ARENA_MAX, 1);
#endif
}
