package gguf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A wanted result of opening a file of testdata; expect.json has one per file, or per folder for each file in it that
// has none.
type want struct {
	Open    string
	Kind    string
	Mention []string
	Meta    map[string]any
	Tensors []struct {
		Name         string
		Type         string
		Dims         []int64
		Offset, Size int64
		Shard        int
	}
}

// kindOfCase maps the kinds of expect.json to what errors.Is must say.
var kindOfCase = map[string]error{
	"nesting": ErrUnsupported, "value-type": ErrUnsupported, "count": ErrCorrupt, "length": ErrCorrupt, "truncated": ErrCorrupt,
	"tensor-bounds": ErrCorrupt, "version": ErrUnsupported, "byte-order": ErrUnsupported, "alignment": ErrCorrupt,
	"tensor-dims": ErrCorrupt, "tensor-type": ErrUnsupported, "tensor-row": ErrCorrupt, "tensor-offset": ErrCorrupt,
	"tensor-overlap": ErrCorrupt, "duplicate": ErrCorrupt, "key": ErrCorrupt, "shards": ErrCorrupt,
}

func cases(t testing.TB) map[string]want {
	t.Helper()
	var all map[string]want
	raw, err := os.ReadFile("testdata/expect.json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Collect(maps.Keys(all)) {
		if strings.HasSuffix(name, ".gguf") {
			continue
		}
		files, _ := filepath.Glob("testdata/" + name + "/*.gguf")
		for _, f := range files {
			f = strings.TrimPrefix(f, "testdata/")
			if _, ok := all[f]; !ok {
				all[f] = all[name]
			}
		}
		delete(all, name)
	}
	return all
}

func TestCases(t *testing.T) {
	all := cases(t)
	if len(all) < 80 {
		t.Fatalf("only %d cases", len(all))
	}
	for name, w := range all {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			if w.Open == "ok" {
				wantOpen(t, path, w)
			} else {
				wantError(t, path, w)
			}
		})
	}
}

func wantError(t *testing.T, path string, w want) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := Open(path)
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Fatalf("opened with %d tensors", len(f.Tensors()))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("allocated %d bytes", n)
	}
	kind := kindOfCase[w.Kind]
	if w.Kind == "not-gguf" {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v: of neither kind", err)
		}
	} else if kind == nil || !errors.Is(err, kind) {
		t.Errorf("%v: not of kind %q: %v", err, w.Kind, kind)
	}
	wantLine(t, err, append(w.Mention, filepath.Base(path)[:3])...)
}

// wantLine holds an error to one line of reasonable length, the prefix once and what it must mention.
func wantLine(t *testing.T, err error, mention ...string) {
	t.Helper()
	s := err.Error()
	if strings.ContainsAny(s, "\n\r\x00") || len(s) > 1000 || !strings.HasPrefix(s, "gguf: ") || strings.Contains(s, " gguf: ") {
		t.Errorf("no good line: %q", s)
	}
	for _, m := range mention {
		if !strings.Contains(s, m) {
			t.Errorf("%q does not mention %q", s, m)
		}
	}
}

func wantOpen(t *testing.T, path string, w want) {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for key, x := range w.Meta {
		v, ok := f.Value(key)
		if !ok || !slices.Contains(f.Keys(), key) {
			t.Errorf("key %s is missing", key)
			continue
		}
		if got := v.String(); got != text(x) && !sameNumber(got, text(x)) {
			t.Errorf("key %s is %s, not %s", key, got, text(x))
		}
	}
	if len(w.Tensors) > 0 && len(f.Tensors()) != len(w.Tensors) {
		t.Errorf("%d tensors, not %d", len(f.Tensors()), len(w.Tensors))
	}
	for i, x := range w.Tensors {
		got, ok := f.Tensor(x.Name)
		y := Tensor{Name: x.Name, Type: got.Type, Dims: x.Dims, Extent: Extent{x.Shard, x.Offset, x.Size}}
		if !ok || !reflect.DeepEqual(got, y) || got.Type.String() != x.Type || !reflect.DeepEqual(f.Tensors()[i], got) {
			t.Errorf("tensor %+v, wanted %+v of type %s", got, y, x.Type)
		}
	}
}

// text writes a value of expect.json as Value.String does.
func text(x any) string {
	if s, ok := x.(string); ok {
		return s
	}
	j, _ := json.Marshal(x)
	return string(j)
}

