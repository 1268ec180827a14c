package main

import (
	"context"
	"errors"
	"fmt"
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
			&cli.BoolFlag{Name: "bench", Usage: "measure every format: weights read per second by one thread, one column"},
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "check this machine on `FILE`: real experts of several layers against a float64 reference"},
			&cli.StringFlag{Name: "kernels", Usage: "only this set, and choose it", Sources: env("kernels")},
			pluginFlag(),
			&cli.BoolFlag{Name: "json", Usage: "one JSON object on stdout"},
		},
		Action: showKernels,
	}
}

type formatInfo struct {
	OK       bool    `json:"ok"`
	MaxError float64 `json:"max_rel_error"` // relative to the sum of magnitudes
	Rate     float64 `json:"gb_s,omitempty"`
	why      error
}

type setInfo struct {
	Name      string                `json:"name"`
	Supported bool                  `json:"supported"`
	Selected  bool                  `json:"selected"`
	Formats   map[string]formatInfo `json:"formats"`
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
			failed = errors.Join(failed, examine(s, &info, bench))
		}
		infos = append(infos, info)
	}
	if c.Bool("json") {
		if err := printJSON(c, map[string]any{"sets": infos}); err != nil {
			return err
		}
		return failed
	}
	if err := printKernels(c, infos); err != nil {
		return err
	}
	return failed
}

// examine fills in what a set does with every format; the error joins the formats it must not be used for.
func examine(s *kernels.Set, info *setInfo, bench bool) (failed error) {
	for _, t := range kernels.Types() {
		var f formatInfo
		f.MaxError, f.why = s.Check(t)
		f.OK = f.why == nil
		failed = errors.Join(failed, f.why)
		if bench && f.OK {
			rate, err := s.Measure(t, benchTime)
			failed = errors.Join(failed, err)
			f.Rate = rate / 1e9
		}
		info.Formats[t.String()] = f
	}
	return failed
}

func printKernels(c *cli.Command, infos []setInfo) error {
	out := c.Root().Writer
	fmt.Fprintln(out, "chosen: "+kernels.Explain())
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, s := range infos {
		state := "not on this CPU"
		switch {
		case s.Selected:
			state = "chosen"
		case s.Supported:
			state = "runs here"
		}
		fmt.Fprintf(w, "%s\t%s\n", s.Name, state)
		var names []string
		for n := range s.Formats {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			f := s.Formats[n]
			state, rate := "ok", ""
			if !f.OK {
				state = "WRONG"
			}
			if f.Rate > 0 {
				rate = fmt.Sprintf("%.1f GB/s", f.Rate)
			}
			fmt.Fprintf(w, "  %s\t%s\terror %.1e\t%s\n", n, state, f.MaxError, rate)
		}
	}
	return w.Flush()
}
