package gguf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func TestTypes(t *testing.T) {
	var list []struct {
		ID    uint32
		Name  string
		Block int
		Bytes int
	}
	raw, err := os.ReadFile("testdata/types.json")
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	known := 0
	for id := range Type(100) {
		if id.Known() {
			known++
		}
	}
	if known != len(list) {
		t.Errorf("%d types, wanted %d", known, len(list))
	}
	for _, x := range list {
		ty := Type(x.ID)
		if !ty.Known() || !strings.EqualFold(ty.String(), x.Name) || ty.BlockLen() != x.Block || ty.BlockBytes() != x.Bytes {
			t.Errorf("%d %s: %s, blocks of %d in %d bytes", x.ID, x.Name, ty, ty.BlockLen(), ty.BlockBytes())
		}
		if p, err := ParseType(x.Name); err != nil || p != ty {
			t.Errorf("%s is parsed as %v, %v", x.Name, p, err)
		}
		if n, err := ty.RowBytes(int64(x.Block) * 3); err != nil || n != int64(x.Bytes)*3 {
			t.Errorf("%s: row of %d, %v", x.Name, n, err)
		}
	}
	for _, ty := range []Type{4, 31, 38, 43, 99, math.MaxUint32} {
		if _, err := ty.RowBytes(256); ty.Known() || !errors.Is(err, ErrUnsupported) {
			t.Errorf("%v: %v", ty, err)
		}
	}
	if _, err := ParseType("Q4_2"); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if _, err := F32.RowBytes(math.MaxInt64 / 2); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func build(t testing.TB, b *Builder, shards int) *File {
	t.Helper()
	paths, err := b.Write(filepath.Join(t.TempDir(), "m.gguf"), shards)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(paths[len(paths)-1])
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestGetters(t *testing.T) {
	b := NewBuilder()
	b.Set("u8", uint8(200))
	b.Set("i32", int32(-7))
	b.Set("u64", uint64(math.MaxUint64))
	b.Set("f32", float32(0.5))
	b.Set("f64", 1e-300)
	b.Set("nan", math.NaN())
	b.Set("yes", true)
	b.Set("text", "a\nb")
	b.Set("ints", []int16{-1, 2})
	b.Set("bytes", []uint8{1, 2})
	b.Set("big", []uint64{math.MaxUint64})
	b.Set("floats", []float32{0.25, 1})
	b.Set("bools", []bool{true, false, true})
	b.Set("texts", []string{"", "x", "yz"})
	b.Set("nested", []any{[]int32{1}, []string{"a", ""}, []any{[]bool{true}}})
	f := build(t, b, 1)

	check := func(name string, want any) func(got any, ok bool, err error) {
		return func(got any, ok bool, err error) {
			t.Helper()
			if want == nil {
				if ok || !errors.Is(err, ErrCorrupt) || !reflect.ValueOf(got).IsZero() {
					t.Errorf("%s: %v, %v, %v", name, got, ok, err)
				} else {
					wantLine(t, err, name, "m.gguf")
				}
			} else if !ok || err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v, %v, %v; wanted %v", name, got, ok, err, want)
			}
		}
	}
	uintOf := func(k string) (any, bool, error) { return any3(f.Uint(k)) }
	intOf := func(k string) (any, bool, error) { return any3(f.Int(k)) }
	floatOf := func(k string) (any, bool, error) { return any3(f.Float(k)) }
	check("u8", uint64(200))(uintOf("u8"))
	check("u64", uint64(math.MaxUint64))(uintOf("u64"))
	check("i32", nil)(uintOf("i32"))
	check("f32", nil)(uintOf("f32"))
	check("text", nil)(uintOf("text"))
	check("i32", int64(-7))(intOf("i32"))
	check("u64", nil)(intOf("u64"))
	check("f32", 0.5)(floatOf("f32"))
	check("f64", 1e-300)(floatOf("f64"))
	check("u8", 200.0)(floatOf("u8"))
	check("yes", nil)(floatOf("yes"))
	check("yes", true)(any3(f.Bool("yes")))
	check("u8", nil)(any3(f.Bool("u8")))
	check("text", "a\nb")(any3(f.String("text")))
	check("ints", []int64{-1, 2})(any3(f.Ints("ints")))
	check("bytes", []int64{1, 2})(any3(f.Ints("bytes")))
	check("big", nil)(any3(f.Ints("big")))
	check("floats", nil)(any3(f.Ints("floats")))
	check("floats", []float64{0.25, 1})(any3(f.Floats("floats")))
	check("ints", []float64{-1, 2})(any3(f.Floats("ints")))
	check("texts", []string{"", "x", "yz"})(any3(f.Strings("texts")))
	check("nested", nil)(any3(f.Strings("nested")))
	if _, ok, err := f.Uint("absent"); ok || err != nil {
		t.Error(ok, err)
	}

	j, err := json.Marshal(map[string]Value{"n": value(f, "nested"), "t": value(f, "texts"), "b": value(f, "bytes"), "u": value(f, "u64"), "nan": value(f, "nan")})
	if want := `{"b":[1,2],"n":[[1],["a",""],[[true]]],"nan":"NaN","t":["","x","yz"],"u":18446744073709551615}`; err != nil || string(j) != want {
		t.Errorf("%s, %v; wanted %s", j, err, want)
	}
	if v := value(f, "texts"); v.Kind() != KindArray || v.elem != KindString || v.Len() != 3 {
		t.Errorf("%v of %d %v", v.Kind(), v.Len(), v.elem)
	}
}

func any3[T any](v T, ok bool, err error) (any, bool, error) { return v, ok, err }

func value(f *File, key string) Value { v, _ := f.Value(key); return v }

// fill makes data of which each byte tells tensor and position.
func fill(salt byte) Data {
	return func(dst []byte, from int64) error {
		for i := range dst {
			dst[i] = salt + byte((from+int64(i))*7>>3)
		}
		return nil
	}
}

func TestBuilder(t *testing.T) {
	for _, shards := range []int{1, 2, 5} {
		for _, align := range []uint32{0, 64, 4096} {
			b := NewBuilder()
			b.Set("general.architecture", "test")
			if align > 0 {
				b.Set("general.alignment", align)
			}
			b.Add("experts", Q4_K, []int64{512, 30, 300}, fill(1)) // more than one piece
			b.Add("one", F32, nil, fill(2))
			b.Add("none", F16, []int64{0, 4}, fill(3))
			b.Add("odd", Q6_K, []int64{256, 3}, fill(4))
			f := build(t, b, shards)
			if len(f.Shards) != shards || f.Arch() != "test" || len(f.Tensors()) != 4 || len(f.Warnings) > 0 {
				t.Fatalf("%d shards, arch %q, %d tensors, %v", len(f.Shards), f.Arch(), len(f.Tensors()), f.Warnings)
			}
			for i, x := range f.Tensors() {
				raw, err := os.ReadFile(f.Shards[x.Shard].Path)
				if err != nil {
					t.Fatal(err)
				}
				want := make([]byte, x.Size)
				if err := fill(byte(i+1))(want, 0); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(raw[x.Offset:x.Offset+x.Size], want) || align > 0 && x.Offset%int64(align) != 0 {
					t.Errorf("%d shards, alignment %d: tensor %s at %d differs", shards, align, x.Name, x.Offset)
				}
			}
			x, _ := f.Tensor("experts")
			if s := x.Slice(93); s.Size != 30*288 || s.Offset != x.Offset+93*30*288 || s.Shard != x.Shard {
				t.Errorf("slice %+v of %+v", s, x)
			}
			if x.Elements() != 512*30*300 || x.Rows() != 30*300 || x.RowBytes() != 288 || x.Slices() != 300 {
				t.Errorf("%d elements, %d rows of %d bytes, %d slices", x.Elements(), x.Rows(), x.RowBytes(), x.Slices())
			}
		}
	}
}

func TestBuilderErrors(t *testing.T) {
	wrong := errors.New("no data")
	for name, c := range map[string]struct {
		make func(b *Builder)
		kind error
	}{
		"a value":        {func(b *Builder) { b.Set("x", 1) }, ErrUnsupported},
		"a nested value": {func(b *Builder) { b.Set("x", []any{1}) }, ErrUnsupported},
		"a row":          {func(b *Builder) { b.Add("x", Q4_K, []int64{100}, fill(0)) }, ErrCorrupt},
		"twice":          {func(b *Builder) { b.Add("x", F32, nil, fill(0)); b.Add("x", F32, nil, fill(0)) }, ErrCorrupt},
		"dimensions":     {func(b *Builder) { b.Add("x", F32, []int64{1, 1, 1, 1, 1}, fill(0)) }, ErrCorrupt},
		"alignment":      {func(b *Builder) { b.Set("general.alignment", uint32(3)) }, ErrCorrupt},
		"data": {func(b *Builder) {
			b.Add("x", F32, []int64{8}, fill(0))
			b.Add("y", F32, []int64{8}, func([]byte, int64) error { return wrong })
		}, wrong},
	} {
		dir := t.TempDir()
		b := NewBuilder()
		c.make(b)
		if _, err := b.Write(filepath.Join(dir, "m.gguf"), 2); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: %s is left", name, left[0].Name())
		}
	}
}

