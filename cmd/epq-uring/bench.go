package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/bench"
	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/tokenizer"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure settings against each other, in fresh processes and in turns",
		Description: "epq-uring bench -m model.gguf --ram 4GiB,8GiB --prefetch both -p 128 -n 48 --html bench.html\n" +
			"epq-uring bench -m model.gguf --ram 8GiB --cap cgroup --policy auto,lru --repeat 7 --json a.json\n" +
			"epq-uring bench compare a.json b.json",
		Flags: append(modelFlagsBut("ram", "threads", "evict-policy", "prefetch", "json"),
			&cli.StringFlag{Name: "prefetch", Value: "auto", Usage: "ways to read ahead with commas (`LIST`); both: off,on", Sources: env("prefetch")},
			&cli.StringFlag{Name: "ram", Value: "auto", Usage: "budgets with commas (`LIST`): sizes, auto, min", Sources: env("ram")},
			&cli.StringFlag{Name: "policy", Aliases: []string{"evict-policy"}, Value: pager.DefaultPolicy, Usage: "eviction policies with commas (`LIST`): " + strings.Join(pager.Policies(), ", "), Sources: env("evict-policy", "SDQ_EVICT_POLICY")},
			&cli.StringFlag{Name: "threads", Aliases: []string{"t"}, Usage: "compute threads with commas (`LIST`; default: the CPU quota)", Sources: env("threads", "LLAMA_ARG_THREADS")},
			&cli.IntFlag{Name: "n-prompt", Aliases: []string{"p"}, Value: 128, Usage: "tokens of prompt, of a text that is always the same"},
			&cli.StringFlag{Name: "prompt", Usage: "`FILE` with a text to use in its place"},
			&cli.IntFlag{Name: "n-gen", Aliases: []string{"n"}, Value: 48, Usage: "tokens to make"},
			&cli.IntFlag{Name: "repeat", Aliases: []string{"r"}, Value: 5, Usage: "runs of every cell"},
			&cli.BoolFlag{Name: "cold", Usage: "start from a cold page cache and an empty arena (the default)"},
			&cli.BoolFlag{Name: "warm", Usage: "count only after a first pass of the same size in the same process"},
			capFlag(),
			&cli.BoolFlag{Name: "check-output", Usage: "fail unless all runs made the same tokens"},
			&cli.BoolFlag{Name: "ignore-eos", Value: true, Usage: "never choose an end token, so that all runs make as many tokens", Sources: envSwitch("ignore-eos")},
			&cli.StringFlag{Name: "json", Usage: "all figures to `FILE` (- for stdout; the table then goes to stderr)"},
			&cli.StringFlag{Name: "markdown", Usage: "tables to `FILE`"},
			&cli.StringFlag{Name: "html", Usage: "one page with charts to `FILE`"},
		),
		Commands: []*cli.Command{compareCommand()},
		Action:   benchmark,
	}
}

// modelFlagsBut are modelFlags without some.
func modelFlagsBut(names ...string) []cli.Flag {
	return slices.DeleteFunc(modelFlags(), func(f cli.Flag) bool { return slices.Contains(names, f.Names()[0]) })
}

func capFlag() cli.Flag {
	return &cli.StringFlag{Name: "cap", Value: string(bench.CapNone), Usage: "who enforces the budget besides the plan: none, rlimit (RLIMIT_DATA), cgroup (a memory group)", Sources: env("cap")}
}

func benchmark(ctx context.Context, c *cli.Command) error {
	arms, err := arms(c)
	if err != nil {
		return err
	}
	if err := checkBench(c, len(arms)); err != nil {
		return err
	}
	k, err := newKit(c)
	if err != nil {
		return err
	}
	prompt, err := k.prompt(c)
	if err != nil {
		return err
	}
	defer prompt.remove()
	if err := k.plan(ctx, arms); err != nil {
		return err
	}
	rep, ended := k.measure(ctx, c, arms, prompt)
	if rep == nil {
		return ended
	}
	if err := writeReport(c, rep); err != nil {
		return err
	}
	if ended == nil {
		ended = rep.Failure()
	}
	if ended == nil && c.Bool("check-output") {
		ended = rep.SameTokens()
	}
	return ended
}

