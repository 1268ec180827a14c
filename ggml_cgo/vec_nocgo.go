//go:build !cgo

package ggml_cgo

// VecSet without cgo is the plain Go twin.
type VecSet struct {
	Name string
	Plain
}

// VecSets returns the plain Go twin alone.
func VecSets() []*VecSet { return []*VecSet{{Name: "scalar"}} }
