package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		arms, round int
		want        []int
	}{{2, 0, []int{0, 1}}, {2, 1, []int{1, 0}}, {2, 2, []int{0, 1}}, {3, 1, []int{2, 1, 0}}, {1, 1, []int{0}}} {
		if got := order(c.arms, c.round); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d arms, round %d: %v, want %v", c.arms, c.round, got, c.want)
		}
	}
}

// launcher answers from a list and takes down who ran.
type launcher struct {
	ran  []string
	rate func(a Arm, n int) (float64, error)
	stop func()
}

func (l *launcher) Launch(_ context.Context, a Arm) (Measured, error) {
	n := len(l.ran)
	l.ran = append(l.ran, a.Prefetch)
	if l.stop != nil {
		l.stop()
	}
	rate, err := l.rate(a, n)
	return Measured{DecodeRate: rate, PromptRate: 2 * rate, FirstToken: 1 / max(rate, 1), PromptTokens: 16, Budget: 8 << 30, PeakAnon: int64(n), OutputTokens: []int32{1, 2, int32(len(a.RAM))}}, err
}

func twoArms() []Arm {
	return []Arm{{Prefetch: "off", Policy: "lru", Threads: 2, RAM: "8GiB"}, {Prefetch: "on", Policy: "lru", Threads: 2, RAM: "8GiB"}}
}

