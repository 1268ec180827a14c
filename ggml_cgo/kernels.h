// The function table of one instruction set for quantised matrices, indexed by ggml's type numbers.
#ifndef KERNELS_H
#define KERNELS_H
#include "blocks.h"

enum { MAT_TYPES = 43 };

// Where the columns of a product lie: column c at base + index[c] * stride.
typedef struct { const char *base; size_t stride; const int32_t *index; int n; } cols_t;

// y[c * ldy + r] = row r . column c. n: super-blocks, blocks of 32, or floats of a row.
typedef void (*mat_rows_fn)(const char *w, size_t row_bytes, int rows, const cols_t *x, int n, float *y, size_t ldy);
// The same for columns packed by the set's own pack, 16 at a time (wide_k or wide_32): group g at a + g * group_bytes; ncols
// of them are stored.
typedef void (*mat_wide_fn)(const char *w, size_t row_bytes, int rows, const char *a, size_t group_bytes, int ncols, int n, float *y, size_t ldy);
// count floats at x become the piece of a column that starts at element from (a multiple of 256); from + count == cols
// ends the column, and what is missing of its last group is cleared.
typedef void (*mat_quantize_fn)(void *column, int cols, int from, const float *x, int count);
// Up to 16 columns side by side; n as above; what lies in the lanes beyond them is up to the set. None in a set without wide.
typedef void (*mat_pack_fn)(const cols_t *x, int n, void *a);

typedef struct {
    const char *name;
    mat_rows_fn rows[MAT_TYPES];
    mat_wide_fn wide[MAT_TYPES];
    mat_quantize_fn quantize_k, quantize_32;
    mat_pack_fn pack_k, pack_32;
} mat_set;

// The tables built in, scalar first, ended by NULL.
extern const mat_set *const mat_sets[];

// Code books of the IQ1, IQ2 and IQ3 formats, filled once by kernels before anything else runs.
typedef struct {
    uint64_t iq2xxs[256], iq2xs[512], iq2s[1024], iq1s[2048];
    uint32_t iq3xxs[256], iq3s[512];
} mat_books;
extern mat_books mat_book;

// The register state that the operating system saves (XCR0); only where CPUID says OSXSAVE, 0 on other machines.
uint64_t mat_xcr0(void);
#endif
