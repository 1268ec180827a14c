package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"
	"path/filepath"

	"github.com/epq-uring/epq-uring/gguf"
)

// identity tells a model from every other: the sizes of its shards and its tensor table. A copy has the same.
type identity [sha256.Size]byte

func identify(f *gguf.File) identity {
	h := sha256.New()
	for _, s := range f.Shards {
		hashInts(h, s.Size)
	}
	for _, t := range f.Tensors() {
		hashInts(h, int64(len(t.Name)), int64(t.Type), int64(t.Shard), t.Offset, t.Size, int64(len(t.Dims)))
		h.Write([]byte(t.Name))
		hashInts(h, t.Dims...)
	}
	return identity(h.Sum(nil))
}

// dated also tells a file from one that was written over it later.
func (id identity) dated(f *gguf.File) (identity, error) {
	h := sha256.New()
	h.Write(id[:])
	for _, s := range f.Shards {
		info, err := os.Stat(s.Path)
		if err != nil {
			return id, fmt.Errorf("engine: %w", err)
		}
		hashInts(h, info.ModTime().UnixNano())
	}
	return identity(h.Sum(nil)), nil
}

func hashInts(h hash.Hash, vs ...int64) {
	var b [8]byte
	for _, v := range vs {
		binary.LittleEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
}

// replaceFile writes a small file whole or not at all.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing to remove once it is renamed
	_, err = f.Write(b)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