// checkBench refuses what cannot be measured, before anything is.
func checkBench(c *cli.Command, arms int) error {
	runs, n := c.Int("repeat"), c.Int("n-gen")
	switch {
	case runs < 1:
		return fmt.Errorf("--repeat is %d, at least 1 run is needed: %w", runs, errUsage)
	case n < 1:
		return fmt.Errorf("-n is %d, at least 1 token is needed: %w", n, errUsage)
	case c.Bool("warm") && c.Bool("cold"):
		return fmt.Errorf("--warm and --cold exclude each other: %w", errUsage)
	case c.String("trace") != "" && arms*runs > 1:
		return fmt.Errorf("--trace takes down one run: give it with one cell and --repeat 1: %w", errUsage)
	}
	return writable([]string{c.String("json"), c.String("markdown"), c.String("html")})
}

// measure runs all cells. When ctx ends, the report is of what was measured, or nil if nothing was.
func (k *kit) measure(ctx context.Context, c *cli.Command, arms []bench.Arm, prompt text) (*bench.Report, error) {
	warm, runs := c.Bool("warm"), c.Int("repeat")
	l := &bench.Completion{Child: k.child, Args: k.args, Prompt: prompt.path, Predict: c.Int("n-gen"), IgnoreEOS: c.Bool("ignore-eos"), WarmPass: warm, Trace: c.String("trace"), Budget: k.bytes}
	if warm {
		l.Files = nil
	}
	rep := &bench.Report{Version: version, Started: time.Now(), Machine: bench.ReadMachine(k.model.File), Command: bench.Quote(append([]string{"epq-uring"}, os.Args[1:]...)),
		Model: k.model, Prompt: prompt.tokens, Predict: l.Predict, Rounds: runs, Cold: !warm, Cap: k.child.Cap}
	bar := newCountBar(c, len(arms)*runs)
	samples, ended := bench.Run(ctx, l, arms, runs, func(done int, a bench.Arm) { bar.set(done, a.Prefetch+" "+a.RAM+" "+a.Policy) })
	bar.done()
	if ended != nil && !slices.ContainsFunc(samples, func(s []bench.Sample) bool { return len(s) > 0 }) {
		return nil, ended
	}
	rep.Seconds = time.Since(rep.Started).Seconds()
	for i, a := range arms {
		rep.Cells = append(rep.Cells, bench.NewCell(a, l.Command(a), samples[i]))
	}
	rep.Finish()
	return rep, ended
}

