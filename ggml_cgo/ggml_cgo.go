//go:build cgo

// Package ggml_cgo holds the C kernels and the only cgo boundary of the project: one function table per instruction
// set for the quantised matrices (MatSet) and one for float32 vectors (VecSet). It knows pointers and lengths, nothing
// of models.
package ggml_cgo

// #cgo CFLAGS: -O3 -std=c11
// #cgo LDFLAGS: -lm
import "C"
