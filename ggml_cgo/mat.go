package ggml_cgo

import "unsafe"

// Columns says where the quantised columns of a product lie: column c at Base + Index[c] * Stride bytes.
type Columns struct {
	Base   unsafe.Pointer
	Stride int
	Index  []int32
}

// Mat is the table of matrix operations of one instruction set. typ is ggml's number of a tensor type; n counts the
// super-blocks of 256, the blocks of 32 or the floats of a row, as the type's activations have it.
type Mat interface {
	Name() string
	// Rows: y[c*ldy+r] = row r . column c for rows rows at w, rowBytes apart. y must hold (len(x.Index)-1)*ldy+rows.
	Rows(typ uint32, w unsafe.Pointer, rowBytes, rows int, x *Columns, n int, y *float32, ldy int)
	// Wide: the same for ncols columns packed 16 at a time by this set, groupBytes apart. Only where HasWide.
	Wide(typ uint32, w unsafe.Pointer, rowBytes, rows int, packed unsafe.Pointer, groupBytes, ncols, n int, y *float32, ldy int)
	HasWide(typ uint32) bool
	// QuantizeK and Quantize32 fill the piece of a column of cols values that starts at from.
	QuantizeK(column unsafe.Pointer, cols, from int, x []float32)
	Quantize32(column unsafe.Pointer, cols, from int, x []float32)
	// PackK and Pack32 lay up to 16 columns side by side. Only where HasWide.
	PackK(x Columns, n int, packed unsafe.Pointer)
	Pack32(x Columns, n int, packed unsafe.Pointer)
}

// Books are the code books of the IQ1, IQ2 and IQ3 formats: 8 or 4 codes of a byte each per entry, first in the lowest.
type Books struct {
	IQ2XXS [256]uint64
	IQ2XS  [512]uint64
	IQ2S   [1024]uint64
	IQ1S   [2048]uint64
	IQ3XXS [256]uint32
	IQ3S   [512]uint32
}