// reportOf runs arms over a launcher and sums up.
func reportOf(t *testing.T, l *launcher, arms []Arm, rounds int) *Report {
	t.Helper()
	samples, err := Run(t.Context(), l, arms, rounds, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &Report{Rounds: rounds, Cold: true, Cap: CapNone, Model: Model{File: "dir/model.gguf", Architecture: "qwen35moe", Bytes: 1 << 34}, Command: "epq-uring bench <x>"}
	for i, a := range arms {
		r.Cells = append(r.Cells, NewCell(a, "epq-uring run", samples[i]))
	}
	r.Finish()
	return r
}

func TestRun(t *testing.T) {
	// off: 10, 40, 20; on is twice as fast in every round: a drift that all share is none of the arms'.
	speed := []float64{10, 20, 80, 40, 20, 40} // in the order off on on off off on
	l := &launcher{rate: func(_ Arm, n int) (float64, error) { return speed[n], nil }}
	r := reportOf(t, l, twoArms(), 3)
	if got := strings.Join(l.ran, " "); got != "off on on off off on" {
		t.Errorf("order %s", got)
	}
	off, on := r.Cells[0], r.Cells[1]
	if off.DecodeRate != 20 || on.DecodeRate != 40 || off.PromptRate != 40 || off.Spread != 1.5 || off.Runs != 3 || on.PeakAnon != 5 || on.RAMBytes != 8<<30 {
		t.Errorf("%+v\n%+v", off, on)
	}
	if off.DecodeAgainst != nil || on.DecodeAgainst == nil || on.DecodeAgainst.Noise || !near(on.DecodeAgainst.Ratio, 2) || on.Against != "prefetch off" {
		t.Errorf("%+v, against %q", on.DecodeAgainst, on.Against)
	}
	if err := errors.Join(r.SameTokens(), r.Failure()); err != nil {
		t.Error(err)
	}
	// As llama-bench has it: a row for the prompt and one for the two tokens after the first, after 16.
	if n := len(r.Llama); n != 4 {
		t.Fatalf("%d rows", n)
	}
	if p, d := r.Llama[0], r.Llama[1]; p.Prompt != 16 || p.Gen != 0 || d.Prompt != 0 || d.Gen != 2 || d.Depth != 16 || !near(d.MeanTS, 70.0/3) || d.SamplesNS[0] != 2e8 {
		t.Errorf("%+v\n%+v", p, d)
	}
}

// A child that fails is reported in its cell; the other rounds and cells stand, and pairs with it do not count.
func TestFailures(t *testing.T) {
	l := &launcher{rate: func(a Arm, n int) (float64, error) {
		if n == 2 {
			return 0, fmt.Errorf("bench: the run %w: killed", ErrFailed)
		}
		return map[string]float64{"off": 10, "on": 15}[a.Prefetch], nil
	}}
	r := reportOf(t, l, twoArms(), 3)
	on := r.Cells[1]
	if on.Runs != 2 || on.Failed != 1 || on.DecodeRate != 15 || len(on.Errors) != 1 || !near(on.DecodeAgainst.Ratio, 1.5) || on.DecodeAgainst.Noise {
		t.Errorf("%+v", on)
	}
	if err := r.Failure(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "1 of 6 runs failed: prefetch on: killed") {
		t.Error(err)
	}
	l = &launcher{rate: func(a Arm, _ int) (float64, error) {
		if a.Prefetch == "on" {
			return 0, ErrFailed
		}
		return 1, nil
	}}
	r = reportOf(t, l, twoArms(), 2)
	r.Cells[0].PeakAnon = r.Cells[0].RAMBytes + 7
	if notes := strings.Join(r.Notes(), "\n"); !strings.Contains(notes, "prefetch off: the anonymous peak is 7 bytes above") {
		t.Errorf("notes %q", notes)
	}
	for tokens, round := range map[int]bool{2: true, 5: false} {
		for i := range 20 {
			r.Cells[0].OutputTokens = append(r.Cells[0].OutputTokens[:i], int32(i%tokens))
		}
		if notes := strings.Join(r.Notes(), "\n"); strings.Contains(notes, "of 20 tokens are different") != round {
			t.Errorf("%d different tokens of 20: notes %q", tokens, notes)
		}
	}
	for _, write := range []func(io.Writer) error{r.WriteHTML, func(w io.Writer) error { return WriteText(w, r.Facts(), r.Tables(), r.Notes()) }} {
		var b bytes.Buffer
		if err := write(&b); err != nil || !strings.Contains(b.String(), "2 of 2 runs failed") {
			t.Errorf("%v: a failed cell is hidden in %s", err, b.String())
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &launcher{rate: func(Arm, int) (float64, error) { return 1, nil }}
	l.stop = func() {
		if len(l.ran) == 3 {
			cancel()
		}
	}
	samples, err := Run(ctx, l, twoArms(), 9, nil)
	if !errors.Is(err, context.Canceled) || len(samples[0])+len(samples[1]) != 2 || len(l.ran) != 3 {
		t.Errorf("%v: %v", err, samples)
	}
}

func TestSameTokens(t *testing.T) {
	arms := twoArms()
	arms[1].RAM = "min" // the launcher's third token is the length of this
	r := reportOf(t, &launcher{rate: func(Arm, int) (float64, error) { return 1, nil }}, arms, 2)
	if err := r.SameTokens(); !errors.Is(err, ErrOutput) || !strings.Contains(err.Error(), "token 2") {
		t.Error(err)
	}
}

func TestBaseline(t *testing.T) {
	cell := func(prefetch, ram, policy string) Cell {
		return Cell{Arm: Arm{Prefetch: prefetch, RAM: ram, Policy: policy, Threads: 2}}
	}
	cells := []Cell{cell("off", "4GiB", "lru"), cell("on", "4GiB", "lru"), cell("off", "4GiB", "lfu"), cell("on", "4GiB", "lfu"), cell("off", "8GiB", "lru")}
	for i, want := range map[int]int{1: 0, 2: 0, 3: 2, 4: 0} {
		if got := baseline(cells[:i], cells[i].Arm); got != want {
			t.Errorf("%s is compared with %s", cells[i].name(), cells[got].name())
		}
	}
}

// The page is well-formed, complete in itself, and escapes what it shows.
func TestPage(t *testing.T) {
	arms := append(twoArms(), Arm{Prefetch: "on", Policy: "lru", Threads: 2, RAM: "4GiB"})
	for _, list := range [][]Arm{arms, arms[:2], arms[:1]} {
		r := reportOf(t, &launcher{rate: func(a Arm, n int) (float64, error) { return float64(1 + n), nil }}, list, 2)
		if len(list) == 3 {
			r.Cells[2].RAMBytes = 4 << 30
		}
		if len(list) == 2 {
			r.Cells[1].Ahead = &Ahead{Layers: []AheadLayer{{Recall: map[string][2]float64{"1": {0.5, 0.7}}}, {}}}
		}
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(bytes.NewReader(b.Bytes()))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, b.String())
			}
		}
		s := b.String()
		// Four figures over the budget, or as bars where it is one; the time; and how well each layer was predicted.
		want := map[int][2]int{1: {5, 0}, 2: {6, 1}, 3: {5, 4 * 3}}[len(list)]
		if charts, points := strings.Count(s, "<svg"), strings.Count(s, "<circle"); charts != want[0] || points != want[1] {
			t.Errorf("%d arms: %d charts with %d points, want %v", len(list), charts, points, want)
		}
		s = strings.ReplaceAll(s, "http://www.w3.org/2000/svg", "")
		if found := regexp.MustCompile(`https?:|<script|<link|<img|src=|@import|url\(`).FindString(s); found != "" {
			t.Errorf("the page has %q", found)
		}
		if strings.Contains(s, "<x>") || !strings.Contains(s, "&lt;x&gt;") {
			t.Error("the command is not escaped")
		}
	}
}

