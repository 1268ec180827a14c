//go:build cgo

package ggml_cgo

// #include "float.h"
import "C"

// FloatControl returns the floating-point control word of the calling thread: rounding, subnormals, traps.
func FloatControl() uint32 { return uint32(C.float_control()) }

// ResetFloat gives the calling thread the default control word: round to nearest, subnormals kept, no traps. A library
// loaded into the process may have changed it for threads started since.
func ResetFloat() { C.float_reset() }