// arms are all combinations of the lists, the budget outermost, what is read ahead innermost.
func arms(c *cli.Command) ([]bench.Arm, error) {
	prefetch := c.String("prefetch")
	if prefetch == "both" {
		prefetch = "off,on"
	}
	t := c.String("threads")
	if t == "" {
		n, _ := kernels.DefaultThreads()
		t = strconv.Itoa(n)
	}
	var all []bench.Arm
	for _, ram := range list(ramOf(c)) {
		if ram != "auto" && ram != "min" {
			if _, err := engine.ParseSize(ram); err != nil {
				return nil, fmt.Errorf("--ram: %w", err)
			}
		}
		for _, threads := range list(t) {
			n, err := strconv.Atoi(threads)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("--threads: %q is not a number of threads: %w", threads, errUsage)
			}
			for _, policy := range list(c.String("policy")) {
				for _, p := range list(prefetch) {
					all = append(all, bench.Arm{Prefetch: p, Policy: policy, Threads: n, RAM: ram})
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--prefetch, --ram, --policy and --threads: none may be empty: %w", errUsage)
	}
	return all, nil
}

// list takes a list with commas apart and leaves out what is empty or was there before.
func list(s string) (words []string) {
	for _, w := range strings.Split(s, ",") {
		if w = strings.TrimSpace(w); w != "" && !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return words
}

// text is a prompt in a file.
type text struct {
	path   string
	folder string // made for it; "": none
	tokens int
}

func (t text) remove() {
	if t.folder != "" {
		_ = os.RemoveAll(t.folder) // a temporary folder that stays is no fault of the measurement
	}
}

// longestPrompt is beyond the contexts of models.
const longestPrompt = 4 << 20

// prompt is the text of --prompt, or one of -p tokens.
func (k *kit) prompt(c *cli.Command) (text, error) {
	f, err := gguf.Open(k.model.File)
	if err != nil {
		return text{}, err
	}
	t, err := tokenizer.New(f)
	if err != nil {
		return text{}, err
	}
	bos := 0
	if t.AddBOS() {
		bos = 1
	}
	if path := c.String("prompt"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return text{}, fmt.Errorf("--prompt: %w", err)
		}
		if len(b) == 0 {
			return text{}, fmt.Errorf("--prompt: %s is empty: %w", path, errUsage)
		}
		return text{path: path, tokens: bos + len(t.Encode(string(b), true))}, nil
	}
	n := c.Int("n-prompt")
	if n < 1+bos || n > longestPrompt {
		return text{}, fmt.Errorf("-p is %d, allowed are %d to %d tokens: %w", n, 1+bos, longestPrompt, errUsage)
	}
	dir, err := os.MkdirTemp("", "epq-bench-")
	if err != nil {
		return text{}, err
	}
	s := bench.Prompt(t, n)
	p := text{filepath.Join(dir, "prompt.txt"), dir, bos + len(t.Encode(s, true))}
	if err := os.WriteFile(p.path, []byte(s), 0o644); err != nil {
		p.remove()
		return text{}, err
	}
	return p, nil
}

// writable makes sure, before an hour of measuring, that the results will find their place.
func writable(paths []string) error {
	for _, p := range paths {
		if p == "" || p == "-" {
			continue
		}
		f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

func writeReport(c *cli.Command, rep *bench.Report) error {
	table := c.Root().Writer
	if c.String("json") == "-" || c.String("markdown") == "-" || c.String("html") == "-" {
		table = c.Root().ErrWriter
	}
	return errors.Join(
		bench.WriteText(table, rep.Facts(), rep.Tables(), rep.Notes()),
		writeTo(c, c.String("json"), func(w io.Writer) error { return encode(w, rep) }),
		writeTo(c, c.String("markdown"), func(w io.Writer) error { return bench.WriteMarkdown(w, rep.Facts(), rep.Tables(), rep.Notes()) }),
		writeTo(c, c.String("html"), rep.WriteHTML),
	)
}

// writeTo writes to a file, to stdout for "-", nowhere for "".
func writeTo(c *cli.Command, path string, write func(io.Writer) error) error {
	switch path {
	case "":
		return nil
	case "-":
		return write(c.Root().Writer)
	}
	return writeFile(path, write)
}

func compareCommand() *cli.Command {
	return &cli.Command{
		Name:        "compare",
		Usage:       "two files of bench --json side by side",
		ArgsUsage:   "A.json B.json",
		Description: "epq-uring bench compare before.json after.json",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "json", Usage: "the comparison to `FILE` (- for stdout)"},
			&cli.StringFlag{Name: "markdown", Usage: "the table to `FILE`"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() != 2 {
				return fmt.Errorf("bench compare needs two files of bench --json, %d given: %w", c.Args().Len(), errUsage)
			}
			a, err := bench.ReadReport(c.Args().Get(0))
			if err != nil {
				return err
			}
			b, err := bench.ReadReport(c.Args().Get(1))
			if err != nil {
				return err
			}
			cmp := bench.CompareReports(a, b)
			out := c.Root().Writer
			if c.String("json") == "-" || c.String("markdown") == "-" {
				out = c.Root().ErrWriter
			}
			tables := []bench.Table{cmp.Table()}
			return errors.Join(bench.WriteText(out, nil, tables, cmp.Warnings),
				writeTo(c, c.String("json"), func(w io.Writer) error { return encode(w, cmp) }),
				writeTo(c, c.String("markdown"), func(w io.Writer) error { return bench.WriteMarkdown(w, nil, tables, cmp.Warnings) }))
		},
	}
}