// writeVocabulary writes a model without weights with as many tokens and merges, and returns its path.
func writeVocabulary(t testing.TB, n int) string {
	t.Helper()
	tokens, merges, types := make([]string, n), make([]string, n), make([]int32, n)
	for i := range n {
		tokens[i], merges[i], types[i] = fmt.Sprintf("token%d", i*7919), fmt.Sprintf("tok%d en%d", i, i%1000), 1
	}
	b := NewBuilder()
	b.Set("general.architecture", "qwen35moe")
	b.Set("tokenizer.ggml.tokens", tokens)
	b.Set("tokenizer.ggml.token_type", types)
	b.Set("tokenizer.ggml.merges", merges)
	b.Set("last", "in step")
	b.Add("token_embd.weight", F32, []int64{8}, fill(1))
	paths, err := b.Write(filepath.Join(t.TempDir(), "vocabulary.gguf"), 1)
	if err != nil {
		t.Fatal(err)
	}
	return paths[0]
}

// A large vocabulary costs little more than the bytes of its text: no string has memory of its own.
func TestVocabularyIsLean(t *testing.T) {
	const n = 50_000
	path := writeVocabulary(t, n)
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := Open(path)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if a := int64(after.TotalAlloc - before.TotalAlloc); a > fi.Size()*3/2 || after.Mallocs-before.Mallocs > 1000 {
		t.Errorf("%d bytes in %d pieces for a file of %d", a, after.Mallocs-before.Mallocs, fi.Size())
	}
	merges, _, err := f.Strings("tokenizer.ggml.merges")
	if err != nil || len(merges) != n || merges[n-1] != fmt.Sprintf("tok%d en%d", n-1, (n-1)%1000) {
		t.Errorf("%d merges, %v", len(merges), err)
	}
	if s, _, _ := f.String("last"); s != "in step" {
		t.Errorf("the key after the arrays is %q", s)
	}
}

