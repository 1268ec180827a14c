package tests

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/engine"
)

// copyDemo makes a copy of the demo model that a test may spoil.
func copyDemo(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(demoModel)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "demo.gguf")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

var someTokens = []int32{5, 17, 200, 31, 44, 9, 123, 77, 8, 300, 21, 64}

// visit computes some logits and returns them with the first line and the counters.
func visit(t *testing.T, o engine.Options) (logits []float32, line string, s engine.Stats) {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	err = e.Rows(context.Background(), someTokens, 4, func(_ int, row []float32) error {
		logits = append(logits, row...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = e.Stats(); err != nil {
		t.Fatal(err)
	}
	return logits, e.FirstLine(), s
}

// The second start reads what the first used, says so, and computes the same bits; a list that is damaged or of another
// file is left alone, named, and made anew.
func TestWarmStart(t *testing.T) {
	o := engine.Options{Model: copyDemo(t), RAM: "1GiB", Context: 64, UBatch: 16, NoTokenizer: true}
	want, line, cold := visit(t, o)
	if cold.Pager.Warmed != 0 || strings.Contains(line, "warm") {
		t.Errorf("without a folder: %q, %+v", line, cold.Pager)
	}
	o.WarmDir = t.TempDir()
	kept := func() string {
		files, _ := filepath.Glob(filepath.Join(o.WarmDir, "warm-*"))
		if len(files) != 1 {
			t.Fatalf("kept: %v", files)
		}
		return files[0]
	}
	check := func(what string, warm bool, says string) {
		t.Helper()
		got, line, s := visit(t, o)
		if !slices.Equal(got, want) {
			t.Errorf("%s: other bits", what)
		}
		if s.Pager.Warmed > 0 != warm || !strings.Contains(line, says) || strings.Contains(line, "\n") {
			t.Errorf("%s: %q, %+v", what, line, s.Pager)
		}
		if all := s.Pager.Hits + s.Pager.Joined + s.Pager.Misses; all != cold.Pager.Misses+cold.Pager.Joined+cold.Pager.Hits {
			t.Errorf("%s: %d experts named, cold %+v", what, all, cold.Pager)
		}
	}
	check("first", false, "I/O")
	check("second", true, "warm start with ")
	o.RAM = "min"
	check("smallest arena", true, "warm start with ")
	o.RAM = "1GiB"
	spoil := func(change func(b []byte) []byte) {
		b, err := os.ReadFile(kept())
		if err == nil {
			err = os.WriteFile(kept(), change(b), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	spoil(func(b []byte) []byte { b[100] ^= 1; return b })
	check("flipped", false, "no warm start: ")
	check("after flipped", true, "warm start with ")
	spoil(func(b []byte) []byte { return b[:50] })
	check("cut", false, "no warm start: ")
	spoil(func(b []byte) []byte { return append([]byte("epqwarm9"), b[8:]...) })
	check("version", false, "another model or version")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(o.Model, later, later); err != nil {
		t.Fatal(err)
	}
	check("file replaced", false, "another model or version")
	check("and again", true, "warm start with ")
}

// What followed what is kept too: the second run names experts from its first layer on. A damaged history is named and
// begun anew, and the list of hot experts serves all the same.
func TestHistoryIsKept(t *testing.T) {
	o := engine.Options{Model: copyDemo(t), RAM: "1GiB", Context: 64, UBatch: 16, NoTokenizer: true, WarmDir: t.TempDir(), Prefetch: "history"}
	named := func() (routed int64, line string) {
		e, err := engine.Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if err := e.Rows(context.Background(), someTokens[:2], 1, func(int, []float32) error { return nil }); err != nil {
			t.Fatal(err)
		}
		s, err := e.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.Prefetch.Layers {
			routed += l.Routed
		}
		return routed, e.FirstLine()
	}
	first, _ := named()
	second, line := named()
	if second <= first || strings.Contains(line, "no history") {
		t.Errorf("the first run named something for uses of %d experts, the second for %d; %q", first, second, line)
	}
	files, _ := filepath.Glob(filepath.Join(o.WarmDir, "routes-*"))
	if len(files) != 1 {
		t.Fatalf("kept: %v", files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(files[0], b, 0o644); err != nil {
		t.Fatal(err)
	}
	third, line := named()
	if third != first || !strings.Contains(line, "no history of routes: routes-") || !strings.Contains(line, "warm start with") {
		t.Errorf("after a flipped bit for %d, the first run for %d; %q", third, first, line)
	}
	if again, _ := named(); again != second {
		t.Errorf("begun anew: %d, want %d", again, second)
	}
}
