package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
)

// budgetVariable tells a child of TestDataLimit which budget to keep.
const budgetVariable = "EPQ_TEST_BUDGET"

// dataBytes is what RLIMIT_DATA counts of this process now.
func dataBytes(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if w := strings.Fields(line); len(w) == 3 && w[0] == "VmData:" {
			n, err := strconv.ParseInt(w[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Skip("no VmData in /proc/self/status")
	return 0
}

// A process whose RLIMIT_DATA is its budget runs, from the smallest budget up: what the plan forgets ends it.
func TestDataLimit(t *testing.T) {
	if b := os.Getenv(budgetVariable); b != "" {
		keepBudget(t, b)
		return
	}
	if dataBytes(t) > 1<<30 {
		t.Skip("this build of the test (a sanitizer's?) maps gigabytes by itself")
	}
	p, err := engine.Plan(budgetOptions("min"))
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int64{0, 1 << 20, 5<<20 + 12345} {
		for _, backend := range []string{"auto", "pread"} {
			c := exec.Command(os.Args[0], "-test.run=^TestDataLimit$", "-test.v")
			c.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%s", budgetVariable, p.Minimum+more, backend))
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "kept") {
				t.Errorf("budget %d + %d, %s: %v\n%s", p.Minimum, more, backend, err, out)
			}
		}
	}
}

func budgetOptions(ram string) engine.Options {
	return engine.Options{Model: demoModel, RAM: ram, Context: 512, UBatch: 64, Threads: 2}
}

func keepBudget(t *testing.T, variable string) {
	ram, backend, _ := strings.Cut(variable, ",")
	budget, err := strconv.ParseInt(ram, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(budget), Max: uint64(budget)}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		t.Fatal(err)
	}
	o := budgetOptions(ram)
	o.Backend = backend
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	prompt := encode(t, e, strings.Repeat("Once upon a time ", 200))[:400] // several batches of the widest kernels, and most of the cache
	r, err := e.Generate(context.Background(), engine.Request{Tokens: prompt, MaxTokens: 100, IgnoreEOS: true}, nil)
	if err != nil || len(r.Tokens) != 100 {
		t.Fatal(len(r.Tokens), err)
	}
	s, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.Process.PeakAnonymous > budget || s.Process.Swap != 0 {
		t.Errorf("%+v under a budget of %d", s.Process, budget)
	}
	if got := dataBytes(t); got > budget {
		t.Errorf("%d bytes mapped under a budget of %d", got, budget)
	}
	t.Log("kept")
}

// groupVariable tells a child of TestMemoryGroup that it is within a memory group.
const groupVariable = "EPQ_TEST_GROUP"

// In a memory group hardly larger than the smallest budget, a run that plans for the group by itself is not killed, and once
// it is warm no page comes from the disk a second time: the arena does not take what the weights beside it need.
func TestMemoryGroup(t *testing.T) {
	if os.Getenv(groupVariable) != "" {
		runInGroup(t)
		return
	}
	if dataBytes(t) > 1<<30 {
		t.Skip("this build of the test (a sanitizer's?) maps gigabytes by itself")
	}
	var minimum int64
	for _, limit := range []int64{1 << 30, 0} { // the first plans: a group has a smallest budget of its own
		if limit == 0 {
			limit = minimum + 8<<20
		}
		out := inGroup(t, limit, os.Args[0], "-test.run=^TestMemoryGroup$", "-test.v")
		_, said, _ := strings.Cut(out, "kept, the smallest budget is ")
		if _, err := fmt.Sscan(said, &minimum); err != nil {
			t.Fatalf("limit %d: %s", limit, out)
		}
	}
}

// inGroup runs a command in a memory group, or skips the test where none can be made.
func inGroup(t *testing.T, limit int64, command ...string) string {
	t.Helper()
	g, err := mem.NewGroup(fmt.Sprintf("epq-test-%d", os.Getpid()), limit)
	if errors.Is(err, mem.ErrNoGroup) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	c := exec.Command("sh", append([]string{"-c", `echo 0 >"$0" && exec "$@"`, g.Members()}, command...)...)
	c.Env = append(os.Environ(), groupVariable+"=yes")
	out, err := c.CombinedOutput()
	if err != nil || g.Kills() != 0 {
		t.Errorf("limit %d, peak %d, %d killed: %v", limit, g.Peak(), g.Kills(), err)
	}
	return string(out)
}

func runInGroup(t *testing.T) {
	e, err := engine.Open(t.Context(), budgetOptions("auto"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p := e.Plan()
	if !strings.Contains(p.BoundBy, "cgroup") {
		t.Errorf("bound by %s", p.BoundBy)
	}
	for _, x := range p.Terms {
		if x.Name == "resident weights" && (x.Bytes == 0 || !x.Counted) {
			t.Errorf("the group is charged for pages of files, the plan says %+v", x)
		}
	}
	var warm, over unix.Rusage
	for _, part := range []struct {
		tokens int
		usage  *unix.Rusage
	}{{50, &warm}, {400, &over}} {
		r, err := e.Generate(t.Context(), engine.Request{Tokens: encode(t, e, "Once upon a time"), MaxTokens: part.tokens, IgnoreEOS: true}, nil)
		if err := errors.Join(err, unix.Getrusage(unix.RUSAGE_SELF, part.usage)); err != nil || len(r.Tokens) != part.tokens {
			t.Fatal(len(r.Tokens), err)
		}
	}
	if n := over.Majflt - warm.Majflt; n != 0 && !strings.Contains(e.LostLine(), "O_DIRECT") { // else the experts' pages push others out
		t.Errorf("%d pages were read again", n)
	}
	s, err := e.Stats()
	if err != nil || s.Process.PeakAnonymous > p.Budget || s.Process.Swap != 0 {
		t.Errorf("%+v within %d, %v", s.Process, p.Budget, err)
	}
	t.Logf("kept, the smallest budget is %d", p.Minimum)
}

// However weights are held, the logits are the same; an unknown way is refused.
func TestResidentSameBits(t *testing.T) {
	tokens := []int32{1, 2, 3, 5, 8, 13, 21, 34}
	o := budgetOptions("1GiB")
	var want []float32
	for _, how := range []string{"mmap", "copy", "lock", "auto"} {
		o.Resident = how
		got := bits(t, o, tokens, 0)
		if want == nil {
			want = got
		}
		if len(got) == 0 || !equalFloats(got, want) {
			t.Errorf("--resident %s: other bits", how)
		}
	}
	o.Resident = "floppy"
	if e, err := engine.Open(context.Background(), o); !errors.Is(err, engine.ErrOption) {
		t.Error(e, err)
	}
}

func equalFloats(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// The largest context fits and the next one does not; -c 0 takes it.
func TestLargestContext(t *testing.T) {
	o := budgetOptions("min")
	o.Context = 256
	least, err := engine.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Context = 0
	small, err := engine.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	o.RAM = strconv.FormatInt((least.Minimum+small.Minimum)/2, 10)
	o.Context = -1
	p, err := engine.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	if p.MaxContext <= 0 || p.MaxContext >= small.MaxContext {
		t.Fatalf("largest context %d with less than %d tokens take", p.MaxContext, small.MaxContext)
	}
	o.Context = p.MaxContext
	if same, err := engine.Plan(o); err != nil || same.ArenaBytes != p.ArenaBytes {
		t.Errorf("-c %d: %v, another arena than with -c 0", p.MaxContext, err)
	}
	o.Context = p.MaxContext + 256
	var few *expert.TooSmall
	if q, err := engine.Plan(o); !errors.As(err, &few) && q.ArenaBytes >= p.ArenaBytes {
		t.Errorf("-c %d fits as well: %v", o.Context, err)
	}
}

// A text that cannot fit is refused before it is split: that would take fifty times its size.
func TestTextBeyondContext(t *testing.T) {
	e, err := engine.Open(t.Context(), engine.Options{Model: demoModel, RAM: "min", Context: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	enough := 64 * e.Tokenizer().Longest()
	var full *engine.ContextError
	if _, err := e.EncodeText(strings.Repeat("x", enough)); !errors.As(err, &full) || !full.AtLeast || full.PromptTokens != 64 {
		t.Errorf("error is %v", err)
	}
	if _, err := e.EncodeText(strings.Repeat("x", enough-1)); err != nil {
		t.Errorf("what might fit is refused: %v", err)
	}
	for n, fits := range map[int]bool{63: true, 64: false, 65: false} { // the answer needs room, too
		r, err := e.Generate(t.Context(), engine.Request{Tokens: make([]int32, n), MaxTokens: -1, IgnoreEOS: true}, nil)
		if fits && (err != nil || len(r.Tokens) != 1 || r.Finish != "length") || !fits && (!errors.As(err, &full) || full.PromptTokens != n || full.Context != 64) {
			t.Errorf("%d tokens: %+v, %v", n, r, err)
		}
	}
	_, _, err = e.EncodeChat(chat.Input{Messages: []chat.Message{{Role: "user", Content: strings.Repeat("x", enough)}}})
	if !errors.As(err, &full) {
		t.Errorf("a chat: error is %v", err)
	}
}
