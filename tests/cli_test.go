package tests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
)

// built is the command, built once for all tests.
var built struct {
	once sync.Once
	dir  string
	path string
	err  error
	out  []byte
}

func TestMain(m *testing.M) {
	if how := os.Getenv(takenVariable); how != "" {
		fmt.Fprintln(os.Stderr, become(how))
		os.Exit(1)
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "epq-cli-"); built.err != nil {
			return
		}
		built.path = filepath.Join(built.dir, "bin")
		built.out, built.err = exec.Command("go", "build", "-ldflags=-checklinkname=0", "-o", built.path, "../cmd/epq-uring").CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("building: %v: %s", built.err, built.out)
	}
	return built.path
}

// environment is the tests' own: no settings of the user, and one place for the demo model.
func environment(t *testing.T, more ...string) []string {
	t.Helper()
	program(t)
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "XDG_CACHE_HOME=" + built.dir}
	return append(env, more...)
}

// result is what a command said.
type result struct {
	out, err string
	code     int
}

// call is a command with its input.
type call struct {
	stdin string
	env   []string
}

func (c call) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.Command(program(t), args...)
	cmd.Env, cmd.Stdin = environment(t, c.env...), strings.NewReader(c.stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ok runs a command that must succeed and returns its stdout.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := call{}.run(t, args...)
	if r.code != 0 {
		t.Fatalf("%q: exit %d: %s", args, r.code, r.err)
	}
	return r.out
}

// object reads the one JSON object of a command.
func object(t *testing.T, args ...string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(ok(t, args...)))
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("%q: more than one object on stdout", args)
	}
	return m
}

// fields checks that an object has fields of the types of the examples.
func fields(t *testing.T, m map[string]any, want map[string]any) {
	t.Helper()
	for name, example := range want {
		switch got := m[name]; example.(type) {
		case string:
			if s, is := got.(string); !is || s == "" {
				t.Errorf("%s is %v, want a text", name, got)
			}
		case int:
			if n, is := got.(float64); !is || n < 0 || n != float64(int64(n)) {
				t.Errorf("%s is %v, want a whole number", name, got)
			}
		case float64:
			if n, is := got.(float64); !is || n < 0 {
				t.Errorf("%s is %v, want a number", name, got)
			}
		case []any:
			if _, is := got.([]any); !is {
				t.Errorf("%s is %v, want an array", name, got)
			}
		case map[string]any:
			inner, is := got.(map[string]any)
			if !is {
				t.Errorf("%s is %v, want an object", name, got)
				continue
			}
			fields(t, inner, example.(map[string]any))
		}
	}
}

