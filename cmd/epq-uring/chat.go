package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// conversation is a chat at the terminal.
type conversation struct {
	c        *cli.Command
	e        *engine.Engine
	system   string
	sampling engine.Sampling
	predict  int // tokens of an answer at most; -1: to the end of the context
	messages []chat.Message
	last     string // report of the last answer
}

const chatHelp = `/set system TEXT           set the system message
/set parameter NAME VALUE  temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty,
                           frequency_penalty, seed, num_predict
/show                      how the model was loaded, and the last answer's statistics
/clear                     forget the conversation
/bye                       leave (also /exit, Ctrl-D); Ctrl-C stops an answer
`

// chatLoop reads questions from the terminal until /bye or SIGTERM.
func chatLoop(ctx context.Context, c *cli.Command, o engine.Options) (err error) {
	e, err := open(ctx, c, o)
	if err != nil {
		return err
	}
	defer closing(e, &err)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	defer signal.Stop(interrupted)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	defer signal.Stop(ended) // a second one, while the engine closes, ends at once
	v := &conversation{c: c, e: e, system: c.String("system"), sampling: sampling(c), predict: c.Int("predict")}
	out := c.Root().Writer
	lines, failed := typedLines(c.Root().Reader)
	for {
		select {
		case <-interrupted: // it ended the answer
		default:
		}
		fmt.Fprint(out, ">>> ")
		var line string
		var more bool
		select {
		case <-interrupted: // between answers it ends nothing, however often
			fmt.Fprintln(out, "\n/bye or Ctrl-D leaves")
			continue
		case <-ended:
			fmt.Fprintln(out)
			return context.Canceled
		case line, more = <-lines:
		}
		if !more {
			fmt.Fprintln(out)
			return *failed
		}
		switch line = strings.TrimSpace(line); {
		case line == "":
		case line == "/bye", line == "/exit":
			return nil
		case strings.HasPrefix(line, "/"):
			fmt.Fprint(out, v.command(line))
		default:
			if err := v.answer(ctx, line); err != nil {
				return err
			}
		}
	}
}

// typedLines reads lines as they come, beside whoever waits for a signal too; failed says why they ended, once they did. The
// reading itself cannot be stopped: it ends with the process.
func typedLines(r io.Reader) (lines <-chan string, failed *error) {
	in, to, err := bufio.NewScanner(r), make(chan string), new(error)
	in.Buffer(nil, 1<<20)
	go func() {
		defer close(to)
		for in.Scan() {
			to <- in.Text()
		}
		*err = in.Err()
	}()
	return to, err
}

// command carries out a line that begins with a slash and returns what to print.
func (v *conversation) command(line string) string {
	f := strings.Fields(line)
	switch {
	case f[0] == "/clear":
		v.messages = nil
		return "conversation cleared\n"
	case f[0] == "/show":
		return v.e.FirstLine() + "\n" + v.last
	case f[0] == "/set" && len(f) >= 3 && f[1] == "system":
		v.system, v.messages = strings.TrimSpace(line[strings.Index(line, "system")+6:]), nil
		return "system message set, conversation cleared\n"
	case f[0] == "/set" && len(f) == 4 && f[1] == "parameter":
		return v.set(f[2], f[3])
	}
	return chatHelp
}

func (v *conversation) set(name, value string) string {
	s, predict := v.sampling, v.predict
	to := map[string]any{
		"temperature": &s.Temperature, "temp": &s.Temperature, "top_k": &s.TopK, "top_p": &s.TopP, "min_p": &s.MinP, "seed": &s.Seed,
		"repeat_penalty": &s.RepeatPenalty, "repeat_last_n": &s.RepeatLastN, "presence_penalty": &s.PresencePenalty,
		"frequency_penalty": &s.FrequencyPenalty, "num_predict": &predict,
	}[strings.ReplaceAll(name, "-", "_")]
	if to == nil {
		return "no parameter " + name + "; /help names those there are\n"
	}
	in := strings.NewReader(value)
	if _, err := fmt.Fscan(in, to); err != nil || in.Len() > 0 {
		return fmt.Sprintf("%s cannot be %q\n", name, value)
	}
	if err := s.Validate(v.e.Vocab()); err != nil {
		return err.Error() + "\n"
	}
	v.sampling, v.predict = s, predict
	return name + " = " + value + "\n"
}

// answer generates one answer; Ctrl-C ends it, not the chat, and SIGTERM both.
func (v *conversation) answer(ctx context.Context, question string) error {
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ms := append(v.messages, chat.Message{Role: "user", Content: question})
	all := ms
	if v.system != "" {
		all = append([]chat.Message{{Role: "system", Content: v.system}}, ms...)
	}
	out := v.c.Root().Writer
	tokens, prompt, err := v.e.EncodeChat(chat.Input{Messages: all})
	if tooLong(out, err) {
		return nil
	}
	if err != nil {
		return err
	}
	before, err := v.e.Stats()
	if err != nil {
		return err
	}
	shown := newVisible(v.e, prompt)
	r, err := v.e.Generate(ctx, engine.Request{
		Tokens: tokens, MaxTokens: v.predict, Sampling: v.sampling,
		Stop: slices.Concat(v.c.StringSlice("stop"), v.e.Chat().Stops()), IgnoreEOS: v.c.Bool("ignore-eos"),
	}, func(ev engine.Event) error {
		_, err := io.WriteString(out, shown.push(ev.Text))
		return err
	})
	fmt.Fprintln(out, shown.end())
	switch {
	case tooLong(out, err):
		return nil
	case errors.Is(err, context.Canceled): // what was said so far stays
	case err != nil:
		return err
	default:
		after, err := v.e.Stats()
		if err != nil {
			return err
		}
		v.last = newReport(v.e, r, before, after).line() + "\n"
		if v.c.Bool("verbose") {
			fmt.Fprint(v.c.Root().ErrWriter, v.last)
		}
	}
	v.messages = append(ms, chat.Message{Role: "assistant", Content: shown.text})
	return nil
}

// tooLong says what to do about a conversation that no longer fits the context, and whether that is what err means.
func tooLong(out io.Writer, err error) bool {
	var full *engine.ContextError
	if !errors.As(err, &full) {
		return false
	}
	fmt.Fprintln(out, full.Error()+", or /clear")
	return true
}
