// Command epq-uring runs Mixture-of-Experts models larger than memory: the experts stay in the GGUF file on the SSD and
// are read, when the router picks them, straight into a bounded arena.
package main

import (
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

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/iotest"
	"github.com/epq-uring/epq-uring/kernels"
)

// version is set by the linker.
var version = "dev"

// errUsage is the kind of an error in the command line: exit 2.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the first signal asks to end, a second one ends the program at once
	os.Exit(Main(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// Main runs one command and returns its exit code: 0 fine, 1 failed, 2 bad usage. A failure is one line on stderr.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	args, ignored := dropForeign(args)
	app := &cli.Command{
		Name:  "epq-uring",
		Usage: "run Mixture-of-Experts models larger than memory",
		Description: "Routed experts stay in the GGUF file and are read through io_uring into an arena that fits the memory you allow.\n" +
			"Without -m the embedded demo model answers:  epq-uring run \"What is the capital of France?\"",
		Suggest: true,
		Reader:  stdin, Writer: stdout, ErrWriter: stderr,
		Version:  version,
		Metadata: map[string]any{metaIgnored: ignored},
		Commands: []*cli.Command{
			runCommand(), serveCommand(), logitsCommand(), tokenizeCommand(), inspectCommand(), planCommand(), kernelsCommand(), simulateCommand(),
			verifyCommand(), iotestCommand(), doctorCommand(), synthCommand(), benchCommand(), evalCommand(), versionCommand(),
			withinCommand(),
		},
		OnUsageError:   usageError,
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Action: func(_ context.Context, c *cli.Command) error {
			if name := c.Args().First(); name != "" {
				return unknownCommand(c, name)
			}
			return cli.ShowRootCommandHelp(c)
		},
	}
	for _, c := range app.Commands {
		complete(c)
	}
	err := app.Run(ctx, args)
	sayIgnored(app)
	return exitCode(err, stderr)
}

// complete gives a command, and those below it, what all have in common.
func complete(c *cli.Command) {
	c.OnUsageError = usageError
	c.Suggest = true
	c.HideHelpCommand = true
	if c.ArgsUsage == "" {
		c.Action = withoutArguments(c.Action)
	}
	for _, sub := range c.Commands {
		complete(sub)
	}
}

// withoutArguments refuses what a command would not look at: most often a model, in whose place the demo would be used.
func withoutArguments(action cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, c *cli.Command) error {
		if !c.Args().Present() {
			return action(ctx, c)
		}
		hint, first := "", c.Args().First()
		for _, sub := range c.Commands {
			if typos(first, sub.Name) <= 2 {
				return fmt.Errorf("%s has no command %q, did you mean %s?: %w", c.Name, first, sub.Name, errUsage)
			}
		}
		if slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == "model" }) {
			hint = ": name a model with -m"
		}
		return fmt.Errorf("%s takes no argument %q%s: %w", c.Name, first, hint, errUsage)
	}
}

// metaIgnored is where the flags that were dropped wait to be named.
const metaIgnored = "ignored flags"

// sayIgnored names the flags that were dropped, once: after the first lines of a loaded model, or at the end.
func sayIgnored(c *cli.Command) {
	m := c.Root().Metadata
	if s, _ := m[metaIgnored].(string); s != "" {
		fmt.Fprintf(c.Root().ErrWriter, "ignored: %s (no meaning on a CPU that pages experts)\n", s)
	}
	delete(m, metaIgnored)
}

// goWords begin what Go says of a value that is no number.
const goWords = ": strconv."

func usageError(_ context.Context, c *cli.Command, err error, _ bool) error {
	s, _, _ := strings.Cut(strings.ReplaceAll(err.Error(), "\n", " "), goWords)
	if name, ok := strings.CutPrefix(s, "flag provided but not defined: -"); ok {
		if near := nearestFlag(c, strings.TrimLeft(name, "-")); near != "" {
			s += ", did you mean " + near + "?"
		}
	}
	return fmt.Errorf("%s (see %s --help): %w", s, c.FullName(), errUsage)
}