// What is refused is one line on stderr that says why, and nothing on stdout.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"rnu", 2, "did you mean run?"},
		{"pull owner/repo", 2, "-m FILE"},
		{"run --tmep 0 x", 2, "did you mean --temp?"},
		{"run --temp x y", 2, `"x"`},
		{"run -n", 2, "needs an argument"},
		{"run --top-p 7 x", 2, "top_p is 7, must be between 0 and 1"},
		{"run --temp -1 x", 2, "temperature is -1"},
		{"run --ram 1X x", 2, `"1X" is not a size`},
		{"run --ram 1M x", 1, "the smallest that works is"},
		{"run -c -5 x", 2, "-c is -5"},
		{"run -ub -1 x", 2, "-ub is -1"},
		{"run -t -1 x", 2, "-t is -1"},
		{"run -ctk q4_0 x", 2, "f16, f32 and q8_0"},
		{"run --backend nosuch x", 2, "auto, ring, pread and null"},
		{"run --kernels nosuch x", 2, "scalar"},
		{"run --evict-policy nosuch x", 2, "least_stale"},
		{"run --resident nosuch x", 2, "mmap"},
		{"run -m none.gguf x", 1, "none.gguf"},
		{"run -m testdata x", 1, "testdata"},
		{"run -m ../gguf/testdata/b05_html.gguf x", 1, "web page"},
		{"run -m ../gguf/testdata/b08_heads_0.gguf x", 1, "b08_heads_0.gguf: qwen3moe.attention.head_count is 0, allowed is 1 to 4096"},
		{"plan -m ../gguf/testdata/b08_used_gt_count.gguf", 1, "expert_used_count is 5, allowed is 1 to 4"},
		{"run -m ../gguf/testdata/b14/missing-00001-of-00003.gguf x", 1, "missing-00002-of-00003.gguf"},
		{"tokenize -m ../gguf/testdata/b44_unknown.gguf --text x", 1, "future-bpe"},
		{"run -f none.txt", 1, "none.txt"},
		{"run -hf owner/repo:Q4_K_M x", 2, "-m FILE"},
		{"run --prefetch nosuch x", 2, "history, hybrid and oracle=FILE"},
		{"run --prefetch router=x x", 2, "oracle=FILE"},
		{"run --prefetch oracle x", 2, "record it with --trace FILE"},
		{"run --prefetch oracle=/nosuch/trace x", 1, "/nosuch/trace"},
		{"run --mtp 9 x", 2, "up to 4"},
		{"run --draft-ngram yes x", 2, "auto, on and off"},
		{"plan --numa nosuch", 2, "interleave, bind and off"},
		{"plan --kernel-plugin none.so", 1, "none.so"},
		{"run -p ", 2, "empty prompt"},
		{"logits", 2, "tokens"},
		{"logits --tokens ,", 2, "at least one"},
		{"logits --tokens 1,x", 2, `"x" is not a token id`},
		{"logits --tokens 1 --batch -1", 2, "--batch is -1"},
		{"logits --tokens 1 --force-routes none.json", 1, "none.json"},
		{"tokenize --ids 999999", 2, "outside the vocabulary"},
		{"inspect", 2, "one file or folder"},
		{"inspect none.gguf", 1, "none.gguf"},
		{"synth nosuch -o x.gguf", 1, "micro-qwen3moe"},
		{"synth micro-qwen3moe", 2, "output"},
		{"serve --api-key-file none.txt", 1, "none.txt"},
		{"serve --port 99999", 1, "port"},
		{"serve --temp -1 --port 0", 2, "temperature is -1"},
		{"serve --queue -1 --port 0", 2, "--queue -1"},
		{"serve --parallel 0 --port 0", 2, "--parallel is 0"},
		{"serve --max-body 0 --port 0", 2, `--max-body is "0"`},
		{"serve --max-body 4194304T --port 0", 2, `--max-body is "4194304T"`},
		{"serve --tls-cert none.pem --port 0", 1, "none.pem"},
		{"iotest --trace x.trace", 2, "--rw expert"},
		{"--nosuch", 2, "(see epq-uring --help)"},
		{"plan x.gguf", 2, "name a model with -m"},
		{"serve --port 0 x.gguf", 2, "name a model with -m"},
		{"verify x.gguf", 2, "name a model with -m"},
		{"logits --tokens 1 x.gguf", 2, "name a model with -m"},
		{"kernels x.gguf", 2, "name a model with -m"},
		{"simulate --trace x --ram 1G y", 2, `takes no argument "y"`},
		{"version x", 2, `takes no argument "x"`},
		{"run --no-chat --system x y", 2, "leave one of them out"},
		{"run -p a b", 2, "use one of them"},
		{"run -p a -f b", 2, "use one of them"},
		{"run --ram-budget-mb -1 x", 2, "--ram-budget-mb is -1"},
		{"serve --prompt-cache dir --port 0", 2, "not available"},
		{"bench --policy lru,nosuch", 2, "least_stale"},
		{"bench --ram 1X", 2, `"1X" is not a size`},
		{"bench --ram 1M,2M", 1, "the smallest that works is"},
		{"bench --threads 0", 2, "number of threads"},
		{"bench --cap nosuch", 2, "none, rlimit and cgroup"},
		{"bench --cap cgroup --ram min", 2, "needs sizes"},
		{"bench -p 0", 2, "-p is 0"},
		{"bench -p 1000000000000", 2, "-p is 1000000000000"},
		{"bench -n 0", 2, "-n is 0"},
		{"bench --repeat 0", 2, "--repeat is 0"},
		{"bench --warm --cold", 2, "exclude"},
		{"bench --prompt none.txt", 1, "none.txt"},
		{"bench --json none/none.json", 1, "none/none.json"},
		{"bench model.gguf", 2, "-m"},
		{"bench --trace x", 2, "--repeat 1"},
		{"bench compare a.json", 2, "two files"},
		{"bench compair a.json b.json", 2, "did you mean compare?"},
		{"bench compare --jsno x a.json", 2, "did you mean --json? (see epq-uring bench compare --help)"},
		{"bench compare none.json none.json", 1, "none.json"},
		{"eval --questions none.json", 1, "none.json"},
		{"eval --perplexity none.txt", 1, "none.txt"},
		{"eval --window 8", 2, "need --perplexity"},
		{"eval --perplexity cli_test.go --window 3", 2, "--window is 3"},
		{"eval --ram 1M", 1, "the smallest that works is"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := call{}.run(t, strings.Split(c.args, " ")...)
			if r.code != c.code || !strings.Contains(r.err, c.want) {
				t.Errorf("exit %d, want %d; %q, want %q", r.code, c.code, r.err, c.want)
			}
			if strings.Count(r.err, "\n") != 1 || r.out != "" {
				t.Errorf("stdout %q, stderr %q", r.out, r.err)
			}
		})
	}
}

