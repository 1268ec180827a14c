package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// samplingFlags are those of commands that choose tokens.
func samplingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "predict", Aliases: []string{"n", "n-predict"}, Value: -1, Usage: "tokens to make; -1: to the end of the context", Sources: env("predict", "LLAMA_ARG_N_PREDICT")},
		&cli.FloatFlag{Name: "temp", Aliases: []string{"temperature"}, Value: 0.8, Usage: "temperature; 0: always the best token", Sources: env("temp", "LLAMA_ARG_TEMPERATURE")},
		&cli.IntFlag{Name: "top-k", Value: 40, Usage: "choose among the K best; 0: all", Sources: env("top-k", "LLAMA_ARG_TOP_K")},
		&cli.FloatFlag{Name: "top-p", Value: 0.95, Usage: "choose among the best that reach this probability together", Sources: env("top-p", "LLAMA_ARG_TOP_P")},
		&cli.FloatFlag{Name: "min-p", Value: 0.05, Usage: "leave out what has less than this share of the best one's probability", Sources: env("min-p", "LLAMA_ARG_MIN_P")},
		&cli.FloatFlag{Name: "repeat-penalty", Value: 1, Usage: "divides the logits of recent tokens; 1: off", Sources: env("repeat-penalty", "LLAMA_ARG_REPEAT_PENALTY")},
		&cli.IntFlag{Name: "repeat-last-n", Value: 64, Usage: "tokens that count as recent; -1: all", Sources: env("repeat-last-n")},
		&cli.FloatFlag{Name: "presence-penalty", Usage: "taken from the logits of recent tokens", Sources: env("presence-penalty", "LLAMA_ARG_PRESENCE_PENALTY")},
		&cli.FloatFlag{Name: "frequency-penalty", Usage: "taken from the logits of recent tokens for each time", Sources: env("frequency-penalty", "LLAMA_ARG_FREQUENCY_PENALTY")},
		&cli.IntFlag{Name: "seed", Aliases: []string{"s"}, Value: -1, Usage: "of the random choice; -1: another one each time", Sources: env("seed")},
		&cli.StringSliceFlag{Name: "stop", Usage: "end the answer before this `TEXT`; may be given several times", Sources: env("stop")},
		&cli.BoolFlag{Name: "ignore-eos", Usage: "never choose an end token", Sources: envSwitch("ignore-eos")},
	}
}

func sampling(c *cli.Command) engine.Sampling {
	return engine.Sampling{
		Temperature: float32(c.Float("temp")), TopK: c.Int("top-k"), TopP: float32(c.Float("top-p")), MinP: float32(c.Float("min-p")),
		RepeatPenalty: float32(c.Float("repeat-penalty")), RepeatLastN: c.Int("repeat-last-n"), PresencePenalty: float32(c.Float("presence-penalty")),
		FrequencyPenalty: float32(c.Float("frequency-penalty")), Seed: int64(c.Int("seed")),
	}
}

