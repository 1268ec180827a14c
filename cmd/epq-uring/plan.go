package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
)

func planCommand() *cli.Command {
	return &cli.Command{
		Name:        "plan",
		Usage:       "what a run would hold in memory, without loading anything",
		Description: "epq-uring plan -m model.gguf --ram 8GiB -c 32768",
		Flags: append(modelFlags(),
			&cli.IntFlag{Name: "parallel", Aliases: []string{"np"}, Value: 1, Usage: "sequences side by side", Sources: env("parallel", "LLAMA_ARG_N_PARALLEL")}),
		Action: func(_ context.Context, c *cli.Command) error {
			o, err := options(c)
			if err != nil {
				return err
			}
			o.Parallel = c.Int("parallel")
			p, err := engine.Plan(o)
			if err != nil {
				return err
			}
			out := struct {
				*expert.Plan
				*expected
			}{Plan: p}
			if path := c.String("trace"); path != "" {
				if out.expected, err = expect(p, path, pager.Options{Policy: o.EvictPolicy, StaleTokens: o.StaleTokens}); err != nil {
					return err
				}
			}
			if c.Bool("json") {
				return printJSON(c, out)
			}
			fmt.Fprintln(c.Root().Writer, p.Table())
			if out.expected != nil {
				fmt.Fprintln(c.Root().Writer, out.line())
			}
			return nil
		},
	}
}
