package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Completion launches arms as raw completions of one text: `epq-uring run --no-chat --temp 0`.
type Completion struct {
	Child
	Args      []string // flags that all arms share: the model, the context, ...
	Prompt    string   // file with the text
	Predict   int      // tokens to make
	IgnoreEOS bool     // so that every arm makes all of them
	WarmPass  bool     // answer once without measuring first
	Trace     string   // file for the experts used; "": none

	// Budget is what the arm may use, in bytes, or why it cannot run.
	Budget func(a Arm) (int64, error)
}

// Launch runs one arm.
func (c *Completion) Launch(ctx context.Context, a Arm) (Measured, error) {
	bytes, err := c.Budget(a)
	if err != nil {
		return Measured{}, err
	}
	t, err := c.tell(ctx, bytes, c.args(a)...)
	if made := len(t.OutputTokens); err == nil && c.IgnoreEOS && made < c.Predict {
		err = fmt.Errorf("bench: the run %w: it made %d of %d tokens, its context is full: raise -c or lower -n", ErrFailed, made, c.Predict)
	}
	return t.Measured, err
}

func (c *Completion) args(a Arm) []string {
	args := slices.Concat([]string{"run"}, c.Args, a.Flags())
	args = append(args, "--no-warm", "--no-chat", "--temp=0", "--predict="+strconv.Itoa(c.Predict), "--file="+c.Prompt, "--json")
	if c.IgnoreEOS {
		args = append(args, "--ignore-eos")
	}
	if c.WarmPass {
		args = append(args, "--warm-pass")
	}
	if c.Trace != "" {
		args = append(args, "--trace="+c.Trace)
	}
	return args
}

// Flags are the arm as flags of every command that loads a model.
func (a Arm) Flags() []string {
	return []string{"--ram=" + a.RAM, "--threads=" + strconv.Itoa(a.Threads), "--evict-policy=" + a.Policy, "--prefetch=" + a.Prefetch}
}

// Command is what a reader may type to repeat one run of an arm by hand.
func (c *Completion) Command(a Arm) string { return Quote(append([]string{"epq-uring"}, c.args(a)...)) }

// Quote joins the words of a command line so that a shell takes them apart again.
func Quote(args []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%"
	var q []string
	for _, a := range args {
		if a == "" || strings.Trim(a, plain) != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		q = append(q, a)
	}
	return strings.Join(q, " ")
}