func runCommand() *cli.Command {
	return &cli.Command{
		Name:                      "run",
		Usage:                     "answer a prompt, or chat",
		ArgsUsage:                 "[MODEL.gguf] [PROMPT]",
		DisableSliceFlagSeparator: true,
		Description: "epq-uring run \"What is the capital of France?\"\n" +
			"epq-uring run -m model-00001-of-00002.gguf --ram 8GiB -p \"Tell me a story\" -n 200\n" +
			"epq-uring run -m model.gguf --no-chat --temp 0 -f text.txt --json",
		Flags: append(append(modelFlags(), samplingFlags()...),
			&cli.StringFlag{Name: "prompt", Aliases: []string{"p"}, Usage: "the prompt `TEXT`", Sources: env("prompt")},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the prompt", Sources: env("file")},
			&cli.StringFlag{Name: "system", Aliases: []string{"sys", "system-prompt"}, Usage: "system message `TEXT`", Sources: env("system")},
			&cli.BoolFlag{Name: "no-chat", Aliases: []string{"no-cnv", "no-conversation"}, Usage: "continue the text as it is, without the chat template", Sources: envSwitch("no-chat")},
			&cli.BoolFlag{Name: "warm-pass", Hidden: true, Usage: "answer once before what is counted (bench --warm)"},
		),
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) (err error) {
	args := c.Args().Slice()
	o, err := modelArgument(c, &args)
	if err != nil {
		return err
	}
	if c.Bool("no-chat") && typed(c, "system") {
		return fmt.Errorf("--no-chat continues the text as it is, without a place for --system: leave one of them out: %w", errUsage)
	}
	choice := sampling(c)
	if err := choice.Validate(math.MaxInt32); err != nil { // before a model is loaded
		return err
	}
	warmStart(c, &o)
	o.Chat = !c.Bool("no-chat")
	if !c.IsSet("prompt") && !c.IsSet("file") && len(args) == 0 && o.Chat && isTerminal(c.Root().Reader) {
		return chatLoop(ctx, c, o)
	}
	text, err := readText(c, "prompt", "file", args)
	if err != nil {
		return err
	}
	if text == "" {
		return fmt.Errorf("an empty prompt: give it with -p, -f, as an argument or on stdin: %w", errUsage)
	}
	e, err := open(ctx, c, o)
	if err != nil {
		return err
	}
	defer closing(e, &err)
	request, shown, err := requestOf(e, c, text, choice)
	if err != nil {
		return err
	}
	if c.Bool("warm-pass") {
		if err := warmPass(ctx, e, request); err != nil {
			return err
		}
	}
	return printAnswer(ctx, c, e, request, shown)
}

// requestOf is the request for the answer to a text, and what of that is shown.
func requestOf(e *engine.Engine, c *cli.Command, text string, choice engine.Sampling) (engine.Request, *visible, error) {
	r := engine.Request{MaxTokens: c.Int("predict"), Sampling: choice, Stop: c.StringSlice("stop"), IgnoreEOS: c.Bool("ignore-eos")}
	var err error
	if c.Bool("no-chat") {
		r.Tokens, err = e.EncodeText(text)
		return r, &visible{}, err
	}
	shown, err := askChat(e, c, text, &r)
	return r, shown, err
}

// printAnswer generates an answer and prints it as it comes, or at the end with all figures as JSON.
func printAnswer(ctx context.Context, c *cli.Command, e *engine.Engine, request engine.Request, shown *visible) error {
	before, err := e.Stats()
	if err != nil {
		return err
	}
	out, quiet := c.Root().Writer, c.Bool("json")
	r, err := e.Generate(ctx, request, func(ev engine.Event) error {
		text := shown.push(ev.Text)
		if quiet || text == "" {
			return nil
		}
		_, err := io.WriteString(out, text)
		return err
	})
	if err != nil {
		return err
	}
	last := shown.end()
	r.Text = shown.text
	after, err := e.Stats()
	if err != nil {
		return err
	}
	rep := newReport(e, r, before, after)
	if quiet {
		return printJSON(c, rep)
	}
	if !strings.HasSuffix(r.Text, "\n") {
		last += "\n"
	}
	fmt.Fprint(out, last)
	fmt.Fprintln(c.Root().ErrWriter, rep.line())
	if c.Bool("verbose") {
		fmt.Fprint(c.Root().ErrWriter, details(r, rep))
	}
	return nil
}

// warmPass answers the same text begun in its middle, so that no prefix of it is kept and the counted prompt is read whole.
func warmPass(ctx context.Context, e *engine.Engine, r engine.Request) error {
	half := len(r.Tokens) / 2
	r.Tokens = slices.Concat(r.Tokens[half:], r.Tokens[:half])
	_, err := e.Generate(ctx, r, nil)
	return err
}

// modelArgument is options where the first argument may name the model: a GGUF file, or a folder.
func modelArgument(c *cli.Command, args *[]string) (engine.Options, error) {
	if len(*args) > 0 && !typed(c, "model") && isModel((*args)[0]) {
		if err := c.Set("model", (*args)[0]); err != nil {
			return engine.Options{}, err
		}
		*args = (*args)[1:]
	}
	return options(c)
}

// isModel tells a model from a prompt.
func isModel(s string) bool {
	if strings.HasSuffix(s, ".gguf") {
		return true
	}
	shards, err := filepath.Glob(filepath.Join(s, "*.gguf"))
	return err == nil && len(shards) > 0 && strings.ContainsRune(s, filepath.Separator)
}

// askChat fills in a request for the answer to a chat of one message.
func askChat(e *engine.Engine, c *cli.Command, text string, r *engine.Request) (*visible, error) {
	var ms []chat.Message
	if s := c.String("system"); s != "" {
		ms = append(ms, chat.Message{Role: "system", Content: s})
	}
	ids, prompt, err := e.EncodeChat(chat.Input{Messages: append(ms, chat.Message{Role: "user", Content: text})})
	if err != nil {
		return nil, err
	}
	r.Tokens, r.Stop = ids, slices.Concat(r.Stop, e.Chat().Stops())
	return newVisible(e, prompt), nil
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