// A file whose hyper-parameters no model can have is shown all the same.
func TestInspectOddFiles(t *testing.T) {
	files, err := filepath.Glob("../gguf/testdata/b08_*.gguf")
	if err != nil || len(files) < 9 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if m := object(t, "inspect", "--json", f); len(m["tensors"].([]any)) != 1 || len(m["metadata"].(map[string]any)) < 3 {
			t.Errorf("%s: %v", f, m)
		}
		if text := ok(t, "inspect", f); !strings.Contains(text, ".weight") {
			t.Errorf("%s: %q", f, text)
		}
	}
}

var firstLine = regexp.MustCompile(`^.*budget .* \(.*\), arena .* = \d+ of \d+ experts, policy \w+, kernels \w+, \d+ threads, I/O (ring|pread|null)(, warm start with \d+ experts)?$`)

// losses are the words that belong to the second line alone.
var losses = regexp.MustCompile(`io_uring|memlock|O_DIRECT|huge pages`)

// What `make demo` runs answers in a sentence.
func TestDemo(t *testing.T) {
	b, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, found := strings.Cut(string(b), "\ndemo: build\n\tbin/epq-uring ")
	if !found {
		t.Fatal("the Makefile has no demo")
	}
	recipe, _, _ = strings.Cut(recipe, "\n")
	cmd := exec.Command("sh", "-c", program(t)+" "+recipe)
	cmd.Env = environment(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || string(out) != "The capital of France is Paris.\n" {
		t.Errorf("%s: %v: %q", recipe, err, out)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if !firstLine.MatchString(lines[0]) {
		t.Errorf("first line %q", lines[0])
	}
	for i, l := range lines {
		if i != 1 && losses.MatchString(l) {
			t.Errorf("line %d: %q", i+1, l)
		}
	}
}

func TestRunJSON(t *testing.T) {
	m := object(t, "run", "--json", "--ram", "min", "--temp", "0", "-n", "5", "--ignore-eos", "Hello")
	fields(t, m, map[string]any{
		"text": "", "prompt_tokens": 1, "output_tokens": []any{}, "prompt_tok_s": 1.0, "decode_tok_s": 1.0, "time_to_first_token_s": 1.0,
		"hit_rate": 1.0, "hit_rate_cold": 1.0, "ssd_mib_per_token": 1.0, "evictions": 1, "budget_bytes": 1, "bound_by": "", "arena_bytes": 1,
		"arena_slots": 1, "backend": "", "kernels": "", "policy": "", "prefetch": "", "prefetch_precision": 0.0, "prefetch_recall": 0.0, "prefetch_wasted_bytes": 0, "draft_tokens": 0, "accepted_tokens": 0, "mtp": "",
		"peak_anonymous_bytes": 1, "peak_rss_bytes": 1,
		"vm_swap_bytes": 1, "time_split": map[string]any{"compute_s": 1.0, "io_wait_s": 1.0, "other_s": 1.0},
	})
	if n := len(m["output_tokens"].([]any)); n != 5 {
		t.Errorf("%d tokens, asked for 5", n)
	}
	if by := m["bound_by"].(string); !strings.Contains(by, "flag") {
		t.Errorf("bound by %q", by)
	}
	if m["evictions"].(float64) == 0 || m["ssd_mib_per_token"].(float64) == 0 {
		t.Errorf("nothing was paged: %v", m)
	}
}

// Prompts come as an argument, a flag, a file or stdin; flags beat the environment, which beats defaults.
func TestRunInputs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompt.txt")
	const question = "What is the capital of France?"
	if err := os.WriteFile(file, []byte(question), 0o644); err != nil {
		t.Fatal(err)
	}
	const want = "The capital of France is Paris.\n"
	greedy := []string{"EPQ_TEMP=0", "EPQ_RAM=min"}
	for name, c := range map[string]struct {
		call
		args []string
		want string
	}{
		"argument":     {call{"", greedy}, []string{question}, want},
		"words":        {call{"", greedy}, strings.Fields(question), want},
		"flag":         {call{"", greedy}, []string{"-p", question}, want},
		"file":         {call{"", greedy}, []string{"-f", file}, want},
		"stdin":        {call{question, greedy}, nil, want},
		"model":        {call{"", greedy}, []string{demoModel, question}, want},
		"other words":  {call{"", greedy}, []string{"-no-cnv", "--ignore-eos", "-n", "6", "The capital of France"}, " is Paris. The capital\n"},
		"environment":  {call{"", append(greedy, "LLAMA_ARG_N_PREDICT=3", "EPQ_IGNORE_EOS=off")}, []string{question}, "The capital of\n"},
		"flag beats":   {call{"", append(greedy, "EPQ_PREDICT=3")}, []string{"-n", "-1", question}, want},
		"typed beats":  {call{"", append(greedy, "EPQ_PROMPT=Hi", "EPQ_MODEL=none.gguf")}, []string{demoModel, question}, want},
		"file beats":   {call{"", append(greedy, "EPQ_PROMPT=Hi")}, []string{"-f", file}, want},
		"budget":       {call{"", append(greedy, "EPQ_RAM=1M")}, []string{"--ram-budget-mb", "400", question}, want},
		"prompt":       {call{"", append(greedy, "EPQ_PROMPT="+question, "EPQ_MTP=", "EPQ_VERIFY=")}, nil, want},
		"stop":         {call{"", greedy}, []string{"--stop", " is", question}, "The capital of France\n"},
		"nothing new":  {call{"", greedy}, []string{"--prefetch", "off", "--mtp", "auto", "--draft-ngram", "off", "--numa", "off", question}, want},
		"verbose":      {call{"", greedy}, []string{"-v", question}, want},
		"GPU's flags":  {call{"", greedy}, []string{"-ngl", "99", "-fa", "on", "-ot", "exps=CPU", "--jinja", question}, want},
		"cache types":  {call{"", greedy}, []string{"-ctk", "f32", "-ctv", "q8_0", "-ub", "16", "-b", "32", "-t", "1", "-c", "512", question}, want},
		"other device": {call{"", greedy}, []string{"--backend", "pread", "--kernels", "scalar", "--evict-policy", "lru", "--resident", "copy", question}, want},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.run(t, append([]string{"run"}, c.args...)...)
			if r.code != 0 || r.out != c.want {
				t.Errorf("exit %d, %q; stderr %s", r.code, r.out, r.err)
			}
			if first, _, _ := strings.Cut(r.err, "\n"); !firstLine.MatchString(first) {
				t.Errorf("first line %q", first)
			}
			if strings.Contains(r.err, "prompt eval rate: ") != (name == "verbose") {
				t.Errorf("stderr %q", r.err)
			}
			if strings.Contains(r.err, "ignored") != (name == "GPU's flags") {
				t.Errorf("stderr %q", r.err)
			}
		})
	}
}

