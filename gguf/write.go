package gguf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// Data makes the bytes of a tensor: it fills dst with those from offset on. The writer asks for each byte once, in
// pieces of whole blocks, from several goroutines and in any order, so that a file larger than RAM needs no memory.
type Data func(dst []byte, offset int64) error

// Bytes is the Data of bytes in memory.
func Bytes(b []byte) Data {
	return func(dst []byte, offset int64) error {
		copy(dst, b[offset:])
		return nil
	}
}

// Builder makes GGUF files, version 3, little endian, with the alignment of 32 or what the key general.alignment says.
type Builder struct {
	keys    []string
	values  map[string]any
	tensors []newTensor
	names   map[string]bool
	errs    []error
}

type newTensor struct {
	Tensor
	data Data
}

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder {
	return &Builder{values: map[string]any{}, names: map[string]bool{}}
}

// Set sets a key to a value: a bool, string, float or sized integer, a slice of one of these, or a slice of slices
// ([]any). The Go type decides the kind. Errors come out of Write.
func (b *Builder) Set(key string, value any) {
	if _, twice := b.values[key]; !twice {
		b.keys = append(b.keys, key)
	}
	if _, err := appendValue(nil, value); err != nil {
		b.errs = append(b.errs, fmt.Errorf("gguf: key %s: %w", short(key), err))
	}
	b.values[key] = value
}

// Add adds a tensor with dimensions fastest first; data nil leaves a hole in the file, which reads as zeros. Errors come
// out of Write.
func (b *Builder) Add(name string, t Type, dims []int64, data Data) {
	x := Tensor{Name: name, Type: t, Dims: append([]int64(nil), dims...)}
	row, err := t.RowBytes(x.cols())
	switch {
	case err != nil:
		b.errs = append(b.errs, fmt.Errorf("gguf: tensor %s: %w", short(name), err))
	case b.names[name]:
		b.errs = append(b.errs, fmt.Errorf("gguf: tensor %s is added twice: %w", short(name), ErrCorrupt))
	case len(dims) > maxDims:
		b.errs = append(b.errs, fmt.Errorf("gguf: tensor %s: %d dimensions, at most %d are allowed: %w", short(name), len(dims), maxDims, ErrCorrupt))
	}
	x.Size = row * x.Rows()
	b.names[name] = true
	b.tensors = append(b.tensors, newTensor{x, data})
}

// Size returns the bytes of all tensors.
func (b *Builder) Size() int64 { return size(b.tensors) }

// Len returns the number of tensors.
func (b *Builder) Len() int { return len(b.tensors) }

func size(tensors []newTensor) int64 {
	var n int64
	for _, t := range tensors {
		n += t.Size
	}
	return n
}

