// Package gguf reads GGUF model files: metadata, the tensor table, and where each tensor's bytes lie. It never loads
// weights. A model split into shards is one File, whichever shard is named.
//
// Every count and length in a file is checked against a limit and against what is left of the file before memory is
// asked for; a damaged file is an error that wraps ErrCorrupt, never a panic.
package gguf

// Extent is a range of bytes in one shard of a model.
type Extent struct {
	Shard  int   // index into File.Shards
	Offset int64 // absolute, from the start of the shard
	Size   int64 // bytes
}

// Tensor is one entry of the tensor table.
type Tensor struct {
	Name string
	Type Type
	Dims []int64 // fastest first: Dims[0] is the length of a row; 1 to 4 entries
	Extent
}

// Shard is one file of a model.
type Shard struct {
	Path string
	Size int64 // bytes
}