// Every command that loads a model shows the common flags with their environment.
func TestHelp(t *testing.T) {
	common := []string{"--model", "-m", "--hf", "--ram", "--ram-budget-mb", "--threads", "-t", "--ctx-size", "-c", "--batch-size", "--ubatch-size",
		"--ctk", "--ctv", "--backend", "--kernels", "--kernel-plugin", "--evict-policy", "--evict-stale-tokens", "--prefetch", "--resident", "--mtp",
		"--draft-ngram", "--numa", "--trace", "--verify", "--no-warm", "--json", "-v", "EPQ_RAM", "RAM_BUDGET_MB", "LLAMA_ARG_CTX_SIZE", "SDQ_EVICT_POLICY", "SDQ_EVICT_STALE_TOKENS"}
	for _, command := range []string{"run", "serve", "logits", "tokenize", "plan", "bench", "eval"} {
		help := ok(t, command, "--help")
		for _, flag := range common {
			if flag == "--json" && command == "serve" { // it prints nothing
				continue
			}
			if !regexp.MustCompile(`[ $]` + regexp.QuoteMeta(flag) + `\b`).MatchString(help) {
				t.Errorf("%s --help does not show %s", command, flag)
			}
		}
		if other := command == "bench" || command == "eval" || command == "serve"; strings.Contains(help, "EPQ_JSON") == other { // there --json names a file
			t.Errorf("%s --help: $EPQ_JSON", command)
		}
		if strings.Contains(help, "(default: 0)") != (command == "run" || command == "serve") { // of penalties
			t.Errorf("%s --help: a default of 0 that is none", command)
		}
		if !strings.Contains(help, "epq-uring "+command+" ") {
			t.Errorf("%s --help has no example", command)
		}
	}
	if all := ok(t, "--help"); !strings.Contains(all, "inspect") || !strings.Contains(all, "synth") {
		t.Errorf("help %q", all)
	}
}

