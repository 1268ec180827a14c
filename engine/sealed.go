package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// Kinds of small files of ours that cannot be used; match with errors.Is.
var (
	ErrForeign = errors.New("of another model or version")
	ErrDamaged = errors.New("damaged")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealBytes is what a seal adds to a body: before it a magic of 8 bytes and the identity of a model, behind it the CRC32C of
// all that comes before.
const sealBytes = 8 + len(identity{}) + 4

// seal makes a small file of a body, numbers in little endian.
func seal(magic string, id identity, body []byte) []byte {
	b := append(append([]byte(magic), id[:]...), body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// unseal returns the body of a file that belongs to a model.
func unseal(name, magic string, id identity, b []byte) ([]byte, error) {
	if len(b) < sealBytes || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%s: %w", name, ErrForeign)
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%s: %w", name, ErrDamaged)
	}
	body := b[len(magic)+len(id) : end]
	if identity(b[len(magic):len(magic)+len(id)]) != id {
		return nil, fmt.Errorf("%s: %w", name, ErrForeign)
	}
	return body, nil
}

// readSmall reads a file that must have just so many bytes.
func readSmall(path string, size int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(size) {
		return nil, fmt.Errorf("%s has %d bytes, %d belong to this model: %w", filepath.Base(path), info.Size(), size, ErrForeign)
	}
	return os.ReadFile(path)
}
