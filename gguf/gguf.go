// Package gguf reads GGUF model files: metadata, the tensor table, and where each tensor's bytes lie. It never loads
// weights. A model split into shards is one File, whichever shard is named.
//
// Every count and length in a file is checked against a limit and against what is left of the file before memory is
// asked for; a damaged file is an error that wraps ErrCorrupt, never a panic.
package gguf

import (
	"errors"
	"fmt"
)

// Kinds of errors, for errors.Is.
var (
	// ErrCorrupt marks a file that is not whole or contradicts itself, and a set of shards that do not belong together.
	ErrCorrupt = errors.New("corrupt file")
	// ErrUnsupported marks a file of another format, version or byte order, or with a type that is not known.
	ErrUnsupported = errors.New("unsupported")
)

// Extent is a range of bytes in one shard of a model.
type Extent struct {
	Shard  int   // index into File.Shards
	Offset int64 // absolute, from the start of the shard
	Size   int64 // bytes
}

// Tensor is one entry of the tensor table. Its type is Known, its rows fill their blocks and its extent lies inside
// its shard.
type Tensor struct {
	Name string
	Type Type
	Dims []int64 // fastest first: Dims[0] is the length of a row; at most 4 entries, none for a single element
	Extent
}

// Elements returns the number of elements: the product of all dimensions.
func (t Tensor) Elements() int64 { return t.cols() * t.Rows() }

// Rows returns the number of rows: the product of Dims[1:].
func (t Tensor) Rows() int64 { return product(t.Dims[min(1, len(t.Dims)):]) }

// RowBytes returns the bytes of one row.
func (t Tensor) RowBytes() int64 {
	return t.cols() / int64(t.Type.BlockLen()) * int64(t.Type.BlockBytes())
}

// Slices returns the number of matrices: the product of Dims[2:], 1 for a matrix or vector.
func (t Tensor) Slices() int64 { return product(t.Dims[min(2, len(t.Dims)):]) }

// Slice returns where the i-th matrix of a 3-D tensor lies: one expert's part. It panics if there is no such matrix.
func (t Tensor) Slice(i int) Extent {
	if n := t.Slices(); i < 0 || int64(i) >= n {
		panic(fmt.Sprintf("gguf: slice %d of tensor %q, which has %d", i, t.Name, n))
	}
	size := t.Size / t.Slices()
	return Extent{Shard: t.Shard, Offset: t.Offset + int64(i)*size, Size: size}
}

func (t Tensor) cols() int64 { return product(t.Dims[:min(1, len(t.Dims))]) }

func product(dims []int64) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	return n
}

// Shard is one file of a model.
type Shard struct {
	Path string
	Size int64 // bytes
}

// File is a model: the metadata and tensors of all its shards. It does not change and holds no file open.
type File struct {
	Shards   []Shard
	Warnings []string // what is odd but not wrong, one line each

	keys    []string
	values  map[string]Value
	tensors []Tensor
	names   map[string]int // tensor name -> index into tensors
}

// Tensors returns all tensors in file order, shard after shard. The slice belongs to the File.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.names[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Arch returns general.architecture, "" if it is missing or no string.
func (f *File) Arch() string {
	s, _, _ := f.String("general.architecture")
	return s
}

// Keys returns the keys of the metadata in file order; those of the first shard if there are several. The slice
// belongs to the File.
func (f *File) Keys() []string { return f.keys }

// Value returns the value of a key.
func (f *File) Value(key string) (Value, bool) {
	v, ok := f.values[key]
	return v, ok
}