func TestTokenize(t *testing.T) {
	const text = "Grüße, 世界! 👋\n<|im_start|> 12345"
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	plain := ok(t, "tokenize", "--text", text)
	special := ok(t, "tokenize", "--special", "-f", file)
	if plain == special {
		t.Error("special tokens make no difference")
	}
	if r := (call{stdin: text}).run(t, "tokenize"); r.out != plain {
		t.Errorf("stdin gives %q, --text %q", r.out, plain)
	}
	for ids, flag := range map[string]string{plain: "--special=false", special: "--special"} {
		if got := object(t, "tokenize", flag, "--json", "--ids", strings.TrimSpace(ids)); got["text"] != text {
			t.Errorf("back: %q", got["text"])
		}
	}
	ids := object(t, "tokenize", "--json", "--text", "")["ids"]
	if s, is := ids.([]any); !is || len(s) != 0 {
		t.Errorf("no text gives %v", ids)
	}
}

// A model is made, looked at, planned for and run, whole and in shards.
func TestSynthetic(t *testing.T) {
	dir := t.TempDir()
	one := filepath.Join(dir, "one.gguf")
	m := object(t, "synth", "tiny-qwen35moe-q4k", "-o", one, "--layers", "4", "--experts", "12", "--seed", "5", "--json")
	fields(t, m, map[string]any{"files": []any{}, "bytes": 1})
	if info, err := os.Stat(one); err != nil || float64(info.Size()) != m["bytes"].(float64) {
		t.Errorf("%v bytes said, %v", m["bytes"], err)
	}
	set := filepath.Join(dir, "set")
	if err := os.Mkdir(set, 0o755); err != nil {
		t.Fatal(err)
	}
	ok(t, "synth", "tiny-qwen35moe-q4k", "-o", filepath.Join(set, "m.gguf"), "--layers", "4", "--experts", "12", "--seed", "5", "--shards", "3")

	i := object(t, "inspect", "--json", one)
	fields(t, i, map[string]any{"metadata": map[string]any{}, "tensors": []any{}, "resident_bytes": 1, "paged_bytes": 1,
		"experts": map[string]any{"layers": 1, "per_layer": 1, "used": 1, "classes": []any{}}})
	experts := i["experts"].(map[string]any)
	if experts["layers"] != 4.0 || experts["per_layer"] != 12.0 {
		t.Errorf("experts %v", experts)
	}
	fields(t, i["tensors"].([]any)[0].(map[string]any), map[string]any{"name": "", "type": "", "dims": []any{}, "offset": 1, "size": 1, "shard": 1})
	if text := ok(t, "inspect", set); !strings.Contains(text, "experts: 4 layers of 12") {
		t.Errorf("inspect: %q", text)
	}

	p := object(t, "plan", "--json", "-m", one, "--ram", "min")
	fields(t, p, map[string]any{"budget_bytes": 1, "bound_by": "", "minimum_bytes": 1, "unused_bytes": 1, "max_context": 1, "terms": []any{}, "classes": []any{}})
	sum := p["unused_bytes"].(float64)
	for _, x := range p["terms"].([]any) {
		if x := x.(map[string]any); x["counted"] == true {
			sum += x["bytes"].(float64)
		}
	}
	if sum != p["budget_bytes"] {
		t.Errorf("terms and unused are %v, the budget %v", sum, p["budget_bytes"])
	}
	say := []string{"run", "--ram", "min", "--temp", "0", "--no-chat", "-n", "8", "-p", "abc", "-m"}
	whole := ok(t, append(say, one)...)
	if whole == "" || ok(t, append(say, set)...) != whole {
		t.Error("shards answer something else")
	}
}

