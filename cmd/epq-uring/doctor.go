package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/iotest"
)

// errUnwell is the kind of the exit status of a machine with a bad finding.
var errUnwell = errors.New("see the findings above")

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "what on this machine costs speed, and what to do about it",
		ArgsUsage: "[FILE|DIR]",
		Description: "epq-uring doctor model.gguf\n" +
			"epq-uring doctor --report model.gguf    all that was looked at, to paste into a bug report\n" +
			"It reads settings and the place of the model, writes nothing, and ends with status 1 if a finding is bad.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE` or folder to look at (default: the current folder)", Sources: env("model", "LLAMA_ARG_MODEL")},
			&cli.BoolFlag{Name: "report", Usage: "print all facts, not only findings"},
			jsonFlag(),
		},
		Action: doctor,
	}
}

func doctor(_ context.Context, c *cli.Command) error {
	opt := iotest.DoctorOptions{Paths: c.Args().Slice()}
	if m := c.String("model"); m != "" {
		opt.Paths = append(opt.Paths, m)
	}
	if len(opt.Paths) == 0 {
		opt.Paths = []string{"."}
	}
	if dir, err := cacheDir(); err == nil {
		opt.Tuning = dir
	}
	d := iotest.Doctor(opt)
	var err error
	if c.Bool("json") {
		err = printJSON(c, d)
	} else {
		err = d.WriteText(c.Root().Writer, c.Bool("report"))
	}
	if err == nil && d.Bad() {
		return fmt.Errorf("doctor: this machine has a bad finding: %s: %w", d.Findings[0].What, errUnwell)
	}
	return err
}
