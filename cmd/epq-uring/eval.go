package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/bench"
	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/pager"
)

// errWrong is the kind of an evaluation with wrong answers.
var errWrong = errors.New("wrong answers")

func evalCommand() *cli.Command {
	return &cli.Command{
		Name:  "eval",
		Usage: "check a model's answers to questions, or how well it predicts a text",
		Description: "epq-uring eval -m model.gguf --ram 8GiB\n" +
			"epq-uring eval -m model.gguf --ram 8GiB --questions mine.json --json answers.json\n" +
			"epq-uring eval -m model-f16.gguf --perplexity text.txt --save-logits reference.f32\n" +
			"epq-uring eval -m model-q4.gguf --perplexity text.txt --reference-logits reference.f32",
		Flags: append(modelFlagsBut("json"),
			&cli.StringFlag{Name: "questions", Usage: "`FILE` with [{\"question\",\"pattern\"}], the pattern a regular expression that a right answer matches (default: ten built in)"},
			&cli.IntFlag{Name: "predict", Aliases: []string{"n", "n-predict"}, Value: 256, Usage: "tokens an answer may have"},
			capFlag(),
			&cli.StringFlag{Name: "perplexity", Usage: "`FILE` with a text to predict instead"},
			&cli.IntFlag{Name: "window", Value: 512, Usage: "perplexity: tokens of a sequence, the second half of which is scored"},
			&cli.StringFlag{Name: "reference-logits", Usage: "perplexity: `FILE` of float32 rows, one for each token, to compare with"},
			&cli.StringFlag{Name: "save-logits", Usage: "perplexity: `FILE` for our rows, as --reference-logits reads them"},
			&cli.StringFlag{Name: "json", Usage: "the result to `FILE` (- for stdout; the table then goes to stderr)"},
		),
		Action: func(ctx context.Context, c *cli.Command) error {
			switch {
			case c.String("perplexity") == "" && (c.IsSet("reference-logits") || c.IsSet("save-logits") || c.IsSet("window")):
				return fmt.Errorf("--reference-logits, --save-logits and --window need --perplexity FILE: %w", errUsage)
			case c.String("perplexity") != "" && (c.IsSet("questions") || typed(c, "cap")):
				return fmt.Errorf("--perplexity runs in this process and asks nothing: give --questions and --cap to another call: %w", errUsage)
			case c.Int("window") < bench.MinWindow:
				return fmt.Errorf("--window is %d, at least %d tokens are needed: %w", c.Int("window"), bench.MinWindow, errUsage)
			case c.String("perplexity") != "":
				return perplexity(ctx, c)
			}
			return ask(ctx, c)
		},
	}
}

func ask(ctx context.Context, c *cli.Command) error {
	qs, err := questions(c.String("questions"))
	if err != nil {
		return err
	}
	if c.String("trace") != "" && len(qs) > 1 {
		return fmt.Errorf("--trace takes down one run, there are %d questions: %w", len(qs), errUsage)
	}
	if err := writable([]string{c.String("json")}); err != nil {
		return err
	}
	k, err := newKit(c)
	if err != nil {
		return err
	}
	threads, _ := kernels.DefaultThreads()
	arm := bench.Arm{Prefetch: c.String("prefetch"), Policy: cmp.Or(c.String("evict-policy"), pager.DefaultPolicy), Threads: cmp.Or(c.Int("threads"), threads), RAM: ramOf(c)}
	if err := k.plan(ctx, []bench.Arm{arm}); err != nil {
		return err
	}
	bytes, err := k.bytes(arm)
	if err != nil {
		return err
	}
	args := append(append(k.args, arm.Flags()...), fmt.Sprintf("--predict=%d", c.Int("predict")))
	if path := c.String("trace"); path != "" {
		args = append(args, "--trace="+path)
	}
	bar := newCountBar(c, len(qs))
	e, err := bench.Ask(ctx, &k.child, bytes, args, qs, func(done int) { bar.set(done, fmt.Sprintf("question %d", done+1)) })
	bar.done()
	if err != nil {
		return err
	}
	e.Machine = bench.ReadMachine(k.model.File)
	facts := [][2]string{{"model", k.model.File}, {"budget", arm.RAM}, {"right", fmt.Sprintf("%d of %d", e.Passed, e.Total)}}
	if err := writeResult(c, e, facts, []bench.Table{e.Table()}); err != nil {
		return err
	}
	if e.Passed < e.Total {
		return fmt.Errorf("%d of %d: %w", e.Total-e.Passed, e.Total, errWrong)
	}
	return nil
}

