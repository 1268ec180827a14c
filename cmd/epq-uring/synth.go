package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/synth"
)

func synthCommand() *cli.Command {
	var names []string
	for _, p := range synth.Presets() {
		names = append(names, p.Name)
	}
	return &cli.Command{
		Name:      "synth",
		Usage:     "write a model of random weights: " + strings.Join(names, ", "),
		ArgsUsage: "PRESET",
		Description: "epq-uring synth " + names[0] + " -o model.gguf --seed 7\n" +
			"epq-uring synth ling-3.0-flash --layers 8 --experts 64 --shards 2 -o ling.gguf\n" +
			"epq-uring synth ling-3.0-flash --header-only -o shape.gguf && epq-uring plan -m shape.gguf --ram 16GiB",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` to write", Required: true},
			&cli.IntFlag{Name: "layers", HideDefault: true, Usage: "layers instead of the preset's"},
			&cli.IntFlag{Name: "experts", HideDefault: true, Usage: "experts per layer instead of the preset's"},
			&cli.IntFlag{Name: "shards", Value: 1, Usage: "files to split it into"},
			&cli.IntFlag{Name: "seed", Usage: "of the random weights"},
			&cli.BoolFlag{Name: "header-only", Usage: "leave the weights out (a hole in the file): for plan and inspect"},
			&cli.FloatFlag{Name: "skew", HideDefault: true, Usage: "how unevenly the router picks instead of the preset's; 0: evenly"},
			jsonFlag(),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Len() != 1 {
				return fmt.Errorf("synth takes one preset of %s: %w", strings.Join(names, ", "), errUsage)
			}
			bar := newBar(c, "writing")
			o := synth.Options{Layers: c.Int("layers"), Experts: c.Int("experts"), Shards: c.Int("shards"), Seed: uint64(c.Int("seed")),
				HeaderOnly: c.Bool("header-only"), Progress: bar.set}
			if c.IsSet("skew") {
				skew := c.Float("skew")
				o.Skew = &skew
			}
			r, err := synth.Write(ctx, c.Args().First(), c.String("output"), o)
			bar.done(err)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printJSON(c, map[string]any{"files": r.Files, "bytes": r.Bytes})
			}
			_, err = fmt.Fprintf(c.Root().Writer, "%s (%d bytes)\n", strings.Join(r.Files, "\n"), r.Bytes)
			return err
		},
	}
}
