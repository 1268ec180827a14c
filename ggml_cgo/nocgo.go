//go:build !cgo

// Package ggml_cgo without cgo offers no kernels: package kernels then runs its plain Go twins.
package ggml_cgo

// MatSets returns nothing: without cgo there are no C kernels.
func MatSets() []Mat { return nil }

// SetBooks does nothing: without cgo there are no C kernels.
func SetBooks(*Books) {}

// XCR0 returns 0: without cgo there is no set that asks.
func XCR0() uint64 { return 0 }
