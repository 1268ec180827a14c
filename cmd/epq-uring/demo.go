package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"
)

// demo is a small mixture of experts with the architecture of the large ones (tools/demo-model). A string lies in the
// program's read-only part, bytes would lie among its data, which RLIMIT_DATA counts.
//
//go:embed tiny-moe.gguf
var demo string

// unpackDemo writes the demo model once to the user's cache directory, so that it is paged from disk like any other, and
// returns its path.
func unpackDemo() (string, error) {
	bytes := unsafe.Slice(unsafe.StringData(demo), len(demo)) // only read
	sum := sha256.Sum256(bytes)
	dir, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the demo model: %w; set XDG_CACHE_HOME or name a model with -m", err)
	}
	path := filepath.Join(dir, "demo-"+hex.EncodeToString(sum[:6])+".gguf")
	if holds(path, demo) {
		return path, nil
	}
	f, err := os.CreateTemp(dir, "demo-*.part")
	if err != nil {
		return "", fmt.Errorf("no place for the demo model: %w; set XDG_CACHE_HOME or name a model with -m", err)
	}
	defer os.Remove(f.Name()) // nothing to remove once it is renamed
	_, err = f.Write(bytes)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return path, err
}

// holds tells whether a file has this content and no other.
func holds(path, content string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for len(content) > 0 {
		n, err := io.ReadFull(f, buf[:min(len(buf), len(content))])
		if err != nil || string(buf[:n]) != content[:n] {
			return false
		}
		content = content[n:]
	}
	n, err := f.Read(buf[:1])
	return n == 0 && errors.Is(err, io.EOF)
}
