//go:build !cgo

package ggml_cgo

// FloatControl returns 0: without cgo nothing can change the control word.
func FloatControl() uint32 { return 0 }

// ResetFloat does nothing: without cgo nothing can change the control word.
func ResetFloat() {}