func sameNumber(a, b string) bool {
	var x, y float64
	_, err1 := fmt.Sscan(a, &x)
	_, err2 := fmt.Sscan(b, &y)
	return err1 == nil && err2 == nil && x == y
}

// Any shard, the folder and links to files with other names give the same model.
func TestShardsByAnyName(t *testing.T) {
	w := cases(t)["b13/ok-00001-of-00003.gguf"]
	dir := t.TempDir()
	blobs, snap := filepath.Join(dir, "blobs"), filepath.Join(dir, "snap")
	for _, d := range []string{blobs, snap} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("ok-%05d-of-00003.gguf", i)
		copyFile(t, filepath.Join("testdata/b13", name), filepath.Join(blobs, fmt.Sprint("hash", 9-i)))
		if err := os.Symlink(fmt.Sprint("../blobs/hash", 9-i), filepath.Join(snap, name)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= 3; i++ {
		wantOpen(t, filepath.Join(snap, fmt.Sprintf("ok-%05d-of-00003.gguf", i)), w)
	}
	wantOpen(t, snap, w)
	t.Chdir(snap)
	wantOpen(t, "ok-00002-of-00003.gguf", w)
	wantOpen(t, ".", w)
}

// Each damage is found from every shard that is there, and the error names the file at fault.
func TestShardsDamaged(t *testing.T) {
	files, _ := filepath.Glob("testdata/b14/*-of-00003.gguf")
	all := cases(t)
	for _, path := range files {
		set, _, _ := strings.Cut(filepath.Base(path), "-")
		w := all["b14/"+set+"-00001-of-00003.gguf"]
		if w.Open != "error" {
			t.Fatalf("%s: no such case", path)
		}
		wantError(t, path, w)
	}
}

// A shard of another architecture is refused; one whose architecture is a list, which == cannot compare, ends nothing.
func TestShardsOfArchitectures(t *testing.T) {
	for _, c := range []struct {
		first, second any
		kind          error
	}{
		{"x", "x", nil}, {"x", "y", ErrCorrupt}, {"x", uint32(1), ErrCorrupt},
		{[]uint8{1}, []uint8{1}, nil}, {[]string{"x"}, []string{"y"}, ErrCorrupt},
	} {
		dir := t.TempDir()
		for i, arch := range []any{c.first, c.second} {
			b := NewBuilder()
			b.Set("general.architecture", arch)
			b.Set("split.no", uint16(i))
			b.Set("split.count", uint16(2))
			b.Set("split.tensors.count", int32(2))
			b.Add(fmt.Sprint("tensor", i), F32, []int64{8}, fill(1))
			if _, err := b.Write(filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", i+1)), 1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(dir); !errors.Is(err, c.kind) {
			t.Errorf("%v and %v: %v", c.first, c.second, err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Tools that merge the parts of a model leave the keys with a count of 0.
func TestMergedShards(t *testing.T) {
	b := NewBuilder()
	b.Set("split.no", uint16(0))
	b.Set("split.count", uint16(0))
	b.Set("split.tensors.count", int32(1))
	b.Add("a.weight", F32, []int64{8}, fill(1))
	if f := build(t, b, 1); len(f.Tensors()) != 1 {
		t.Errorf("%d tensors", len(f.Tensors()))
	}
}

// A file cut at any byte is refused.
func TestCutAnywhere(t *testing.T) {
	for _, name := range []string{"b00_good.gguf", "b01_bool_array.gguf", "b02_all_types.gguf", "b02_nested_array.gguf"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		end := 0 // of the last tensor's data; what follows is padding
		h, err := parse(bytes.NewReader(b), int64(len(b)), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h.tensors {
			end = max(end, int(x.Offset+x.Size))
		}
		for n := range end {
			if _, err := parse(bytes.NewReader(b[:n]), int64(n), name, 0); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s cut at %d: %v", name, n, err)
			} else {
				wantLine(t, err, name)
			}
		}
	}
}

func TestNoModel(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "none.gguf"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err = Open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err = Open("/dev/null"); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	wantLine(t, err, "/dev/null", "regular")
	copyFile(t, "testdata/b00_good.gguf", filepath.Join(dir, "mmproj-a.gguf"))
	copyFile(t, "testdata/b00_good.gguf", filepath.Join(dir, "a.gguf"))
	if _, err = Open(dir); err != nil {
		t.Error(err)
	}
	copyFile(t, "testdata/b00_good.gguf", filepath.Join(dir, "b.gguf"))
	_, err = Open(dir)
	if !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	wantLine(t, err, "a.gguf", "b.gguf")
}
