package synth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

// dry makes a model without vocabulary and without writing it.
func dry(t *testing.T, preset string, o Options) *maker {
	t.Helper()
	s, err := find(preset)
	if err == nil {
		err = s.apply(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := newMaker(context.Background(), &s, nil)
	m.keys()
	m.tensors()
	return m
}

func write(t *testing.T, preset string, o Options) (*gguf.File, Report) {
	t.Helper()
	r, err := Write(context.Background(), preset, filepath.Join(t.TempDir(), "m.gguf"), o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(r.Files[0])
	if err != nil {
		t.Fatal(err)
	}
	return f, r
}

// read returns the bytes of a tensor.
func read(t *testing.T, f *gguf.File, name string) (gguf.Tensor, []byte) {
	t.Helper()
	x, ok := f.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	file, err := os.Open(f.Shards[x.Shard].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b := make([]byte, x.Size)
	if _, err := file.ReadAt(b, x.Offset); err != nil {
		t.Fatal(err)
	}
	return x, b
}

// The real shapes have the tensor bytes that llama.cpp's quantiser gives them.
func TestRealShapes(t *testing.T) {
	if got := dry(t, "qwen35moe-35b", Options{}).b.Size(); math.Abs(float64(got)/(1<<20)-20175.71) > 0.01 {
		t.Errorf("qwen35moe-35b: %.2f MiB", float64(got)/(1<<20))
	}
	s, _ := find("qwen35moe-35b")
	var more []int
	for i := range s.layers {
		if s.typeOf("blk.0.ffn_down_exps.weight", []int64{512, 2048, 256}, i) == gguf.Q6_K {
			more = append(more, i)
		}
	}
	if want := []int{0, 1, 2, 3, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 35, 36, 37, 38, 39}; !slices.Equal(more, want) {
		t.Errorf("Q6_K in layers %v, wanted %v", more, want)
	}
	for name, want := range map[string]struct {
		tensors int
		bytes   int64
	}{
		"ling-3.0-flash": {938, 77003601792}, "deepseek-v2-lite": {404, 10363959296}, "glm-4.7-flash": {866, 18538782464}, "gpt-oss-20b": {459, 12096558336},
	} {
		m := dry(t, name, Options{HeaderOnly: true})
		if m.b.Size() != want.bytes || m.b.Len() != want.tensors {
			t.Errorf("%s: %d tensors of %d bytes, want %d of %d", name, m.b.Len(), m.b.Size(), want.tensors, want.bytes)
		}
	}
	m := dry(t, "qwen3moe-30b", Options{})
	if got := float64(m.b.Size()) / (1 << 30); got < 17 || got > 17.5 {
		t.Errorf("qwen3moe-30b: %.2f GiB", got)
	}
}

// Every preset that fits a test is written, opens without a warning and has what its options say.
func TestWrite(t *testing.T) {
	for _, p := range Presets() {
		if dry(t, p.Name, Options{}).b.Size() > 64<<20 {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			total := int64(0)
			f, r := write(t, p.Name, Options{Layers: 3, Experts: 8, Used: 2, Seed: 9, Progress: func(done, all int64) {
				if done > all {
					t.Errorf("%d of %d bytes", done, all)
				}
				total = done
			}})
			fi, err := os.Stat(r.Files[0])
			if err != nil || fi.Size() != r.Bytes || len(r.Files) != 1 || len(f.Warnings) > 0 {
				t.Errorf("%v of %d bytes, file of %d, %v, %v", r.Files, r.Bytes, fi.Size(), f.Warnings, err)
			}
			sum := int64(0)
			for _, x := range f.Tensors() {
				sum += x.Size
			}
			if sum != total {
				t.Errorf("progress ends at %d of %d", total, sum)
			}
			blocks := uint64(3)
			if n, ok, _ := f.Uint(f.Arch() + ".nextn_predict_layers"); ok {
				blocks += n
			}
			for key, want := range map[string]uint64{"block_count": blocks, "expert_count": 8, "expert_used_count": 2} {
				if n, ok, err := f.Uint(f.Arch() + "." + key); n != want || !ok || err != nil {
					t.Errorf("%s is %d, %v", key, n, err)
				}
			}
			x, ok := f.Tensor("blk.2.ffn_down_exps.weight")
			if _, more := f.Tensor(fmt.Sprintf("blk.%d.attn_norm.weight", blocks)); !ok || more || x.Slices() != 8 {
				t.Errorf("%+v", x)
			}
		})
	}
}

// A header alone describes the whole model and takes no room.
func TestHeaderOnly(t *testing.T) {
	f, r := write(t, "ling-3.0-flash", Options{HeaderOnly: true, Shards: 2})
	if len(r.Files) != 2 || r.Bytes < 77003601792 || len(f.Tensors()) != 938 {
		t.Errorf("%d files of %d bytes, %d tensors", len(r.Files), r.Bytes, len(f.Tensors()))
	}
	var st syscall.Stat_t
	if err := syscall.Stat(r.Files[1], &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the second file takes %d bytes, %v", st.Blocks*512, err)
	}
}

// The same seed gives the same weights, in one file and in several; another seed gives others.
func TestSeed(t *testing.T) {
	const preset = "tiny-qwen35moe-q4k"
	a, ra := write(t, preset, Options{})
	_, rb := write(t, preset, Options{})
	c, rc := write(t, preset, Options{Shards: 3})
	d, _ := write(t, preset, Options{Seed: 77})
	one, err1 := os.ReadFile(ra.Files[0])
	two, err2 := os.ReadFile(rb.Files[0])
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(one, two) {
		t.Errorf("two runs differ: %v", err)
	}
	if len(rc.Files) != 3 || !strings.HasSuffix(rc.Files[2], "m-00003-of-00003.gguf") {
		t.Errorf("files %v", rc.Files)
	}
	for _, x := range a.Tensors() {
		_, in1 := read(t, a, x.Name)
		_, in3 := read(t, c, x.Name)
		_, other := read(t, d, x.Name)
		if !bytes.Equal(in1, in3) {
			t.Errorf("%s differs in shards", x.Name)
		}
		if bytes.Equal(in1, other) {
			t.Errorf("%s does not depend on the seed", x.Name)
		}
	}
	x, raw := read(t, a, "blk.1.ffn_up_exps.weight")
	seen := map[string]bool{}
	for i := range int(x.Slices()) {
		s := x.Slice(i)
		seen[string(raw[s.Offset-x.Offset:][:s.Size])] = true
	}
	if len(seen) != int(x.Slices()) {
		t.Errorf("%d of %d experts differ", len(seen), x.Slices())
	}
}

func TestOptionErrors(t *testing.T) {
	inf := math.Inf(1)
	for name, c := range map[string]struct {
		preset string
		opt    Options
		kind   error
		want   string
	}{
		"preset":  {"gigantic", Options{}, ErrPreset, "micro-qwen3moe"},
		"layers":  {"micro-qwen3moe", Options{Layers: -1}, ErrOption, "-1"},
		"experts": {"micro-qwen3moe", Options{Experts: 1 << 20}, ErrOption, "1048576"},
		"used":    {"micro-qwen3moe", Options{Used: 9}, ErrOption, "1 to 8"},
		"shards":  {"micro-qwen3moe", Options{Shards: 1000}, ErrOption, "999"},
		"skew":    {"micro-qwen3moe", Options{Skew: &inf}, ErrOption, "Inf"},
		"groups":  {"tiny-bailingmoe3", Options{Experts: 15}, ErrOption, "4 groups"},
	} {
		dir := t.TempDir()
		_, err := Write(context.Background(), c.preset, filepath.Join(dir, "m.gguf"), c.opt)
		if !errors.Is(err, c.kind) || !strings.HasPrefix(err.Error(), "synth: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: a file is left", name)
		}
	}
	if _, err := Write(context.Background(), "micro-qwen3moe", filepath.Join(t.TempDir(), "no", "m.gguf"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := Write(ctx, "small-qwen35moe-q4k", filepath.Join(dir, "m.gguf"), Options{Shards: 4, Progress: func(done, total int64) {
		if done > total*2/3 {
			cancel()
		}
	}})
	if left, _ := os.ReadDir(dir); !errors.Is(err, context.Canceled) || len(left) > 0 {
		t.Errorf("%v, %d files left", err, len(left))
	}
}

// With skew a tenth of the experts takes far more of the choices than without.
func TestSkew(t *testing.T) {
	share := func(skew float64) float64 {
		const experts, embd, used, tokens = 256, 64, 8, 100
		m := dry(t, "tiny-qwen3moe-q8", Options{Experts: experts, Skew: &skew, Layers: 1})
		paths, err := m.b.Write(filepath.Join(t.TempDir(), "m.gguf"), 1)
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		_, raw := read(t, f, "blk.0.ffn_gate_inp.weight")
		w := dequantize(gguf.F32, raw)
		count, r := make([]int, experts), newRandom(5, "hidden")
		for tok := range tokens {
			hidden := make([]float64, embd)
			for i := range hidden {
				hidden[i] = float64(normal(r.word(uint64(tok*embd + i))))
			}
			score, ids := make([]float64, experts), make([]int, experts)
			for e := range experts {
				ids[e] = e
				for i := range embd {
					score[e] += w[e*embd+i] * hidden[i]
				}
			}
			slices.SortFunc(ids, func(a, b int) int {
				if score[a] > score[b] {
					return -1
				}
				return 1
			})
			for _, e := range ids[:used] {
				count[e]++
			}
		}
		slices.Sort(count)
		top := 0
		for _, n := range count[experts-experts/10:] {
			top += n
		}
		return float64(top) / (tokens * used)
	}
	even, uneven := share(0), share(1.5)
	if even > 0.3 || uneven < 1.4*even {
		t.Errorf("the top tenth takes %.2f without skew, %.2f with", even, uneven)
	}
}

// Every merge makes a token from two tokens, no token is there twice, and the special ones have their types.
func TestVocabulary(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Presets() {
		s, err := find(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		// One of each family, and one large.
		if key := s.family.arch; seen[key] && p.Name != "ling-3.0-flash" {
			continue
		} else {
			seen[key] = true
		}
		m := newMaker(context.Background(), &s, nil)
		m.vocabulary()
		paths, err := m.b.Write(filepath.Join(t.TempDir(), "vocabulary.gguf"), 1)
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		tokens, _, err1 := f.Strings("tokenizer.ggml.tokens")
		merges, _, err2 := f.Strings("tokenizer.ggml.merges")
		types, _, err3 := f.Ints("tokenizer.ggml.token_type")
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		id := map[string]int{}
		for i, s := range tokens {
			id[s] = i
		}
		if len(id) != m.vocab || len(types) != m.vocab || len(merges) != m.merges {
			t.Errorf("%s: %d tokens, %d types, %d merges", p.Name, len(id), len(types), len(merges))
		}
		for _, x := range merges {
			a, b, ok := strings.Cut(x, " ")
			_, okA := id[a]
			_, okB := id[b]
			if _, okAB := id[a+b]; !ok || !okA || !okB || !okAB {
				t.Errorf("%s: merge %q", p.Name, x)
			}
		}
		eos, _, _ := f.Uint("tokenizer.ggml.eos_token_id")
		think, has := id["<think>"]
		if tokens[eos] != s.family.specials[s.family.eos] || types[eos] != tokenControl || has && types[think] != tokenUser || types[id["e"]] != tokenNormal {
			t.Errorf("%s: end token %q of type %d", p.Name, tokens[eos], types[eos])
		}
	}
}

func BenchmarkBlocks(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q6_K, gguf.Q8_0, gguf.F32} {
		b.Run(typ.String(), func(b *testing.B) {
			m := newMaker(context.Background(), &shape{}, nil)
			data := m.blocks("x", typ, 0.02)
			buf := make([]byte, typ.BlockBytes()*(1<<20/typ.BlockBytes()))
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if err := data(buf, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
