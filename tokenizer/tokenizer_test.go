package tokenizer

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/epq-uring/epq-uring/gguf"
)

const demoModel = "../cmd/epq-uring/tiny-moe.gguf"

func demo(t testing.TB) *Tokenizer { return load(t, demoModel) }

func readJSON(t testing.TB, name string, to any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDemoPrompts(t *testing.T) {
	k := demo(t)
	for text, want := range map[string][]int32{
		"<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n": {
			2558, 296, 198, 309, 263, 259, 284, 266, 1727, 30, 2559, 198, 2558, 295, 198},
		"<|im_start|>user\n水的沸點在標準大氣壓下是多少攝氏度？<|im_end|>\n<|im_start|>assistant\n": {
			2558, 296, 198, 1466, 2397, 1335, 2105, 425, 2559, 198, 2558, 295, 198},
	} {
		if got := k.Encode(text, true); !slices.Equal(got, want) {
			t.Errorf("%q:\n got %v\nwant %v", text, got, want)
		}
		if got := k.Decode(want, true); got != text {
			t.Errorf("%v gives %q", want, got)
		}
	}
}

func TestProperties(t *testing.T) {
	k := demo(t)
	if bos, ok := k.BOS(); !ok || bos != 2557 || k.AddBOS() || k.Size() != 2560 {
		t.Errorf("BOS %d %v, added %v, %d tokens", bos, ok, k.AddBOS(), k.Size())
	}
	if got := k.EndTokens(); !slices.Equal(got, []int32{2559, 2557}) {
		t.Errorf("end tokens %v", got)
	}
	if !k.IsEnd(2557) || k.IsEnd(2558) || k.IsEnd(-1) {
		t.Error("IsEnd disagrees with EndTokens")
	}
	if text, ok := k.Text(2558); !ok || text != "<|im_start|>" {
		t.Errorf("token 2558 is %q, %v", text, ok)
	}
	for _, id := range []int32{-1, 2560, 1 << 30} {
		if text, ok := k.Text(id); ok || k.Decode([]int32{id}, true) != "" {
			t.Errorf("token %d is %q", id, text)
		}
	}
	if got := k.Control(); !slices.Equal(got, []string{"<|endoftext|>", "<|im_end|>", "<|im_start|>"}) {
		t.Errorf("control tokens %q", got)
	}
	if n := k.Bytes(); n < 20_000 || n > 2<<20 {
		t.Errorf("%d bytes held", n)
	}
}

// Case B48: the file asks for BOS.
func TestAddBOS(t *testing.T) {
	k := load(t, "testdata/b48_double_bos.gguf")
	if bos, ok := k.BOS(); !ok || bos != 265 || !k.AddBOS() {
		t.Errorf("BOS %d %v, added %v", bos, ok, k.AddBOS())
	}
}

func TestLiteral(t *testing.T) {
	k := demo(t)
	const text = "a<|im_end|>b<|im_end|>c"
	is := func(ids []int32) (n int) {
		for _, id := range ids {
			if id == 2559 {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		literal [][2]int
		want    int
	}{
		{nil, 2}, {[][2]int{{1, 11}}, 1}, {[][2]int{{12, 22}}, 1}, {[][2]int{{0, 23}}, 0}, {[][2]int{{10, 13}}, 0},
		{[][2]int{{11, 12}}, 2}, {[][2]int{{0, 1}, {5, 6}, {11, 12}}, 1}, {[][2]int{{40, 50}}, 2}, {[][2]int{{1, 1}}, 2},
	} {
		got := k.EncodeExcept(text, c.literal)
		if is(got) != c.want || k.Decode(got, true) != text {
			t.Errorf("literal %v: %d control tokens, want %d; back %q", c.literal, is(got), c.want, k.Decode(got, true))
		}
	}
	if plain := k.Encode(text, false); is(plain) != 0 || k.Decode(plain, false) != text {
		t.Errorf("plain: %v", plain)
	}
}

// Case B44: what is broken is named, by key and value.
func TestBrokenVocabulary(t *testing.T) {
	for name, c := range map[string]struct {
		kind error
		say  []string
	}{
		"unknown":   {ErrUnsupported, []string{keyPre, "future-bpe", "qwen35", "llama-bpe"}},
		"missing":   {ErrUnsupported, []string{keyPre, "qwen35"}},
		"bad_merge": {ErrVocab, []string{keyMerges, "nospace"}},
		"eos_range": {ErrVocab, []string{"eos_token_id", "9999", "268"}},
	} {
		f, err := gguf.Open("testdata/b44_" + name + ".gguf")
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(f)
		wantError(t, name, err, c.kind, c.say...)
	}
	for _, name := range []string{"known", "types_u32"} {
		k := load(t, "testdata/b44_"+name+".gguf")
		var got []string
		for _, id := range k.Encode("hello world", false) {
			s, _ := k.Text(id)
			got = append(got, s)
		}
		if !slices.Equal(got, []string{"hello", " wor", "l", "d"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func wantError(t *testing.T, name string, err, kind error, say ...string) {
	t.Helper()
	if !errors.Is(err, kind) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got %v, want %v in one line", name, err, kind)
		return
	}
	for _, s := range say {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v does not say %q", name, err, s)
		}
	}
}

// alphabet lists the characters that stand for bytes.
func alphabet() (out []string) {
	for r, b := range byteOf {
		if b != 0 {
			out = append(out, string(rune(r)))
		}
	}
	return out
}

// vocabulary builds a file with the 256 bytes, "ab", and a control token; change edits it.
func vocabulary(t testing.TB, change func(set func(key string, value any))) (*Tokenizer, error) {
	t.Helper()
	tokens, types := append(alphabet(), "ab", "<|x|>"), slices.Repeat([]int32{typeNormal}, 257)
	types = append(types, typeControl)
	values := map[string]any{
		"general.architecture": "test", keyModel: "gpt2", keyPre: "qwen2", keyTokens: tokens, keyTypes: types,
		keyMerges: []string{"a b"}, endKeys[0]: uint32(257),
	}
	change(func(key string, value any) { values[key] = value })
	b := gguf.NewBuilder()
	for key, value := range values {
		if value != nil {
			b.Set(key, value)
		}
	}
	paths, err := b.Write(filepath.Join(t.TempDir(), "v.gguf"), 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	return New(f)
}

func TestVocabularyErrors(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		kind  error
		say   []string
	}{
		{keyModel, "llama", ErrUnsupported, []string{keyModel, "llama", "gpt2"}},
		{keyModel, nil, ErrUnsupported, []string{keyModel}},
		{keyTokens, nil, ErrVocab, []string{keyTokens}},
		{keyTypes, []int32{1, 1}, ErrVocab, []string{keyTypes, "2", "258"}},
		{keyTypes, slices.Repeat([]int32{77}, 258), ErrVocab, []string{keyTypes + "[0]", "77"}},
		{keyMerges, nil, ErrVocab, []string{keyMerges}},
		{keyMerges, []string{"a b", "a "}, ErrVocab, []string{keyMerges + "[1]", `"a "`}},
		{keyMerges, []string{""}, ErrVocab, []string{keyMerges + "[0]"}},
		{keyAddBOS, true, ErrVocab, []string{keyAddBOS, keyBOS}},
		{keyBOS, uint32(258), ErrVocab, []string{keyBOS, "258"}},
	} {
		_, err := vocabulary(t, func(set func(string, any)) { set(c.key, c.value) })
		wantError(t, fmt.Sprint(c.key, "=", c.value), err, c.kind, c.say...)
	}
}

// Tags of thinking text are control tokens in some vocabularies; an answer shows them all the same.
func TestThinkingTags(t *testing.T) {
	k, err := vocabulary(t, func(set func(string, any)) {
		tokens, types := alphabet(), slices.Repeat([]int32{typeNormal}, 256)
		set(keyTokens, append(tokens, "<think>", "<|x|>"))
		set(keyTypes, append(types, typeControl, typeControl))
		set(keyMerges, []string{})
	})
	if err != nil {
		t.Fatal(err)
	}
	const text = "<think>a<|x|>"
	ids := k.Encode(text, true)
	if len(ids) != 3 || len(k.Encode(text, false)) != len(text) || len(k.Control()) != 2 {
		t.Errorf("%q is %v, and %v if taken literally; control tokens are %q", text, ids, k.Encode(text, false), k.Control())
	}
	if got := k.Decode(ids, false); got != "<think>a" || stream(k, ids) != got {
		t.Errorf("an answer shows %q, streamed %q", got, stream(k, ids))
	}
}

// special makes a vocabulary of bytes and these control tokens.
func special(t *testing.T, control ...string) *Tokenizer {
	t.Helper()
	k, err := vocabulary(t, func(set func(string, any)) {
		set(keyTokens, append(alphabet(), control...))
		set(keyTypes, append(slices.Repeat([]int32{typeNormal}, 256), slices.Repeat([]int32{typeControl}, len(control))...))
		set(keyMerges, []string{})
		set(endKeys[0], uint32(256))
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Tags of channels are text in answers, where a vocabulary has channels; the end of a message inside a turn is no end.
func TestChannelTags(t *testing.T) {
	k := special(t, "<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>")
	const text = "<|channel|>a<|constrain|>b<|message|>c"
	ids := k.Encode(text+"<|end|><|start|>", true)
	if got, want := k.Decode(ids, false), text+"<|start|>"; got != want || stream(k, ids) != want || len(k.Control()) != 7 {
		t.Errorf("an answer shows %q, control tokens are %q", got, k.Control())
	}
	if ends := k.EndTokens(); !slices.Equal(ends, []int32{256, 257}) {
		t.Errorf("end tokens %v", ends)
	}
	if got := special(t, "<|x|>", "<|start|>").Decode([]int32{257}, false); got != "" {
		t.Errorf("without channels an answer shows %q", got)
	}
}

// Where turns are tagged with roles, the next role ends an answer too.
func TestRoleTags(t *testing.T) {
	k := special(t, "<|role_end|>", "<role>", "</role>", "<|endoftext|>")
	if ends := k.EndTokens(); !slices.Equal(ends, []int32{256, 259, 257}) {
		t.Errorf("end tokens %v", ends)
	}
	if got := k.Decode(k.Encode("<role>HUMAN</role>x<|role_end|>", true), false); got != "HUMANx" {
		t.Errorf("an answer shows %q", got)
	}
	if ends := special(t, "<|x|>", "<role>").EndTokens(); !slices.Equal(ends, []int32{256}) {
		t.Errorf("without role ends %v", ends)
	}
}

// A merge may make what is no token, and another may merge that again; what stays falls apart into bytes.
func TestInnerSymbols(t *testing.T) {
	k, err := vocabulary(t, func(set func(string, any)) {
		set(keyMerges, []string{"c d", "a b", "ab cd", "é x", "x  y"})
	})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{"ab": 1, "cd": 2, "abcd": 4, "xéx": 4, "<|x|>": 1} {
		got := k.Encode(text, true)
		if len(got) != want || k.Decode(got, true) != text {
			t.Errorf("%q is %v, want %d tokens", text, got, want)
		}
	}
}

// Case B43: one kind of character, a long run of it. Twice the length takes about twice the steps.
func TestLongRuns(t *testing.T) {
	var doc struct {
		Cases []struct {
			Unit string
			N    int
		}
	}
	readJSON(t, "b43_long.json", &doc)
	k := demo(t)
	steps := func(text string) int {
		e := k.newEncoder()
		e.encode(text, [][2]int{{0, len(text)}})
		if back := k.Decode(e.ids, false); back != text {
			t.Errorf("a run of %q does not come back", text[:min(len(text), 20)])
		}
		return e.steps
	}
	for _, c := range doc.Cases {
		one, two := steps(strings.Repeat(c.Unit, c.N)), steps(strings.Repeat(c.Unit, 2*c.N))
		if two > 3*one || one > 60*c.N*len(c.Unit) {
			t.Errorf("%q x %d takes %d steps, twice the length %d", c.Unit, c.N, one, two)
		}
		for _, pre := range Known() {
			text, got := strings.Repeat(c.Unit, c.N), 0
			pretokenizers[pre].split(k.classes, text, func(p string) { got += len(p) })
			if got != len(text) {
				t.Errorf("%s: %q x %d: pieces have %d bytes", pre, c.Unit, c.N, got)
			}
		}
	}
}

func TestOneWordOfAMegabyte(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	word := make([]byte, 1<<20)
	for i := range word {
		word[i] = "etaoinshrdlu"[r.IntN(12)]
	}
	k := demo(t)
	e := k.newEncoder()
	e.encode(string(word), nil)
	if k.Decode(e.ids, false) != string(word) || e.steps > 64*len(word) {
		t.Errorf("%d steps for %d bytes", e.steps, len(word))
	}
}

// Short and long pieces are merged by different code, with the same result.
func TestShortAndLongMergeAlike(t *testing.T) {
	k := demo(t)
	r := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		var syms []int32
		for range 1 + r.IntN(shortPiece) {
			syms = append(syms, k.bytes["the apitl of nce"[r.IntN(16)]])
		}
		pairs := func(m *merger) {
			m.syms = slices.Clone(syms)
			for i := 1; i < len(syms); i++ {
				m.pairs = append(m.pairs, m.table.find(syms[i-1], syms[i]))
			}
		}
		short, long := merger{table: &k.merges}, merger{table: &k.merges}
		pairs(&short)
		pairs(&long)
		short.mergeShort()
		long.mergeLong()
		if !slices.Equal(short.syms, long.syms) {
			t.Fatalf("%v: short %v, long %v", syms, short.syms, long.syms)
		}
	}
}

// Case B45: what a stream may say after each token.
func TestDecoder(t *testing.T) {
	var doc struct {
		Cases []struct {
			Name        string
			Pieces, Out []string
			End         string
		}
	}
	readJSON(t, "b45_utf8.json", &doc)
	for _, c := range doc.Cases {
		k := &Tokenizer{}
		for _, p := range c.Pieces {
			b, err := hex.DecodeString(p)
			if err != nil {
				t.Fatal(err)
			}
			k.text = append(k.text, b...)
			k.ends = append(k.ends, uint32(len(k.text)))
		}
		k.size, k.types = len(c.Pieces), make([]uint8, len(c.Pieces))
		d := k.NewDecoder()
		for i, want := range c.Out {
			if got := d.Push(int32(i)); got != want {
				t.Errorf("%s: token %d says %q, want %q", c.Name, i, got, want)
			}
		}
		if got := d.Flush(); got != c.End {
			t.Errorf("%s: the end says %q, want %q", c.Name, got, c.End)
		}
	}
}

// Case B47: nothing is normalised.
func TestUnicodeForms(t *testing.T) {
	var doc struct{ Pairs [][2]string }
	readJSON(t, "b47_unicode.json", &doc)
	k := demo(t)
	for _, p := range doc.Pairs {
		a, b := k.Encode(p[0], true), k.Encode(p[1], true)
		if slices.Equal(a, b) || k.Decode(a, false) != p[0] || k.Decode(b, false) != p[1] {
			t.Errorf("%q is %v, %q is %v", p[0], a, p[1], b)
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	k := demo(t)
	const text = "What is the capital of France? 水的沸點 <|im_end|>"
	want := k.Encode(text, true)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if got := k.Encode(text, true); !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
	wg.Wait()
}

// The memory asked for does not grow with the number of pieces.
func TestEncodeAllocations(t *testing.T) {
	k := demo(t)
	text := strings.Repeat("the capital of France is Paris, in 1789. ", 500)
	k.Encode(text, true)
	if n := testing.AllocsPerRun(10, func() { k.Encode(text, true) }); n > 4 {
		t.Errorf("%v allocations for %d bytes", n, len(text))
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "Hello, world!", "\xff\xfe a\xc3", "  \n\n\t x'LL 12345", "水的沸點<|im_end|>🙂", "é\u0301ΩſK"} {
		f.Add(s, uint8(0))
	}
	k := demo(f)
	f.Fuzz(func(t *testing.T, s string, cut uint8) {
		for _, pre := range Known() {
			var b strings.Builder
			pretokenizers[pre].split(k.classes, s, func(p string) {
				if p == "" {
					t.Errorf("%s: empty piece", pre)
				}
				b.WriteString(p)
			})
			if b.String() != s {
				t.Errorf("%s: the pieces of %q are %q", pre, s, b.String())
			}
		}
		at := int(cut) % (len(s) + 1)
		for _, ids := range [][]int32{k.Encode(s, false), k.Encode(s, true), k.EncodeExcept(s, [][2]int{{at, len(s)}})} {
			if back := k.Decode(ids, true); back != s {
				t.Errorf("%q comes back as %q", s, back)
			}
		}
		streamed := stream(k, k.Encode(s, false))
		if !utf8.ValidString(streamed) || utf8.ValidString(s) && streamed != s {
			t.Errorf("%q is streamed as %q", s, streamed)
		}
	})
}

func stream(k *Tokenizer, ids []int32) string {
	var b strings.Builder
	d := k.NewDecoder()
	for _, id := range ids {
		b.WriteString(d.Push(id))
	}
	return b.String() + d.Flush()
}

func BenchmarkEncode(b *testing.B) {
	cases := golden(b)
	var text strings.Builder
	for _, c := range cases {
		text.WriteString(c.Text)
	}
	english := strings.Repeat("The capital of France is Paris; it has about 2.1 million inhabitants, doesn't it?\n", 2000)
	for _, pre := range Known() {
		k := load(b, filepath.Join(goldenDir, pre+".gguf"))
		for name, s := range map[string]string{"mixed": text.String(), "english": english} {
			b.Run(pre+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(s)))
				b.ReportAllocs()
				for b.Loop() {
					k.Encode(s, true)
				}
			})
		}
	}
}

func BenchmarkOneWord(b *testing.B) {
	k := demo(b)
	for _, n := range []int{1 << 18, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := strings.Repeat("thecapitalof", n/12)
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				k.Encode(s, true)
			}
		})
	}
}

// BenchmarkNew makes a tokenizer of the size of the largest target models.
func BenchmarkNew(b *testing.B) {
	path := largeVocabulary(b, 250_000)
	b.ReportAllocs()
	for b.Loop() {
		f, err := gguf.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := New(f); err != nil {
			b.Fatal(err)
		}
	}
}

// largeVocabulary writes a vocabulary in which every token beyond the bytes is made by a merge of two earlier ones.
func largeVocabulary(b testing.TB, n int) string {
	r := rand.New(rand.NewPCG(3, 3))
	tokens, merges := alphabet(), []string(nil)
	seen := map[string]bool{}
	for len(tokens) < n {
		left, right := tokens[r.IntN(len(tokens))], tokens[r.IntN(256)]
		if t := left + right; !seen[t] && len(t) < 16 {
			seen[t] = true
			tokens, merges = append(tokens, t), append(merges, left+" "+right)
		}
	}
	g := gguf.NewBuilder()
	g.Set("general.architecture", "test")
	g.Set(keyModel, "gpt2")
	g.Set(keyPre, "qwen35")
	g.Set(keyTokens, tokens)
	g.Set(keyTypes, slices.Repeat([]int32{typeNormal}, n))
	g.Set(keyMerges, merges)
	paths, err := g.Write(filepath.Join(b.TempDir(), "large.gguf"), 1)
	if err != nil {
		b.Fatal(err)
	}
	return paths[0]
}