func TestCompareReports(t *testing.T) {
	slow := reportOf(t, &launcher{rate: func(_ Arm, n int) (float64, error) { return 10 + float64(n)/100, nil }}, twoArms(), 3)
	fast := reportOf(t, &launcher{rate: func(_ Arm, n int) (float64, error) { return 15 + float64(n)/100, nil }}, twoArms()[:1], 3)
	fast.Cap = CapRlimit
	dir := t.TempDir()
	var read []*Report
	for i, r := range []*Report{slow, fast} {
		path := filepath.Join(dir, fmt.Sprint(i))
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err = ReadReport(path)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, r)
	}
	c := CompareReports(read[0], read[1])
	if len(c.Pairs) != 1 || c.Pairs[0].Decode.Noise || c.Pairs[0].Decode.Ratio < 1.45 || c.Pairs[0].Decode.Ratio > 1.55 {
		t.Errorf("%+v", c.Pairs)
	}
	if w := strings.Join(c.Warnings, "\n"); len(c.Warnings) != 2 || !strings.Contains(w, "cap: none there, rlimit here") || !strings.Contains(w, "only in the first") {
		t.Errorf("%q", w)
	}
	for _, bad := range []string{"", "[]", "{}", `{"cells":[]}`} {
		path := filepath.Join(dir, "bad")
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadReport(path); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ReadReport(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestQuote(t *testing.T) {
	if got, want := Quote([]string{"run", "--ram=8GiB", "two words", "", "it's"}), `run --ram=8GiB 'two words' '' 'it'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestMarkdown(t *testing.T) {
	var b bytes.Buffer
	if err := WriteMarkdown(&b, [][2]string{{"model", "m"}}, []Table{{Header: []string{"a", "b"}, Rows: [][]string{{"x|y", "1"}}}}, []string{"n"}); err != nil {
		t.Fatal(err)
	}
	if want := "- model: m\n\n| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n\n- n\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// A prompt has as many tokens as asked for, and is always the same.
func TestPrompt(t *testing.T) {
	f, err := gguf.Open("../cmd/epq-uring/tiny-moe.gguf")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.New(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 3, 16, 17, 18, 19, 128, 511, 2000} {
		s := Prompt(tok, n)
		if got := len(tok.Encode(s, true)); got != n || s != Prompt(tok, n) {
			t.Errorf("%d tokens, want %d: %.80s", got, n, s)
		}
	}
}
