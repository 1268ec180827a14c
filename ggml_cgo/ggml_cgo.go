//go:build cgo

// Package ggml_cgo holds the C kernels and the only cgo boundary of the project: one function table per instruction
// set for the quantised matrices (Mat) and one for float32 vectors (VecSet). It knows pointers and lengths, nothing of
// models.
package ggml_cgo

/*
// -std=c11 also keeps the compiler from fusing a multiply and an add by itself, which would make bits depend on inlining.
#cgo CFLAGS: -O3 -std=c11 -Wno-psabi
#cgo LDFLAGS: -lm
#cgo noescape mat_rows
#cgo nocallback mat_rows
#cgo noescape mat_wide
#cgo nocallback mat_wide
#cgo noescape mat_quantize
#cgo nocallback mat_quantize
#cgo noescape mat_pack
#cgo nocallback mat_pack
#cgo noescape mat_set_books
#cgo nocallback mat_set_books
#include "kernels.h"

static int mat_has_wide(const mat_set *s, int type) { return type < MAT_TYPES && s->wide[type] != 0; }
static const mat_set *mat_at(int i) { return mat_sets[i]; }

static void mat_rows(const mat_set *s, int type, const void *w, size_t row_bytes, int rows, const void *base, size_t stride,
                     const int32_t *index, int cols, int n, float *y, size_t ldy) {
    cols_t x = {base, stride, index, cols};
    s->rows[type](w, row_bytes, rows, &x, n, y, ldy);
}
static void mat_wide(const mat_set *s, int type, const void *w, size_t row_bytes, int rows, const void *packed,
                     size_t group_bytes, int ncols, int n, float *y, size_t ldy) {
    s->wide[type](w, row_bytes, rows, packed, group_bytes, ncols, n, y, ldy);
}
static void mat_quantize(const mat_set *s, int k, void *column, int cols, int from, const float *x, int count) {
    (k ? s->quantize_k : s->quantize_32)(column, cols, from, x, count);
}
static void mat_pack(const mat_set *s, int k, const void *base, size_t stride, const int32_t *index, int cols, int n, void *packed) {
    cols_t x = {base, stride, index, cols};
    (k ? s->pack_k : s->pack_32)(&x, n, packed);
}
static void mat_set_books(const void *books) { memcpy(&mat_book, books, sizeof mat_book); }
*/
import "C"
import "unsafe"

type matSet struct {
	name string
	c    *C.mat_set
}

// MatSets returns the tables built into this program, scalar first; the caller chooses by what the CPU offers.
func MatSets() []Mat {
	var sets []Mat
	for i := 0; ; i++ {
		c := C.mat_at(C.int(i))
		if c == nil {
			return sets
		}
		sets = append(sets, &matSet{name: C.GoString(c.name), c: c})
	}
}

// SetBooks hands the code books to the C kernels; once, before any of them runs.
func SetBooks(b *Books) { C.mat_set_books(unsafe.Pointer(b)) }

// XCR0 returns the register state that the operating system saves. Call it only where CPUID says OSXSAVE.
func XCR0() uint64 { return uint64(C.mat_xcr0()) }

func (s *matSet) Name() string { return s.name }

func (s *matSet) HasWide(typ uint32) bool { return C.mat_has_wide(s.c, C.int(typ)) != 0 }

func (s *matSet) Rows(typ uint32, w unsafe.Pointer, rowBytes, rows int, x *Columns, n int, y *float32, ldy int) {
	C.mat_rows(s.c, C.int(typ), w, C.size_t(rowBytes), C.int(rows), x.Base, C.size_t(x.Stride),
		(*C.int32_t)(unsafe.SliceData(x.Index)), C.int(len(x.Index)), C.int(n), (*C.float)(y), C.size_t(ldy))
}

func (s *matSet) Wide(typ uint32, w unsafe.Pointer, rowBytes, rows int, packed unsafe.Pointer, groupBytes, ncols, n int, y *float32, ldy int) {
	C.mat_wide(s.c, C.int(typ), w, C.size_t(rowBytes), C.int(rows), packed, C.size_t(groupBytes), C.int(ncols), C.int(n),
		(*C.float)(y), C.size_t(ldy))
}

func (s *matSet) QuantizeK(column unsafe.Pointer, cols, from int, x []float32) {
	s.quantize(1, column, cols, from, x)
}

func (s *matSet) Quantize32(column unsafe.Pointer, cols, from int, x []float32) {
	s.quantize(0, column, cols, from, x)
}

func (s *matSet) quantize(k C.int, column unsafe.Pointer, cols, from int, x []float32) {
	C.mat_quantize(s.c, k, column, C.int(cols), C.int(from), (*C.float)(unsafe.SliceData(x)), C.int(len(x)))
}

func (s *matSet) PackK(x Columns, n int, packed unsafe.Pointer) { s.pack(1, x, n, packed) }

func (s *matSet) Pack32(x Columns, n int, packed unsafe.Pointer) { s.pack(0, x, n, packed) }

func (s *matSet) pack(k C.int, x Columns, n int, packed unsafe.Pointer) {
	C.mat_pack(s.c, k, x.Base, C.size_t(x.Stride), (*C.int32_t)(unsafe.SliceData(x.Index)), C.int(len(x.Index)), C.int(n), packed)
}