func unknownCommand(c *cli.Command, name string) error {
	if err := absentCommand(name); err != nil {
		return err
	}
	near := c.Commands[0].Name
	for _, k := range c.Commands {
		if typos(name, k.Name) < typos(name, near) {
			near = k.Name
		}
	}
	return fmt.Errorf("no command %q, did you mean %s? (see epq-uring --help): %w", name, near, errUsage)
}

// typos counts the letters to insert, drop or change between two words. (The library's own measure prefers words that
// share letters anywhere: it takes "rnu" for "kernels".)
func typos(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// nearestFlag finds the flag a typo was meant to be.
func nearestFlag(c *cli.Command, name string) string {
	if c.Suggest {
		return cli.SuggestFlag(c.Flags, name, true)
	}
	return ""
}

func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "epq-uring: interrupted")
		return 130
	}
	code, text := 1, err.Error()
	for _, usage := range []error{errUsage, engine.ErrOption, engine.ErrSampling, kernels.ErrUnknownSet, iotest.ErrOption} {
		if errors.Is(err, usage) {
			code, text = 2, strings.TrimSuffix(text, ": "+usage.Error())
		}
	}
	if cut, _, found := strings.Cut(text, goWords); found && strings.Contains(cut, " from environment variable ") { // the library's word
		code, text = 2, cut
	}
	fmt.Fprintln(stderr, "epq-uring: "+oneLine(text))
	return code
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "\n", "; ")), " ")
}

// foreign are flags of engines with GPUs that people paste; the number says how many values follow, -1: perhaps one.
var foreign = map[string]int{
	"ngl": 1, "n-gpu-layers": 1, "gpu-layers": 1, "fa": -1, "flash-attn": -1, "ot": 1, "override-tensor": 1, "cmoe": 0, "cpu-moe": 0,
	"ncmoe": 1, "n-cpu-moe": 1, "sm": 1, "split-mode": 1, "ts": 1, "tensor-split": 1, "mg": 1, "main-gpu": 1, "no-mmap": 0, "mlock": 0,
	"rtr": -1, "run-time-repack": -1, "fmoe": -1, "fused-moe": -1, "mla": 1, "amb": 1, "nkvo": 0, "no-kv-offload": 0, "dev": 1, "device": 1,
	"jinja": 0, "tb": 1, "threads-batch": 1, "kvo": 0, "kv-offload": 0, "op-offload": 0, "no-op-offload": 0, "no-host": 0, "repack": 0, "nr": 0,
	"no-repack": 0, "fit": -1, "fitt": 1, "fit-target": 1, "fitc": 1, "fit-ctx": 1, "mmap": 0, "lm": 1, "load-mode": 1, "swa-full": 0, "dt": 1,
	"defrag-thold": 1, "warmup": 0, "no-warmup": 0, "moe-cache-mib": 1, "ncffn": 1, "n-cpu-ffn": 1,
}

// dropForeign takes such flags out of a command line and names them.
func dropForeign(args []string) (kept []string, dropped string) {
	var names []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		name, _, hasValue := strings.Cut(strings.TrimLeft(a, "-"), "=")
		values, ok := foreign[name]
		if a == "--" {
			return append(kept, args[i:]...), strings.Join(names, " ")
		}
		if !ok || i == 0 || !strings.HasPrefix(a, "-") {
			kept = append(kept, a)
			continue
		}
		names = append(names, a)
		if hasValue || i+1 == len(args) {
			continue
		}
		if values == 1 || values == -1 && isSwitch(args[i+1]) {
			i++
		}
	}
	return kept, strings.Join(names, " ")
}

func isSwitch(s string) bool {
	switch s {
	case "on", "off", "auto", "0", "1", "true", "false":
		return true
	}
	return false
}