func TestLogits(t *testing.T) {
	c := loadGolden(t, "micro-qwen35moe")
	if r := (call{}).run(t, "logits", "-m", c.path(), "--tokens", "1,999999"); r.code != 1 || !strings.Contains(r.err, "token 999999 at position 1") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	args := []string{"logits", "-m", c.path(), "--tokens", "1,2,3,4,5", "--all", "--json"}
	m := object(t, append(args, "-o", at("own"), "--routes", at("routes"), "--batch", "2")...)
	fields(t, m, map[string]any{"rows": 1, "n_vocab": 1, "evictions": 1, "arena_slots": 1, "backend": "", "kernels": ""})
	if m["rows"] != 5.0 || m["n_vocab"] != float64(c.Vocab) {
		t.Errorf("%v", m)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var r struct{ Routes [][][]int32 }
	if err := json.Unmarshal(read("routes"), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Routes) != 4 || len(r.Routes[0]) != 5 || len(r.Routes[0][0]) != 3 {
		t.Fatalf("routes %v", r.Routes)
	}
	if n := len(read("own")); n != 4*5*c.Vocab {
		t.Fatalf("%d bytes of logits", n)
	}
	object(t, append(args, "-o", at("forced"), "--force-routes", at("routes"))...)
	if !bytes.Equal(read("own"), read("forced")) {
		t.Error("the own routes, forced, give other bits")
	}
	for i, e := range r.Routes[2][3] {
		r.Routes[2][3][i] = (e + 1) % 8
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("other"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	object(t, append(args, "-o", at("forced"), "--force-routes", at("other"), "--routes", at("still"))...)
	if bytes.Equal(read("own"), read("forced")) {
		t.Error("other routes give the same bits")
	}
	object(t, "logits", "-m", c.path(), "--tokens", "1,2,3,4,5", "--json", "-o", at("last"))
	if own := read("own"); !bytes.Equal(own[len(own)-4*c.Vocab:], read("last")) {
		t.Error("the last row alone is another one")
	}
}

// serving is a server of the demo model.
type serving struct {
	*exec.Cmd
	url    string
	stderr io.Reader // what comes after the address
}

func startServer(t *testing.T, args ...string) serving {
	t.Helper()
	cmd := exec.Command(program(t), append([]string{"serve", "--port", "0", "--ram", "min"}, args...)...)
	cmd.Env = environment(t)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	var said []byte
	address := regexp.MustCompile(`listening at (http://\S+)\n`)
	for buf := make([]byte, 4096); !address.Match(said); {
		n, err := stderr.Read(buf)
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		said = append(said, buf[:n]...)
	}
	return serving{cmd, string(address.FindSubmatch(said)[1]), stderr}
}

// leave reads stderr to its end and returns how the server ended.
func (s serving) leave(t *testing.T) error {
	t.Helper()
	if _, err := io.Copy(io.Discard, s.stderr); err != nil {
		t.Error(err)
	}
	return s.Wait()
}

func (s serving) signal(t *testing.T, what syscall.Signal) {
	t.Helper()
	if err := s.Process.Signal(what); err != nil {
		t.Fatal(err)
	}
}

// ended says which signal ended a process, 0 if it left by itself.
func ended(err error) syscall.Signal {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if w, is := exit.Sys().(syscall.WaitStatus); is && w.Signaled() {
			return w.Signal()
		}
	}
	return 0
}

// On a signal a stream finishes, whether its prompt is still read or it speaks, and the server leaves with 0; a second signal
// ends it at once.
func TestServeStops(t *testing.T) {
	long := strings.Repeat("once upon a time ", 400)
	for name, c := range map[string]struct {
		signal syscall.Signal
		body   string
		speaks bool // signalled after some of the answer, not while the prompt is read
		twice  bool
	}{
		"in an answer":      {syscall.SIGTERM, `"max_tokens":30,"prompt":"Once upon a time"`, true, false},
		"in a prompt":       {syscall.SIGTERM, `"max_tokens":3,"prompt":"` + long + `"`, false, false},
		"twice":             {syscall.SIGTERM, `"prompt":"Once upon a time"`, true, true},
		"twice in a prompt": {syscall.SIGTERM, `"prompt":"` + long + `"`, false, true},
		"SIGINT":            {syscall.SIGINT, `"max_tokens":30,"prompt":"Once upon a time"`, true, false},
		"SIGINT twice":      {syscall.SIGINT, `"prompt":"Once upon a time"`, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, "-ub", "16")
			r, err := http.Post(s.url+"/v1/completions", "application/json", strings.NewReader(`{"stream":true,"ignore_eos":true,`+c.body+`}`))
			if err != nil { // else its headers are here: it is read
				t.Fatal(err)
			}
			defer r.Body.Close()
			if r.StatusCode != 200 {
				t.Fatal(r.Status)
			}
			if c.speaks {
				if _, err := io.ReadFull(r.Body, make([]byte, 20)); err != nil {
					t.Fatal(err)
				}
			}
			s.signal(t, c.signal)
			if c.twice {
				for err == nil { // until nobody is let in any more
					var h *http.Response
					if h, err = http.Get(s.url + "/health"); err == nil {
						h.Body.Close()
					}
				}
				s.signal(t, c.signal)
			}
			text, err := io.ReadAll(r.Body)
			if whole := err == nil && strings.HasSuffix(string(text), "data: [DONE]\n\n"); whole == c.twice {
				t.Errorf("the stream ended with %v, %q", err, text[max(0, len(text)-200):])
			}
			if err := s.leave(t); c.twice && ended(err) != c.signal || !c.twice && err != nil {
				t.Errorf("the server ended with %v", err)
			}
		})
	}
}

