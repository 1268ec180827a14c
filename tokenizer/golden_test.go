package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

const goldenDir = "../../shared/golden/tokenizer"

// wantIDs is a list of ids, or one for each way of taking special tokens.
type wantIDs struct{ Plain, Special []int32 }

func (w *wantIDs) UnmarshalJSON(b []byte) error {
	if b[0] == '{' {
		type object wantIDs
		return json.Unmarshal(b, (*object)(w))
	}
	err := json.Unmarshal(b, &w.Plain)
	w.Special = w.Plain
	return err
}

type goldenCase struct {
	Text string
	IDs  map[string]wantIDs
}

// golden reads the golden texts, or skips where they are not.
func golden(t testing.TB) []goldenCase {
	f, err := os.Open(filepath.Join(goldenDir, "cases.jsonl"))
	if err != nil {
		t.Skipf("no golden texts: %v", err)
	}
	defer f.Close()
	var out []goldenCase
	for s := bufio.NewScanner(f); s.Scan(); {
		var c goldenCase
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	if len(out) < 400 {
		t.Fatalf("only %d golden texts", len(out))
	}
	return out
}

func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := New(f)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestGolden(t *testing.T) {
	cases := golden(t)
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.gguf"))
	if err != nil || len(files) < 7 {
		t.Fatalf("vocabularies %q, %v", files, err)
	}
	for _, file := range files {
		pre := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(pre, func(t *testing.T) {
			k := load(t, file)
			for _, c := range cases {
				want := c.IDs[pre]
				if got := k.Encode(c.Text, false); !slices.Equal(got, want.Plain) {
					t.Errorf("plain %q:\n got %v\nwant %v", c.Text, got, want.Plain)
				}
				got := k.Encode(c.Text, true)
				if !slices.Equal(got, want.Special) {
					t.Errorf("special %q:\n got %v\nwant %v", c.Text, got, want.Special)
				}
				if back := k.Decode(got, true); back != c.Text {
					t.Errorf("%q comes back as %q", c.Text, back)
				}
			}
		})
	}
}
