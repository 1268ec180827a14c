package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/epq-uring/epq-uring/internal/mem"
)

// Cap is how a child is held to its budget: by its own plan alone, or by the kernel too.
type Cap string

// The caps.
const (
	CapNone   Cap = "none"
	CapRlimit Cap = "rlimit" // RLIMIT_DATA: private writable memory, touched or not
	CapCgroup Cap = "cgroup" // a memory group: also page cache and the kernel's share
)

// Child runs the program as a process of its own.
type Child struct {
	Program string   // the executable
	Within  []string // arguments that make it put the given limits on itself and then execute what follows them
	Cap     Cap
	Files   []string // thrown out of the page cache before each run; none: it stays as it is
}

// limits are the flags of the wrapping command named by Child.Within.
const (
	flagData  = "--data"
	flagGroup = "--group"
)

// output is what came of one child.
type output struct {
	stdout    []byte
	lost      string // the second line on stderr, if it has one
	device    int64
	cached    int64
	groupPeak int64
	seen      mem.Process
}

// Check tells whether the cap can be put on children here.
func (c *Child) Check() error {
	if c.Cap != CapCgroup {
		return nil
	}
	g, err := mem.NewGroup(groupName(), 1<<30)
	if err != nil {
		return fmt.Errorf("bench: --cap cgroup: %w; --cap rlimit needs no rights", err)
	}
	return g.Close()
}

// groupName is that of this process's children, of which one runs at a time.
func groupName() string { return fmt.Sprintf("epq-bench-%d", os.Getpid()) }

// run executes the program under a cap of so many bytes. An ErrFailed says what the child said last.
func (c *Child) run(ctx context.Context, bytes int64, args ...string) (o output, err error) {
	if o.cached, err = evictAll(c.Files); err != nil {
		return o, err
	}
	var group *mem.Group
	var wrap []string
	switch c.Cap {
	case CapRlimit:
		wrap = append(append(wrap, c.Within...), flagData, strconv.FormatInt(bytes, 10), "--")
	case CapCgroup:
		if group, err = mem.NewGroup(groupName(), bytes); err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, group.Close()) }()
		wrap = append(append(wrap, c.Within...), flagGroup, group.Members(), "--")
	}
	err = c.execute(ctx, append(wrap, args...), &o)
	if group != nil {
		o.groupPeak = group.Peak()
		if n := group.Kills(); n > 0 {
			err = errors.Join(err, fmt.Errorf("bench: the kernel killed %d processes at the limit of %d bytes", n, bytes))
		}
	}
	return o, err
}

func (c *Child) execute(ctx context.Context, args []string, o *output) error {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, c.Program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &stdout, &stderr, Environment()
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("bench: the run %w: %w", ErrFailed, err)
	}
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch(cmd.Process.Pid, ended, &o.seen)
	}()
	err := cmd.Wait()
	close(ended)
	<-watched
	o.stdout = stdout.Bytes()
	o.lost = lostLine(stderr.String())
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		o.device = u.Inblock * 512
	}
	if err != nil {
		return fmt.Errorf("bench: the run %w: %w: %s", ErrFailed, err, lastLine(stderr.String()))
	}
	return nil
}

// Environment is that of children: this process's without the variables that stand for flags, since a child is told all that
// matters by flags, and a prompt or a penalty that is left in a shell must not change what is measured.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "RAM_BUDGET_MB" || slices.ContainsFunc([]string{"EPQ_", "LLAMA_ARG_", "SDQ_EVICT_"}, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// watchEvery is how often a child is looked at: seldom enough to cost nothing beside two busy cores.
const watchEvery = 50 * time.Millisecond

// watch keeps the largest of what the kernel says of a process until it ends.
func watch(pid int, ended <-chan struct{}, most *mem.Process) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return
		case <-t.C:
		}
		p, err := mem.StatusOf(pid)
		if err != nil {
			continue // over before it was waited for
		}
		most.PeakAnonymous = max(most.PeakAnonymous, p.Anonymous)
		most.PeakRSS = max(most.PeakRSS, p.PeakRSS)
		most.Swap = max(most.Swap, p.Swap)
	}
}

// lostLine finds the line that says what the machine refused: the one after the first that begins with its word.
func lostLine(stderr string) string {
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "without ") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// lastLine is what a failed child said last; a crash's first words, for its last ones are a stack.
func lastLine(stderr string) string {
	last := "it said nothing"
	for line := range strings.Lines(stderr) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "epq-uring: ")
		for _, crash := range []string{"panic:", "fatal error:", "runtime:", "SIG"} {
			if strings.HasPrefix(line, crash) {
				return line
			}
		}
		if line != "" {
			last = line
		}
	}
	return last
}

// told is the part of `run --json` that is read.
type told struct {
	Text     string `json:"text"`
	Prefetch string `json:"prefetch"`
	Measured
}

// tell runs a child whose stdout is the object of `run --json`.
func (c *Child) tell(ctx context.Context, bytes int64, args ...string) (told, error) {
	o, err := c.run(ctx, bytes, args...)
	t := told{}
	if e := json.Unmarshal(o.stdout, &t); e != nil && err == nil {
		err = fmt.Errorf("bench: the run %w: its stdout is not what run --json writes: %w", ErrFailed, e)
	}
	t.PeakAnon, t.PeakRSS, t.Swap = max(t.PeakAnon, o.seen.PeakAnonymous), max(t.PeakRSS, o.seen.PeakRSS), max(t.Swap, o.seen.Swap)
	t.DeviceRead, t.Cached, t.GroupPeak, t.Fallback, t.PrefetchRan = o.device, o.cached, o.groupPeak, o.lost, t.Prefetch
	return t, err
}