// A run that is interrupted says so in one line, wherever it is.
func TestRunInterrupted(t *testing.T) {
	for name, prompt := range map[string]string{"in an answer": "Once upon a time", "in a prompt": strings.Repeat("once upon a time ", 400)} {
		cmd := exec.Command(program(t), "run", "--ram", "min", "-ub", "16", "--ignore-eos", "--no-chat", prompt)
		cmd.Env = environment(t)
		stdout, err1 := cmd.StdoutPipe()
		stderr, err2 := cmd.StderrPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(stderr)
		if _, err := said.ReadString('\n'); err != nil { // it is loaded
			t.Fatal(err)
		}
		if name == "in an answer" {
			if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(said)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // its exit code is looked at
		if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.HasSuffix(string(rest), "epq-uring: interrupted\n") {
			t.Errorf("%s: exit %d, %q", name, code, rest)
		}
	}
}

// serve answers while it lives and leaves with 0 on SIGTERM.
func TestServe(t *testing.T) {
	s := startServer(t, "-c", "512", "-n", "3")
	r, err := http.Get(s.url + "/health")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || r.StatusCode != 200 || !strings.Contains(string(b), `"ok"`) {
		t.Errorf("health: %d %s %v", r.StatusCode, b, err)
	}
	for more, want := range map[string]string{`"max_tokens":30`: `"The capital of France is Paris."`, `"top_k":1`: `"The capital of"`} {
		r, err = http.Post(s.url+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"temperature":0,`+more+`,"messages":[{"role":"user","content":"What is the capital of France?"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		b, err = io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v: %s", more, err, b)
		}
	}
	s.signal(t, syscall.SIGTERM)
	if err := s.leave(t); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
}

func TestVersion(t *testing.T) {
	if r := (call{env: []string{"EPQ_CTX_SIZE=many"}}).run(t, "plan"); r.code != 2 || !strings.Contains(r.err, `"EPQ_CTX_SIZE" for flag ctx-size`+"\n") {
		t.Errorf("exit %d, %q", r.code, r.err)
	}
	fields(t, object(t, "version", "--json"), map[string]any{"version": "", "go": "", "kernels": ""})
	if r := (call{env: []string{"EPQ_JSON=on"}}).run(t, "version"); !strings.HasPrefix(r.out, "{") {
		t.Errorf("$EPQ_JSON: %q", r.out)
	}
	if text := ok(t, "--version"); !strings.HasPrefix(text, "epq-uring version ") {
		t.Errorf("--version: %q", text)
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "4096": 4096, "1K": 1 << 10, "8G": 8 << 30, "8GiB": 8 << 30, "8gb": 8 << 30, "1.5M": 3 << 19, "2KiB": 2048} {
		if got, err := engine.ParseSize(s); err != nil || got != want {
			t.Errorf("%s: %d %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1", "x", "8Q", "1e30", "NaN", "G"} {
		if got, err := engine.ParseSize(s); !errors.Is(err, engine.ErrOption) {
			t.Errorf("%q: %d %v", s, got, err)
		}
	}
}
