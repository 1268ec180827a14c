package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "take down checksums of all experts, or compare them; find weights that are no numbers",
		Description: "epq-uring verify -m model.gguf      the first time writes model.gguf.crc32c, later compares; goes on where it was interrupted\n" +
			"epq-uring run -m model.gguf --verify    compares every read with them",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, any shard, or the folder of a set (default: the embedded demo model)", Sources: env("model", "LLAMA_ARG_MODEL")},
			sumsFlag(),
			&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, Value: 2, Usage: "threads that read and sum", Sources: env("threads", "LLAMA_ARG_THREADS")},
			jsonFlag(),
		},
		Action: verify,
	}
}

func sumsFlag() cli.Flag {
	return &cli.StringFlag{Name: "sums", Usage: "`FILE` of checksums (default: beside the model's first file, with .crc32c)", Sources: env("sums")}
}

func verify(ctx context.Context, c *cli.Command) error {
	o := engine.VerifyOptions{Model: c.String("model"), Sums: c.String("sums"), Threads: c.Int("threads")}
	if o.Threads < 1 || o.Threads > 64 {
		return fmt.Errorf("-t is %d, allowed is 1 to 64: %w", o.Threads, errUsage)
	}
	if o.Model == "" {
		var err error
		if o.Model, err = unpackDemo(); err != nil {
			return err
		}
	}
	bar := newBar(c, "verifying")
	o.Progress = bar.set
	r, err := engine.Verify(ctx, o)
	bar.done(err)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		err = printJSON(c, r)
	} else {
		err = printVerified(c, r)
	}
	if err == nil && len(r.Bad) > 0 {
		b := r.Bad[0]
		err = fmt.Errorf("%d bad slices, the first: %s: %s, layer %d, expert %d, offset %d, %d bytes: %s; check the disk and fetch the file again",
			len(r.Bad), b.File, b.Tensor, b.Layer, b.Expert, b.Offset, b.Bytes, b.Reason)
	}
	return err
}

func printVerified(c *cli.Command, r engine.VerifyResult) error {
	w := c.Root().Writer
	for _, b := range r.Bad {
		fmt.Fprintf(w, "bad: %s: %s, layer %d, expert %d, offset %d, %d bytes: %s\n", b.File, b.Tensor, b.Layer, b.Expert, b.Offset, b.Bytes, b.Reason)
	}
	_, err := fmt.Fprintf(w, "%d experts read: %d compared with %s, %d added to it, %d bad slices\n", r.Experts, r.Experts-r.Made, r.Sums, r.Made, len(r.Bad))
	return err
}
