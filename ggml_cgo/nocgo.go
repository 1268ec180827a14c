//go:build !cgo

// Package ggml_cgo without cgo offers no kernels: package kernels then runs its plain Go twins.
package ggml_cgo
