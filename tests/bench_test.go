package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/bench"
)

// benchReport runs bench with its report in a file and reads it.
func benchReport(t *testing.T, code int, args ...string) (*bench.Report, result) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bench.json")
	r := call{}.run(t, append(append([]string{"bench"}, args...), "--json", path)...)
	if r.code != code {
		t.Fatalf("%q: exit %d, want %d: %s%s", args, r.code, code, r.out, r.err)
	}
	rep, err := bench.ReadReport(path)
	if err != nil {
		t.Fatal(err)
	}
	return rep, r
}

// Every cell of a matrix says what the contract names, in fresh processes from a cold page cache.
func TestBench(t *testing.T) {
	page := filepath.Join(t.TempDir(), "bench.html")
	rep, r := benchReport(t, 0, "--ram", "min,120MiB", "--policy", "lru,lfu", "--prefetch", "on", "-p", "16", "-n", "12", "--repeat", "2", "--check-output", "--html", page)
	if len(rep.Cells) != 4 || !strings.Contains(r.out, "decode tok/s") {
		t.Fatalf("%d cells; %s", len(rep.Cells), r.out)
	}
	for _, c := range rep.Cells {
		if c.Runs != 2 || c.Failed != 0 || len(c.Samples) != 2 || c.PromptTokens != 16 || len(c.OutputTokens) != 12 {
			t.Errorf("%+v", c)
		}
		if c.DecodeRate <= 0 || c.PromptRate <= 0 || c.FirstToken <= 0 || c.MiBPerToken <= 0 || c.PeakAnon < 1<<20 || c.PeakRSS < c.PeakAnon || c.Swap != 0 || c.Slots < 4 || c.Threads < 1 || c.DeviceRead < 0 {
			t.Errorf("%+v", c)
		}
		if c.RAM == "min" && (c.Evictions == 0 || c.Arena != 512<<10) || c.RAM == "120MiB" && (c.HitRate == 0 || c.RAMBytes != 120<<20) {
			t.Errorf("%+v", c)
		}
		if !strings.Contains(c.Command, "epq-uring run ") || !strings.Contains(c.Command, "--no-warm") {
			t.Errorf("command %q", c.Command)
		}
	}
	if rep.Cells[0].Policy != "lru" || rep.Cells[1].Policy != "lfu" || rep.Cells[1].DecodeAgainst == nil || len(rep.Llama) != 8 {
		t.Errorf("%+v", rep.Cells[1])
	}
	if b, err := os.ReadFile(page); err != nil || strings.Count(string(b), "<svg") != 6 {
		t.Error(err, len(b))
	}
}

// A warm cell counts a second pass in the same process: nothing of its prompt is kept, but the experts are.
func TestBenchWarm(t *testing.T) {
	rep, _ := benchReport(t, 0, "--ram", "200MiB", "-p", "24", "-n", "8", "--repeat", "1", "--warm")
	if c := rep.Cells[0]; c.HitRate < 0.8 || c.PromptTokens != 24 || c.PromptRate <= 0 || rep.Cold {
		t.Errorf("%+v", c)
	}
}

// Under RLIMIT_DATA of the smallest budget a child runs; a budget below it is reported in its cell, and by the exit code.
func TestBenchCap(t *testing.T) {
	rep, r := benchReport(t, 1, "--ram", "20MiB,min", "--cap", "rlimit", "-p", "8", "-n", "4", "--repeat", "1")
	low, least := rep.Cells[0], rep.Cells[1]
	if low.Runs != 0 || low.Failed != 1 || len(low.Errors) != 1 || !strings.Contains(low.Errors[0], "the smallest that works") {
		t.Errorf("%+v", low)
	}
	if least.Runs != 1 || least.PeakAnon > least.RAMBytes {
		t.Errorf("%+v", least)
	}
	if !strings.Contains(r.err, "1 of 2 runs failed: 20MiB") || !strings.Contains(r.out, "1 of 1 runs failed") {
		t.Errorf("%s%s", r.out, r.err)
	}
}

func TestBenchCompare(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, path := range []string{a, b} {
		ok(t, "bench", "--ram", "200MiB", "-p", "8", "-n", "4", "--repeat", "2", "--json", path)
	}
	var c bench.Comparison
	if err := json.Unmarshal([]byte(ok(t, "bench", "compare", a, b, "--json", "-")), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Pairs) != 1 || c.Pairs[0].Decode.Ratio <= 0 || c.Pairs[0].Decode.Interval == nil || len(c.Warnings) != 0 {
		t.Errorf("%+v", c)
	}
}

// The demo model knows the ten questions, each from a cold start in the smallest arena; a wrong answer is called wrong.
func TestEval(t *testing.T) {
	var e bench.Evaluation
	if err := json.Unmarshal([]byte(ok(t, "eval", "--ram", "min", "--json", "-")), &e); err != nil {
		t.Fatal(err)
	}
	if e.Passed != 10 || e.Total != 10 || len(e.Answers) != 10 {
		t.Errorf("%+v", e)
	}
	mine := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(mine, []byte(`[{"question":"What is the capital of France?","pattern":"Rome"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := call{}.run(t, "eval", "--questions", mine)
	if r.code != 1 || !strings.Contains(r.err, "1 of 1: wrong answers") || !strings.Contains(r.out, "wrong") || !strings.Contains(r.out, "Paris") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}

// A text is predicted the same in the smallest arena, and logits kept by one run are the reference of another.
func TestPerplexity(t *testing.T) {
	dir := t.TempDir()
	text, ref := filepath.Join(dir, "text.txt"), filepath.Join(dir, "ref.f32")
	if err := os.WriteFile(text, []byte("The capital of France is Paris. The square root of 144 is 12. The chemical symbol for gold is Au."), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) (q bench.Quality) {
		t.Helper()
		if err := json.Unmarshal([]byte(ok(t, append([]string{"eval", "--perplexity", text, "--window", "8", "--json", "-"}, args...)...)), &q); err != nil {
			t.Fatal(err)
		}
		return q
	}
	plenty := read("--save-logits", ref)
	least := read("--reference-logits", ref, "--ram", "min")
	if plenty.Perplexity != least.Perplexity || plenty.Scored < 6 || plenty.Perplexity < 1 || plenty.Perplexity > 1000 {
		t.Errorf("%+v, with the smallest arena %+v", plenty, least)
	}
	if d := least.Divergence; d == nil || d.MeanKL > 1e-12 || d.SameTop != 1 || d.Perplexity != plenty.Perplexity {
		t.Errorf("%+v", d)
	}
	if d := read("--reference-logits", ref, "-ctk", "q8_0", "-ctv", "q8_0").Divergence; d == nil || d.MeanKL <= 0 || d.MaxKL > 1 {
		t.Errorf("another KV type: %+v", d)
	}
	if r := (call{}).run(t, "eval", "--perplexity", text, "--window", "16", "--reference-logits", ref); r.code != 1 || !strings.Contains(r.err, "bad reference") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
}
