package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/kernels"
)

func kernelsCommand() *cli.Command {
	return &cli.Command{
		Name:        "kernels",
		Usage:       "the kernel sets of this program, which one is chosen and why, their self-test and speed",
		Description: "epq-uring kernels\nepq-uring kernels --selftest --json\nepq-uring kernels --bench --kernels avx2\nepq-uring kernels --model qwen3-30b-a3b-Q4_K_M.gguf",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "selftest", Usage: "check every format of every set against the plain twin"},
			&cli.BoolFlag{Name: "bench", Usage: "measure every format: weights per second, one column, by one thread from cache and by all threads from memory, beside what memory gives"},
			&cli.BoolFlag{Name: "memory", Usage: "measure how fast all threads read memory, nothing else"},
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "check this machine on `FILE`: real experts of several layers against a float64 reference"},
			&cli.StringFlag{Name: "kernels", Usage: "only this set, and choose it", Sources: env("kernels")},
			pluginFlag(),
			jsonFlag(),
		},
		Action: showKernels,
	}
}

type formatInfo struct {
	OK       bool    `json:"ok"`
	MaxError float64 `json:"max_rel_error"`              // relative to the sum of magnitudes
	Rate     float64 `json:"gb_s,omitempty"`             // one thread, from the second-level cache
	Stream   float64 `json:"from_memory_gb_s,omitempty"` // all threads
	Share    float64 `json:"memory_share,omitempty"`     // of what they read without computing
	why      error
}

type setInfo struct {
	Name      string                `json:"name"`
	Supported bool                  `json:"supported"`
	Selected  bool                  `json:"selected"`
	Memory    float64               `json:"memory_gb_s,omitempty"` // the most that all threads read
	Formats   map[string]formatInfo `json:"formats"`
	Vectors   *bool                 `json:"vectors_ok,omitempty"` // norms, attention and the like
}

// benchTime is how long one format of one set is measured.
const benchTime = 100 * time.Millisecond

func showKernels(ctx context.Context, c *cli.Command) error {
	chosen, err := kernels.Choose(c.String("kernels"), c.String("kernel-plugin"))
	if err != nil {
		return err
	}
	if c.String("model") != "" {
		return checkModel(ctx, c)
	}
	if c.Bool("memory") {
		return showMemory(c, chosen)
	}
	test, bench := c.Bool("selftest") || c.Bool("bench"), c.Bool("bench")
	var infos []setInfo
	var failed error
	names := kernels.Names()
	if !slices.Contains(names, chosen.Name) {
		names = append(names, chosen.Name) // a plug-in's
	}
	for _, name := range names {
		s, err := chosen, error(nil)
		if name != chosen.Name {
			s, err = kernels.ByName(name)
		}
		info := setInfo{Name: name, Supported: err == nil, Selected: name == chosen.Name, Formats: map[string]formatInfo{}}
		if err == nil && test && (c.String("kernels") == "" || info.Selected) {
			if err := ctx.Err(); err != nil {
				return err
			}
			failed = errors.Join(failed, examine(s, &info))
			if bench {
				if err := measure(ctx, s, &info); err != nil {
					return err
				}
			}
		}
		infos = append(infos, info)
	}
	if c.Bool("json") {
		if err := printJSON(c, map[string]any{"sets": infos}); err != nil {
			return err
		}
		return failed
	}
	if err := printKernels(c, chosen, infos); err != nil {
		return err
	}
	return failed
}

// examine fills in what a set does with vectors and with every format; the error joins what it must not be used for.
func examine(s *kernels.Set, info *setInfo) error {
	failed := s.CheckVectors()
	ok := failed == nil
	info.Vectors = &ok
	for _, t := range kernels.Types() {
		var f formatInfo
		f.MaxError, f.why = s.Check(t)
		f.OK = f.why == nil
		failed = errors.Join(failed, f.why)
		info.Formats[t.String()] = f
	}
	return failed
}

// memoryTime is how long reading memory is measured: a shared machine changes by the second.
const memoryTime = 2 * time.Second

// showMemory measures what bounds decoding.
func showMemory(c *cli.Command, s *kernels.Set) (err error) {
	threads, _ := kernels.DefaultThreads()
	m, err := kernels.NewStream(s, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	rate, err := m.Read(memoryTime)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c, map[string]any{"threads": threads, "memory_gb_s": rate / 1e9})
	}
	fmt.Fprintf(c.Root().Writer, "%d threads read %.1f GB/s from memory (median of %v)\n", threads, rate/1e9, memoryTime)
	return nil
}

// measure fills in how fast a set is with the formats it computes rightly.
func measure(ctx context.Context, s *kernels.Set, info *setInfo) (err error) {
	threads, _ := kernels.DefaultThreads()
	m, err := kernels.NewStream(s, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, t := range kernels.Types() {
		f := info.Formats[t.String()]
		if err := ctx.Err(); err != nil {
			return err
		}
		if !f.OK {
			continue
		}
		rate, err := s.Measure(t, benchTime)
		if err != nil {
			return err
		}
		read, err := m.Read(benchTime) // beside each format: the state of memory changes by the second
		if err != nil {
			return err
		}
		stream, err := m.Multiply(t, benchTime)
		if err != nil {
			return err
		}
		f.Rate, f.Stream, f.Share = rate/1e9, stream/1e9, stream/read
		info.Memory = max(info.Memory, read/1e9)
		info.Formats[t.String()] = f
	}
	return nil
}

func printKernels(c *cli.Command, chosen *kernels.Set, infos []setInfo) error {
	out, why := c.Root().Writer, kernels.Explain()
	if chosen != kernels.Best() {
		why = chosen.Name + ", as asked for"
	}
	fmt.Fprintln(out, "chosen: "+why)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, s := range infos {
		state := "not on this CPU"
		switch {
		case s.Selected:
			state = "chosen"
		case s.Supported:
			state = "runs here"
		}
		if s.Memory > 0 {
			state += fmt.Sprintf("; memory gives all threads up to %.1f GB/s", s.Memory)
		}
		fmt.Fprintf(w, "%s\t%s\n", s.Name, state)
		if s.Vectors != nil {
			fmt.Fprintf(w, "  vectors\t%s\n", verdict(*s.Vectors))
		}
		for _, n := range slices.Sorted(maps.Keys(s.Formats)) {
			f, rate := s.Formats[n], ""
			if f.Rate > 0 {
				rate = fmt.Sprintf("%.1f GB/s, all threads from memory %.1f = %.0f %%", f.Rate, f.Stream, 100*f.Share)
			}
			fmt.Fprintf(w, "  %s\t%s\terror %.1e\t%s\n", n, verdict(f.OK), f.MaxError, rate)
		}
	}
	return w.Flush()
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "WRONG"
}
