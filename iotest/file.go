package iotest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// choose finds the file to read: the one named, or the largest of a folder.
func choose(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("iotest: %w", err)
	}
	if !info.IsDir() {
		return path, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", fmt.Errorf("iotest: %w", err)
	}
	best, size := "", int64(0)
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.Mode().IsRegular() && i.Size() > size {
			best, size = e.Name(), i.Size()
		}
	}
	if best == "" {
		return "", fmt.Errorf("iotest: %s: the folder has no file with bytes in it: name a file, or let one be made with --create: %w", path, ErrNoFile)
	}
	return filepath.Join(path, best), nil
}

// generationOf reads the generation of a file of ours from its first pattern.
func generationOf(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("iotest: %w", err)
	}
	defer f.Close()
	b := make([]byte, patternBytes)
	_, err = io.ReadFull(f, b)
	switch {
	case err == nil && string(b[:8]) == patternMagic:
		return binary.LittleEndian.Uint64(b[16:]), nil
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return 0, fmt.Errorf("iotest: %s: holds no pattern: make a file with --create --verify --keep: %w", path, ErrForeign)
	}
	return 0, fmt.Errorf("iotest: %w", err)
}

// writePiece is how much is written at a time.
const writePiece = 4 << 20

// create makes a file of patterns at path, or in that folder under a name of its own. It never writes to a file that is
// there, unless iotest wrote it. progress may be nil.
func create(ctx context.Context, path string, size int64, progress func(done, total int64)) (name string, gen uint64, err error) {
	f, gen, err := openNew(path)
	if err != nil {
		return "", 0, err
	}
	name = f.Name()
	if err = room(f, size); err == nil {
		err = fill(ctx, f, size, gen, progress)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return "", 0, errors.Join(fmt.Errorf("iotest: %w", err), os.Remove(name))
	}
	return name, gen, nil
}

// openNew opens the file to write, and says its generation.
func openNew(path string) (*os.File, uint64, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return nil, 0, fmt.Errorf("iotest: --create: %w", err)
		}
		return f, 1, nil
	case err != nil:
		return nil, 0, fmt.Errorf("iotest: --create: %w", err)
	case info.IsDir():
		f, err := os.CreateTemp(path, "epq-uring-iotest-*")
		if err != nil {
			return nil, 0, fmt.Errorf("iotest: --create: %w", err)
		}
		return f, 1, nil
	case !info.Mode().IsRegular():
		return nil, 0, fmt.Errorf("iotest: --create: %s: is there and no regular file: name another: %w", path, ErrForeign)
	}
	gen, err := generationOf(path)
	if err != nil {
		return nil, 0, fmt.Errorf("iotest: --create: %s: is there and was not written by iotest: name another: %w", path, ErrForeign)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("iotest: --create: %w", err)
	}
	return f, gen + 1, nil
}

// room refuses what the file system has no place for.
func room(f *os.File, size int64) error {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil {
		return nil // it will say so itself
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; size-info.Size() > free {
		return fmt.Errorf("--create: %s: %d bytes wanted, the file system has %d left: give a smaller --size: %w", f.Name(), size, free, unix.ENOSPC)
	}
	return nil
}

func fill(ctx context.Context, f *os.File, size int64, gen uint64, progress func(done, total int64)) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	piece := make([]byte, writePiece)
	for at := int64(0); at < size; at += writePiece {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := int(min(writePiece, size-at))
		for i := 0; i < n; i += patternBytes {
			writePattern(piece[i:i+patternBytes], at+int64(i), gen)
		}
		if _, err := f.WriteAt(piece[:n], at); err != nil {
			return err
		}
		if progress != nil {
			progress(at+int64(n), size)
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // a wish: buffered jobs shall start cold
	return nil
}

// dropCache lets the kernel forget a file's pages, as fio does before a job.
func dropCache(path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // a wish
}
