package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Open reads the headers of a model: of one file, of all shards of a split model if any of them is named, or of the
// only model in a folder. Symbolic links are followed for the bytes, but the other shards are looked for beside the
// path as given: caches of downloads keep files with hash names behind links.
//
// Errors wrap ErrCorrupt, ErrUnsupported or what the operating system said, and name the file at fault.
func Open(path string) (*File, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	if fi.IsDir() {
		if path, err = modelIn(path); err != nil {
			return nil, err
		}
	}
	paths, err := sisters(path)
	if err != nil {
		return nil, err
	}
	f := &File{names: make(map[string]int)}
	for i, p := range paths {
		if err := f.add(p, i, len(paths)); err != nil {
			return nil, err
		}
	}
	return f, f.checkTotal()
}

// shardName is the name of a shard of a split model, counted from 1.
var shardName = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)

// sisters returns the paths of all shards of the set that path belongs to, in order; all exist.
func sisters(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	m := shardName.FindStringSubmatch(base)
	if m == nil {
		return []string{path}, nil
	}
	no, _ := strconv.Atoi(m[2])
	count, _ := strconv.Atoi(m[3])
	if no < 1 || no > count {
		return nil, fmt.Errorf("gguf: %s: the name says shard %d of %d: rename it as it was published: %w", path, no, count, ErrCorrupt)
	}
	var paths []string
	for i := 1; i <= count; i++ {
		p := dir + fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i, count)
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("gguf: %s: this shard of the model is missing, download it into the folder of %s: %w: %w", p, base, fs.ErrNotExist, ErrCorrupt)
		} else if err != nil {
			return nil, fmt.Errorf("gguf: %w", err)
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// modelIn returns a file of the only model in a folder. Projectors of vision models, hidden files and folders are not
// looked at.
func modelIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("gguf: %w", err)
	}
	found := map[string]string{} // model -> one of its files
	var names []string
	for _, e := range entries {
		n := e.Name()
		if e.IsDir() || !strings.HasSuffix(n, ".gguf") || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "mmproj") {
			continue
		}
		model := n
		if m := shardName.FindStringSubmatch(n); m != nil {
			model = m[1] + " of " + m[3]
		}
		if _, ok := found[model]; !ok {
			found[model], names = n, append(names, n)
		}
	}
	switch len(names) {
	case 1:
		return filepath.Join(dir, names[0]), nil
	case 0:
		return "", fmt.Errorf("gguf: %s: no .gguf file in this folder: %w", dir, fs.ErrNotExist)
	}
	return "", fmt.Errorf("gguf: %s: %d models in this folder (%s, %s ..), name the file: %w", dir, len(names), short(names[0]), short(names[1]), ErrUnsupported)
}

// add reads shard i of n.
func (f *File) add(path string, i, n int) error {
	h, size, err := readHead(path, i)
	if err != nil {
		return err
	}
	f.Shards = append(f.Shards, Shard{Path: path, Size: size})
	if i == 0 {
		f.keys, f.values = h.keys, h.values
	}
	if err := f.checkShard(h, path, i, n); err != nil {
		return err
	}
	for _, t := range h.tensors {
		if j, twice := f.names[t.Name]; twice {
			return fmt.Errorf("gguf: %s: tensor %s appears twice, first in %s: %w", path, short(t.Name), f.Shards[f.tensors[j].Shard].Path, ErrCorrupt)
		}
		f.names[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	// A set of parts joined into one file, or a download that wrote on: the bytes are not part of any tensor.
	if extra := size - h.end; len(h.tensors) > 0 && extra > 1<<20 {
		f.Warnings = append(f.Warnings, fmt.Sprintf("%s: %d bytes after the last tensor belong to none", path, extra))
	}
	return nil
}

func readHead(path string, shard int) (*head, int64, error) {
	fi, err := os.Stat(path) // before opening: a pipe would block
	if err != nil {
		return nil, 0, fmt.Errorf("gguf: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("gguf: %s: not a regular file (%s): %w", path, fi.Mode().Type(), ErrUnsupported)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("gguf: %w", err)
	}
	defer file.Close()
	h, err := parse(file, fi.Size(), path, shard)
	return h, fi.Size(), err
}

// checkShard holds the split keys of shard i of n against its name and the first shard.
func (f *File) checkShard(h *head, path string, i, n int) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("gguf: %s: %s: %w", path, fmt.Sprintf(format, args...), ErrCorrupt)
	}
	count, split := splitKey(h, "split.count")
	no, _ := splitKey(h, "split.no")
	named := shardName.MatchString(filepath.Base(path))
	switch {
	case (!split || count == 0) && n == 1: // 0: parts that were merged
		return nil
	case !split:
		return fail("the name says shard %d of %d, but there is no key split.count: not a shard of this model", i+1, n)
	case !named && count > 1:
		return fail("is part %d of %d of a split model: keep all parts in one folder, unjoined, under their names -00001-of-%05d.gguf and so on", no+1, count, count)
	case int(count) != n:
		return fail("split.count is %d, the name says %d: not a shard of this model", count, n)
	case int(no) != i:
		return fail("split.no is %d, the name says %d: shards were exchanged or copied, download this one again", no, i)
	}
	first := head{values: f.values}
	// As text: values may hold slices, which == cannot compare.
	if a, ok := h.values["general.architecture"]; ok && a.String() != f.values["general.architecture"].String() {
		return fail("general.architecture is not that of the first shard: not a shard of this model")
	}
	total, _ := splitKey(h, "split.tensors.count")
	if want, _ := splitKey(&first, "split.tensors.count"); total != want {
		return fail("split.tensors.count is %d, the first shard says %d: not a shard of this model", total, want)
	}
	return nil
}

// checkTotal holds the number of tensors of all shards against what the first one says.
func (f *File) checkTotal() error {
	want, ok := splitKey(&head{values: f.values}, "split.tensors.count")
	if ok && int(want) != len(f.tensors) {
		return fmt.Errorf("gguf: %s: split.tensors.count is %d, the shards have %d tensors: %w", f.Shards[0].Path, want, len(f.tensors), ErrCorrupt)
	}
	return nil
}

// splitKey returns a number of the split keys, whatever its kind; false when it is absent.
func splitKey(h *head, key string) (int64, bool) {
	v, ok := h.values[key]
	if !ok {
		return 0, false
	}
	n, ok := asInt(v.data)
	if !ok || n < 0 || n > maxTensors {
		return -1, true // fits nothing
	}
	return n, true
}
