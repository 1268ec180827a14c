package ggml_cgo

// VecSet is the table of float32 vector operations of one instruction set.
type VecSet struct{ Name string }

// VecSets returns the tables built into this program.
func VecSets() []*VecSet { return nil }