// Write writes the model into one file, or for shards > 1 into as many of about equal size, cut between tensors; path
// NAME.gguf gives NAME-00001-of-0000N.gguf and so on. It returns the paths. A file appears under its name when it is
// whole; after an error none of this call is left.
func (b *Builder) Write(path string, shards int) (paths []string, err error) {
	if err := errors.Join(b.errs...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, p := range paths {
				os.Remove(p)
			}
			paths = nil
		}
	}()
	if shards <= 1 {
		return []string{path}, b.writeShard(path, b.keys, b.values, b.tensors)
	}
	stem := strings.TrimSuffix(path, ".gguf")
	for i, tensors := range b.cut(shards) {
		keys, values := []string{}, map[string]any{}
		if i == 0 {
			keys, values = b.keys, b.values
		}
		p := fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, i+1, shards)
		keys, values = b.withSplit(keys, values, i, shards)
		if err := b.writeShard(p, keys, values, tensors); err != nil {
			return paths, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// cut shares the tensors out to n shards of about equal bytes, in order.
func (b *Builder) cut(n int) [][]newTensor {
	plan := make([][]newTensor, n)
	total, sum := max(b.Size(), 1), int64(0)
	for _, t := range b.tensors {
		i := min(n-1, int(float64(sum+t.Size/2)/float64(total)*float64(n)))
		plan[i] = append(plan[i], t)
		sum += t.Size
	}
	return plan
}

// withSplit returns keys with those of a shard; every shard repeats the alignment, which counts per file.
func (b *Builder) withSplit(keys []string, values map[string]any, i, n int) ([]string, map[string]any) {
	all := make(map[string]any, len(values)+4)
	for k, v := range values {
		all[k] = v
	}
	out := append([]string(nil), keys...)
	set := func(k string, v any) {
		if _, ok := all[k]; !ok {
			out = append(out, k)
		}
		all[k] = v
	}
	if a, ok := b.values["general.alignment"]; ok {
		set("general.alignment", a)
	}
	set("split.no", uint16(i))
	set("split.count", uint16(n))
	set("split.tensors.count", int32(len(b.tensors)))
	return out, all
}

func (b *Builder) alignment() (int64, error) {
	v, ok := b.values["general.alignment"]
	if !ok {
		return 32, nil
	}
	a, ok := v.(uint32)
	if !ok || a == 0 || a&(a-1) != 0 {
		return 0, fmt.Errorf("gguf: general.alignment is %v, wanted a uint32 that is a power of two: %w", v, ErrCorrupt)
	}
	return int64(a), nil
}

// writeShard writes one file beside its name and renames it.
func (b *Builder) writeShard(path string, keys []string, values map[string]any, tensors []newTensor) (err error) {
	align, err := b.alignment()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part*")
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	start, end, err := writeHead(f, keys, values, tensors, align)
	if err != nil {
		return fmt.Errorf("gguf: %s: %w", path, err)
	}
	if err := f.Truncate(end); err != nil {
		return fmt.Errorf("gguf: %s: %w", path, err)
	}
	if err := writeData(f, start, align, tensors); err != nil {
		return fmt.Errorf("gguf: %s: %w", path, err)
	}
	if err = errors.Join(f.Chmod(0o644), f.Close()); err == nil { // only what is whole gets its name
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("gguf: %s: %w", path, err)
	}
	return nil
}

// writeHead writes everything up to the data; it returns where that starts and where the file ends.
func writeHead(f *os.File, keys []string, values map[string]any, tensors []newTensor, align int64) (start, end int64, err error) {
	w := bufio.NewWriterSize(f, 1<<20)
	h := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	h = binary.LittleEndian.AppendUint64(h, uint64(len(tensors)))
	h = binary.LittleEndian.AppendUint64(h, uint64(len(keys)))
	put := func(b []byte) {
		n, _ := w.Write(b) // the error stays until Flush
		start += int64(n)
	}
	put(h)
	for _, k := range keys {
		h, err := appendValue(appendText(h[:0], k), values[k])
		if err != nil {
			return 0, 0, err
		}
		put(h)
	}
	for _, t := range tensors {
		h = binary.LittleEndian.AppendUint32(appendText(h[:0], t.Name), uint32(len(t.Dims)))
		for _, d := range t.Dims {
			h = binary.LittleEndian.AppendUint64(h, uint64(d))
		}
		h = binary.LittleEndian.AppendUint32(h, uint32(t.Type))
		put(binary.LittleEndian.AppendUint64(h, uint64(end)))
		end += roundUp(t.Size, align)
	}
	put(make([]byte, roundUp(start, align)-start))
	return start, start + end, w.Flush()
}

func roundUp(n, align int64) int64 { return (n + align - 1) &^ (align - 1) }

// pieceBytes is about how much of a tensor is made at a time.
const pieceBytes = 2 << 20

// writeData makes and writes the data of all tensors, piece by piece on all CPUs.
func writeData(f *os.File, start, align int64, tensors []newTensor) error {
	type piece struct {
		tensor *newTensor
		at     int64 // of the tensor, in the file
		from   int64
		size   int64
	}
	pieces := make(chan piece)
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var buf []byte
			for p := range pieces {
				if failed.Load() != nil {
					continue
				}
				if int64(cap(buf)) < p.size {
					buf = make([]byte, max(p.size, pieceBytes))
				}
				buf := buf[:p.size]
				err := p.tensor.data(buf, p.from)
				if err == nil {
					_, err = f.WriteAt(buf, p.at+p.from)
				}
				if err != nil {
					err = fmt.Errorf("tensor %s: %w", short(p.tensor.Name), err)
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	at := start
	for i := range tensors {
		t := &tensors[i]
		step := int64(pieceBytes / t.Type.BlockBytes() * t.Type.BlockBytes())
		for from := int64(0); t.data != nil && from < t.Size && failed.Load() == nil; from += step {
			pieces <- piece{t, at, from, min(step, t.Size-from)}
		}
		at += roundUp(t.Size, align)
	}
	close(pieces)
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendValue appends the kind and the bytes of a value.
func appendValue(b []byte, v any) ([]byte, error) {
	k, err := kindOf(v)
	if err != nil {
		return nil, err
	}
	return appendBare(binary.LittleEndian.AppendUint32(b, uint32(k)), v)
}

// kindOf returns the kind of a Go value.
func kindOf(v any) (Kind, error) {
	switch v.(type) {
	case uint8:
		return KindUint8, nil
	case int8:
		return KindInt8, nil
	case uint16:
		return KindUint16, nil
	case int16:
		return KindInt16, nil
	case uint32:
		return KindUint32, nil
	case int32:
		return KindInt32, nil
	case float32:
		return KindFloat32, nil
	case bool:
		return KindBool, nil
	case string:
		return KindString, nil
	case uint64:
		return KindUint64, nil
	case int64:
		return KindInt64, nil
	case float64:
		return KindFloat64, nil
	case []uint8, []int8, []uint16, []int16, []uint32, []int32, []float32, []bool, []string, []uint64, []int64, []float64, []any:
		return KindArray, nil
	}
	return 0, fmt.Errorf("a %T cannot be a value: %w", v, ErrUnsupported)
}

// appendBare appends a value without its kind.
func appendBare(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return appendText(b, v), nil
	case []string:
		b = appendArray(b, KindString, len(v))
		for _, s := range v {
			b = appendText(b, s)
		}
		return b, nil
	case []any: // arrays of arrays
		b = appendArray(b, KindArray, len(v))
		for _, x := range v {
			if k, err := kindOf(x); err != nil || k != KindArray {
				return nil, fmt.Errorf("a %T in an array of arrays: %w", x, ErrUnsupported)
			}
			var err error
			if b, err = appendBare(b, x); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	if k, n := elements(v); k != KindArray {
		b = appendArray(b, k, n)
	}
	w := bytes.NewBuffer(b)
	err := binary.Write(w, binary.LittleEndian, v)
	return w.Bytes(), err
}

func appendArray(b []byte, elem Kind, n int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, uint32(elem)), uint64(n))
}

// elements returns the kind and number of a slice's elements; KindArray for what is no slice of numbers or bools.
func elements(v any) (Kind, int) {
	switch v := v.(type) {
	case []uint8:
		return KindUint8, len(v)
	case []int8:
		return KindInt8, len(v)
	case []uint16:
		return KindUint16, len(v)
	case []int16:
		return KindInt16, len(v)
	case []uint32:
		return KindUint32, len(v)
	case []int32:
		return KindInt32, len(v)
	case []uint64:
		return KindUint64, len(v)
	case []int64:
		return KindInt64, len(v)
	case []float32:
		return KindFloat32, len(v)
	case []float64:
		return KindFloat64, len(v)
	case []bool:
		return KindBool, len(v)
	}
	return KindArray, 0
}