func questions(path string) ([]bench.Question, error) {
	if path == "" {
		return bench.Questions(nil)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--questions: %w", err)
	}
	defer f.Close()
	qs, err := bench.Questions(f)
	if err != nil {
		return nil, fmt.Errorf("--questions: %s: %w", path, err)
	}
	return qs, nil
}

// writeResult prints a table, and the whole as JSON where --json says.
func writeResult(c *cli.Command, v any, facts [][2]string, tables []bench.Table) error {
	out := c.Root().Writer
	if c.String("json") == "-" {
		out = c.Root().ErrWriter
	}
	return errors.Join(bench.WriteText(out, facts, tables, nil), writeTo(c, c.String("json"), func(w io.Writer) error { return encode(w, v) }))
}

func perplexity(ctx context.Context, c *cli.Command) (err error) {
	path := c.String("perplexity")
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--perplexity: %w", err)
	}
	o, err := options(c)
	if err != nil {
		return err
	}
	o.RequestBytes = 9*int64(len(b)) + 8<<20 // the text, a token for each byte at worst; rows and buffers of files
	window := c.Int("window")
	if !c.IsSet("ctx-size") {
		o.Context = window
	}
	e, err := open(ctx, c, o)
	if err != nil {
		return err
	}
	defer closing(e, &err)
	t := bench.Text{Tokens: e.Tokenizer().Encode(string(b), true), Window: min(window, e.Context()), First: -1}
	if bos, ok := e.Tokenizer().BOS(); ok && e.Tokenizer().AddBOS() {
		t.First = bos
		if len(t.Tokens) == 0 || t.Tokens[0] != bos {
			t.Tokens = append([]int32{bos}, t.Tokens...)
		}
	}
	if ref := c.String("reference-logits"); ref != "" {
		f, err := os.Open(ref)
		if err != nil {
			return fmt.Errorf("--reference-logits: %w", err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return fmt.Errorf("--reference-logits: %w", err)
		}
		t.Ref, t.RefLen = f, st.Size()
	}
	rows := func(ctx context.Context, tokens []int32, each func(int, []float32) error) error {
		return e.Rows(ctx, tokens, 0, each)
	}
	q, err := measured(ctx, c, rows, t)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	stats, err := e.Stats()
	if err != nil {
		return err
	}
	return reportQuality(c, q, e, stats)
}

// measured is Perplexity with our logits kept where --save-logits says.
func measured(ctx context.Context, c *cli.Command, rows bench.Rows, t bench.Text) (q bench.Quality, err error) {
	path := c.String("save-logits")
	if path == "" {
		return bench.Perplexity(ctx, rows, t)
	}
	f, err := os.Create(path)
	if err != nil {
		return q, fmt.Errorf("--save-logits: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	t.Save = w
	q, err = bench.Perplexity(ctx, rows, t)
	return q, errors.Join(err, w.Flush(), f.Close())
}

func reportQuality(c *cli.Command, q bench.Quality, e *engine.Engine, s engine.Stats) error {
	facts := [][2]string{
		{"model", e.ModelName()},
		{"tokens", fmt.Sprintf("%d, of which %d scored", q.Tokens, q.Scored)},
		{"result", fmt.Sprintf("perplexity %.4f +/- %.4f", q.Perplexity, q.Error)},
	}
	if d := q.Divergence; d != nil {
		facts = append(facts, [2]string{"reference", fmt.Sprintf("perplexity %.4f; KL divergence %.6f mean, %.4f at most; the same best token for %.2f %%",
			d.Perplexity, d.MeanKL, d.MaxKL, 100*d.SameTop)})
	}
	return writeResult(c, struct {
		bench.Quality
		PeakAnon int64 `json:"peak_anonymous_bytes"`
		Swap     int64 `json:"vm_swap_bytes"`
	}{q, s.Process.PeakAnonymous, s.Process.Swap}, facts, nil)
}
