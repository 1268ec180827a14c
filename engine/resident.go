package engine

import (
	"errors"
	"fmt"
	"os"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
)

// resident lends the bytes of the weights that every token reads. "mmap": clean pages of the file, which count only where
// page cache is charged; "copy": anonymous memory on huge pages, faster to walk, counted everywhere.
type resident struct {
	maps  [][]byte // one per tensor, when mapped
	block *mem.Block
	data  map[string][]byte
}

// residentBytes is what a list of tensors takes when copied, and close to what it takes when mapped.
func residentBytes(ts []gguf.Tensor) int64 {
	sum := int64(0)
	seen := map[string]bool{}
	for _, t := range ts {
		if !seen[t.Name] {
			sum += alignUp(t.Size)
		}
		seen[t.Name] = true
	}
	return sum
}

func alignUp(n int64) int64 { return (n + 63) &^ 63 }

func loadResident(f *gguf.File, ts []gguf.Tensor, how string, threads int) (*resident, error) {
	r := &resident{data: map[string][]byte{}}
	files := make([]*os.File, len(f.Shards))
	defer func() {
		for _, g := range files {
			if g != nil {
				g.Close()
			}
		}
	}()
	for i, s := range f.Shards {
		var err error
		if files[i], err = os.Open(s.Path); err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
	}
	var err error
	switch how {
	case "mmap":
		err = r.mapAll(files, ts)
	case "copy":
		err = r.copyAll(files, ts, threads)
	default:
		err = fmt.Errorf("engine: --resident is %q, allowed are mmap and copy: %w", how, ErrOption)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *resident) mapAll(files []*os.File, ts []gguf.Tensor) error {
	for _, t := range ts {
		if _, ok := r.data[t.Name]; ok || t.Size == 0 {
			continue
		}
		b, err := mem.Map(files[t.Shard], t.Offset, t.Size)
		if err != nil {
			return fmt.Errorf("engine: tensor %q: %w", t.Name, err)
		}
		r.maps, r.data[t.Name] = append(r.maps, b), b
	}
	return nil
}

func (r *resident) copyAll(files []*os.File, ts []gguf.Tensor, threads int) error {
	var err error
	if r.block, err = mem.Alloc("resident weights", int(residentBytes(ts))); err != nil {
		return err
	}
	r.block.Touch(threads)
	at := int64(0)
	for _, t := range ts {
		if _, ok := r.data[t.Name]; ok {
			continue
		}
		b := r.block.Bytes()[at : at+t.Size : at+t.Size]
		if _, err := files[t.Shard].ReadAt(b, t.Offset); err != nil {
			return fmt.Errorf("engine: tensor %q at offset %d of %s, %d bytes: %w", t.Name, t.Offset, files[t.Shard].Name(), t.Size, err)
		}
		r.data[t.Name] = b
		at += alignUp(t.Size)
	}
	return nil
}

// Bytes implements model.Source.
func (r *resident) Bytes(t gguf.Tensor) ([]byte, error) {
	b, ok := r.data[t.Name]
	if !ok && t.Size > 0 {
		return nil, fmt.Errorf("engine: tensor %q was not loaded", t.Name)
	}
	return b, nil
}

func (r *resident) close() error {
	var errs []error
	for _, b := range r.maps {
		errs = append(errs, mem.Unmap(b))
	}
	if r.block != nil {
		errs = append(errs, r.block.Free())
	}
	r.maps, r.block, r.data = nil, nil, nil
	return errors.Join(errs...)
}
