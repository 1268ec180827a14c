package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/sim"
)

func simulateCommand() *cli.Command {
	return &cli.Command{
		Name:  "simulate",
		Usage: "replay a recorded run under other budgets and policies",
		Description: "epq-uring run -m model.gguf --ram 8GiB --trace routes.trace -p \"Tell me a story\" -n 500\n" +
			"epq-uring simulate --trace routes.trace --ram 4GiB,8GiB,12GiB --svg hits.svg",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Usage: "`FILE` that run, serve or bench wrote with --trace", Required: true, Sources: env("trace")},
			&cli.StringFlag{Name: "ram", Usage: "budgets with commas (`LIST`); they mean what --ram means in a run like the recorded one", Required: true, Sources: env("ram")},
			&cli.StringFlag{Name: "policy", Value: "all", Usage: "policies with commas (`LIST`), or all: " + strings.Join(sim.Policies(), ", ")},
			&cli.IntFlag{Name: "evict-stale-tokens", DefaultText: strconv.Itoa(pager.DefaultStaleTokens), Usage: "least_stale: tokens an expert must have rested", Sources: env("evict-stale-tokens", "SDQ_EVICT_STALE_TOKENS")},
			&cli.StringFlag{Name: "svg", Usage: "chart of the hit rates to `FILE`"},
			jsonFlag(),
		},
		Action: simulate,
	}
}

func simulate(_ context.Context, c *cli.Command) error {
	budgets, err := parseSizes(c.String("ram"))
	if err != nil {
		return err
	}
	policies, err := sim.ParsePolicies(c.String("policy"))
	if err != nil {
		return fmt.Errorf("--policy: %w: %w", err, errUsage)
	}
	t, err := readTrace(c.String("trace"))
	if err != nil {
		return err
	}
	cells, err := sim.Simulate(t, budgets, policies, pager.Options{StaleTokens: c.Int("evict-stale-tokens")})
	if err != nil {
		return err
	}
	if path := c.String("svg"); path != "" {
		if err := writeFile(path, func(w io.Writer) error { return sim.WriteSVG(w, cells) }); err != nil {
			return fmt.Errorf("--svg: %w", err)
		}
	}
	if c.Bool("json") {
		return printJSON(c, map[string]any{"cells": cells})
	}
	return printCells(c.Root().Writer, cells)
}

func parseSizes(list string) ([]int64, error) {
	var sizes []int64
	for _, s := range strings.Split(list, ",") {
		n, err := engine.ParseSize(s)
		if err != nil {
			return nil, fmt.Errorf("--ram: %w: %w", err, errUsage)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

func printCells(out io.Writer, cells []sim.Cell) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "budget\tpolicy\thit %\twithout first uses %\tMiB/token\tevictions\t\n")
	for _, c := range cells {
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.3f\t%d\t\n", expert.FormatBytes(c.RAM), c.Policy, 100*c.HitRate, 100*c.HitRateCold, c.MiBPerToken, c.Evictions)
	}
	return w.Flush()
}
