package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/bench"
	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
)

// kit is what bench and eval need to run this program as a child: the model, the flags that all children share, and the
// budgets as numbers.
type kit struct {
	child bench.Child
	model bench.Model
	args  []string
	plans map[bench.Arm]plan
}

// plan is what `epq-uring plan` says of an arm: a budget, or why there is none.
type plan struct {
	budget int64
	err    error
}

// ownFlags of bench and eval are not handed down as they are.
var ownFlags = []string{"model", "ram", "ram-budget-mb", "threads", "evict-policy", "prefetch", "no-warm", "json", "trace"}

func newKit(c *cli.Command) (*kit, error) {
	limit := bench.Cap(c.String("cap"))
	if !slices.Contains([]bench.Cap{bench.CapNone, bench.CapRlimit, bench.CapCgroup}, limit) {
		return nil, fmt.Errorf("--cap is %q, allowed are none, rlimit and cgroup: %w", limit, errUsage)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	path := c.String("model")
	if path == "" {
		if path, err = unpackDemo(); err != nil {
			return nil, err
		}
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	k := &kit{model: bench.Model{File: path, Architecture: f.Arch()}, plans: map[bench.Arm]plan{}}
	k.child = bench.Child{Program: self, Within: []string{"within"}, Cap: limit}
	for _, s := range f.Shards {
		k.child.Files = append(k.child.Files, s.Path)
		k.model.Bytes += s.Size
	}
	k.args = append(k.args, "--model="+path)
	for _, flag := range modelFlags() {
		if name := flag.Names()[0]; c.IsSet(name) && !slices.Contains(ownFlags, name) {
			k.args = append(k.args, "--"+name+"="+fmt.Sprint(c.Value(name)))
		}
	}
	return k, nil
}

// plan asks for the plan of every arm. What is refused as bad usage, or for every arm, ends the command before anything is
// measured; an arm that is refused alone will say so in its cell.
func (k *kit) plan(ctx context.Context, arms []bench.Arm) error {
	if err := k.child.Check(); err != nil {
		return err
	}
	var first error
	refused := 0
	for _, a := range arms {
		if k.child.Cap == bench.CapCgroup && (a.RAM == "auto" || a.RAM == "min") {
			return fmt.Errorf("--cap cgroup needs sizes in --ram, not %q: what must fit depends on the group's size: %w", a.RAM, errUsage)
		}
		p := k.budget(ctx, a)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(p.err, errUsage) {
			return p.err
		}
		if p.err != nil {
			refused, first = refused+1, cmp.Or(first, p.err)
		}
		k.plans[a] = p
	}
	if refused == len(arms) {
		return first
	}
	return nil
}

// budget is what `plan` says of an arm.
func (k *kit) budget(ctx context.Context, a bench.Arm) (p plan) {
	args := slices.Concat([]string{"plan", "--json"}, k.args, a.Flags())
	cmd := exec.CommandContext(ctx, k.child.Program, args...)
	cmd.Env = bench.Environment()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		p.err = errors.New(strings.TrimPrefix(oneLine(strings.TrimSpace(string(exit.Stderr))), "epq-uring: "))
		if exit.ExitCode() == 2 {
			p.err = fmt.Errorf("%w: %w", p.err, errUsage)
		}
		return p
	}
	var told struct {
		Budget int64 `json:"budget_bytes"`
	}
	if err == nil {
		err = json.Unmarshal(out, &told)
	}
	return plan{told.Budget, err}
}

// bytes is the budget of an arm as a number: the size that was asked for, or what the plan made of auto and min.
func (k *kit) bytes(a bench.Arm) (int64, error) {
	if p := k.plans[a]; p.err != nil || a.RAM == "auto" || a.RAM == "min" {
		return p.budget, p.err
	}
	return engine.ParseSize(a.RAM)
}
