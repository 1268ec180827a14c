package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// demo is a small mixture of experts with the architecture of the large ones (tools/demo-model).
//
//go:embed tiny-moe.gguf
var demo []byte

// unpackDemo writes the demo model once to the user's cache directory, so that it is paged from disk like any other, and
// returns its path.
func unpackDemo() (string, error) {
	sum := sha256.Sum256(demo)
	dir, err := cacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the demo model: %w; set XDG_CACHE_HOME or name a model with -m", err)
	}
	path := filepath.Join(dir, "demo-"+hex.EncodeToString(sum[:6])+".gguf")
	if b, err := os.ReadFile(path); err == nil && bytes.Equal(b, demo) {
		return path, nil
	}
	f, err := os.CreateTemp(dir, "demo-*.part")
	if err != nil {
		return "", fmt.Errorf("no place for the demo model: %w; set XDG_CACHE_HOME or name a model with -m", err)
	}
	defer os.Remove(f.Name()) // nothing to remove once it is renamed
	_, err = f.Write(demo)
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