func BenchmarkOpen250k(b *testing.B) {
	path := writeVocabulary(b, 250_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Open(path); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzParse: no input makes the parser panic or want more memory than a small multiple of what it was given, and what
// it accepts lies inside the file.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.gguf", "testdata/*/*.gguf"} {
		files, _ := filepath.Glob(pattern)
		for _, path := range files {
			b, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			if len(b) < 8<<10 {
				f.Add(b)
			}
		}
	}
	if b, err := os.ReadFile(writeVocabulary(f, 30)); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := parse(bytes.NewReader(b), int64(len(b)), "fuzz.gguf", 0)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20+64*uint64(len(b)) {
			t.Errorf("%d bytes for an input of %d", n, len(b))
		}
		if err != nil {
			wantLine(t, err, "fuzz.gguf")
			return
		}
		for _, x := range h.tensors {
			if !x.Type.Known() || x.Size > 0 && (x.Offset < 0 || x.Size > int64(len(b))-x.Offset) || x.Rows()*x.RowBytes() != x.Size {
				t.Errorf("tensor %+v in a file of %d bytes", x, len(b))
			}
			for i := range min(x.Slices(), 100) {
				if s := x.Slice(int(i)); s.Offset < x.Offset || s.Offset+s.Size > x.Offset+x.Size {
					t.Errorf("slice %+v of %+v", s, x)
				}
			}
		}
		for k, v := range h.values {
			if j, err := json.Marshal(v); err != nil || !json.Valid(j) {
				t.Errorf("key %q: %s, %v", k, j, err)
			}
		}
	})
}
