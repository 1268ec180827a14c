package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// script is a program that stands in for ours.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func completion(t *testing.T, text string) *Completion {
	return &Completion{Child: Child{Program: script(t, text)}, Predict: 3, Prompt: "prompt.txt", Budget: func(Arm) (int64, error) { return 1 << 30, nil }}
}

func TestLaunch(t *testing.T) {
	c := completion(t, `echo "first line" >&2; echo "without io_uring: refused; do this" >&2
		echo '{"text":"x","prefetch":"router","decode_tok_s":2.5,"peak_anonymous_bytes":1099511627776,"output_tokens":[4,5]}'`)
	m, err := c.Launch(t.Context(), twoArms()[0])
	if err != nil {
		t.Fatal(err)
	}
	if m.DecodeRate != 2.5 || m.PeakAnon != 1<<40 || len(m.OutputTokens) != 2 || m.PrefetchRan != "router" || !strings.HasPrefix(m.Fallback, "without io_uring") {
		t.Errorf("%+v", m)
	}
}

// A child takes its settings from flags alone.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"EPQ_PROMPT", "LLAMA_ARG_THREADS", "SDQ_EVICT_POLICY", "RAM_BUDGET_MB"} {
		t.Setenv(name, "7")
	}
	t.Setenv("OTHER", "kept")
	c := completion(t, `printf '{"text":"%s%s%s%s%s","output_tokens":[]}' "$EPQ_PROMPT" "$LLAMA_ARG_THREADS" "$SDQ_EVICT_POLICY" "$RAM_BUDGET_MB" "$OTHER"`)
	told, err := c.tell(t.Context(), 1<<30, "run")
	if err != nil || told.Text != "kept" {
		t.Errorf("%v: %q", err, told.Text)
	}
}

// What goes wrong in a child comes back as an error with its own words.
func TestLaunchFails(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"refusal": {`echo "epq-uring: too small" >&2; exit 1`, "exit status 1: too small"},
		"crash":   {`echo "panic: boom" >&2; echo "goroutine 1" >&2; exit 2`, "panic: boom"},
		"silence": {`exit 3`, "said nothing"},
		"no JSON": {`echo hello`, "what run --json writes"},
	} {
		_, err := completion(t, c.script).Launch(t.Context(), twoArms()[0])
		if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	short := completion(t, `echo '{"output_tokens":[4,5]}'`)
	short.IgnoreEOS = true
	if _, err := short.Launch(t.Context(), twoArms()[0]); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "2 of 3 tokens") {
		t.Errorf("fewer tokens than asked for: %v", err)
	}
	c := completion(t, "")
	c.Program += ".none"
	if _, err := c.Launch(t.Context(), twoArms()[0]); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	c.Budget = func(Arm) (int64, error) { return 0, os.ErrInvalid }
	if _, err := c.Launch(t.Context(), twoArms()[0]); !errors.Is(err, os.ErrInvalid) {
		t.Error(err)
	}
}

// The context ends a child that does not end by itself.
func TestLaunchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := completion(t, `echo x >"$(dirname "$0")/started"; exec sleep 100`)
	started := filepath.Join(filepath.Dir(c.Program), "started")
	if err := unix.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = os.ReadFile(started) // waits for the child
		cancel()
	}()
	if _, err := c.Launch(ctx, twoArms()[0]); !errors.Is(err, ErrFailed) {
		t.Error(err)
	}
}

// Both caps are put on by the wrapping command, ahead of the child's own arguments.
func TestCaps(t *testing.T) {
	const echo = `printf '{"text":"'; printf '%s ' "$@"; printf '"}'`
	for limit, want := range map[Cap]string{CapNone: "run --ram", CapRlimit: "within --data 1073741824 -- run --ram", CapCgroup: "within --group /"} {
		c := completion(t, echo)
		c.Within, c.Cap = []string{"within"}, limit
		told, err := c.tell(t.Context(), 1<<30, c.args(twoArms()[0])...)
		if limit == CapCgroup && err != nil && strings.Contains(err.Error(), "no memory group") {
			continue // no rights here
		}
		if err != nil || !strings.HasPrefix(told.Text, want) {
			t.Errorf("%s: %v: %q", limit, err, told.Text)
		}
	}
}

func TestQuestions(t *testing.T) {
	qs, err := Questions(nil)
	if err != nil || len(qs) != 10 {
		t.Fatal(len(qs), err)
	}
	for _, bad := range []string{"", "{}", "[]", `[{"question":"x"}]`, `[{"question":" ","pattern":"x"}]`, `[{"question":"x","pattern":"("}]`} {
		if _, err := Questions(strings.NewReader(bad)); !errors.Is(err, ErrInput) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAsk(t *testing.T) {
	qs, err := Questions(strings.NewReader(`[{"question":"capital","pattern":"\\bParis\\b"},{"question":"sum","pattern":"42"},{"question":"fail","pattern":"Paris"}]`))
	if err != nil {
		t.Fatal(err)
	}
	c := &Child{Program: script(t, `case "$*" in *fail*) echo "epq-uring: broken" >&2; echo '{"text":"Paris"}'; exit 1;; esac
		echo '{"text":"It is Paris.","decode_tok_s":3}'`)}
	e, err := Ask(t.Context(), c, 0, nil, qs, nil)
	if err != nil || e.Passed != 1 || e.Total != 3 {
		t.Fatalf("%+v, %v", e, err)
	}
	if a := e.Answers; !a[0].OK || a[1].OK || a[2].OK || a[1].Answer != "It is Paris." || !strings.Contains(a[2].Error, "broken") || a[0].DecodeRate != 3 {
		t.Errorf("%+v", a)
	}
	rows := e.Table().Rows
	if rows[0][1] != "right" || rows[1][1] != "wrong" || rows[2][1] != "failed" {
		t.Error(rows)
	}
}
