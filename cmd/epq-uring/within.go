package main

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
)

// withinCommand is how bench puts a child under limits: a process that sets them on itself and then becomes the child,
// for which they hold from its first instruction.
func withinCommand() *cli.Command {
	return &cli.Command{
		Name:      "within",
		Hidden:    true,
		Usage:     "run a command of this program under limits",
		ArgsUsage: "-- COMMAND ...",
		Flags: []cli.Flag{
			&cli.Int64Flag{Name: "data", Usage: "RLIMIT_DATA in bytes"},
			&cli.StringFlag{Name: "group", Usage: "`FILE` that takes the members of a memory group"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if path := c.String("group"); path != "" {
				if err := os.WriteFile(path, []byte("0"), 0); err != nil {
					return fmt.Errorf("joining a memory group: %w", err)
				}
			}
			if n := c.Int64("data"); n > 0 {
				if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(n), Max: uint64(n)}); err != nil {
					return fmt.Errorf("RLIMIT_DATA of %d bytes: %w", n, err)
				}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return syscall.Exec(self, append(os.Args[:1:1], c.Args().Slice()...), os.Environ())
		},
	}
}
