package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/kernels"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "version, compiler and kernels",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Bool("json") {
				return printJSON(c, map[string]any{"version": version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "kernels": kernels.Best().Name})
			}
			_, err := fmt.Fprintf(c.Root().Writer, "epq-uring %s (%s, %s/%s, kernels %s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, kernels.Best().Name)
			return err
		},
	}
}
