package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/tokenizer"
)

func tokenizeCommand() *cli.Command {
	return &cli.Command{
		Name:        "tokenize",
		Usage:       "text to token ids, or back",
		ArgsUsage:   "[TEXT]",
		Description: "epq-uring tokenize -m model.gguf --text \"Hello\"\nepq-uring tokenize -m model.gguf --ids 9707,0",
		Flags: append(modelFlags(),
			&cli.StringFlag{Name: "text", Usage: "the `TEXT`"},
			&cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the text, byte for byte"},
			&cli.BoolFlag{Name: "special", Usage: "parse special tokens; with --ids: show them"},
			&cli.StringFlag{Name: "ids", Usage: "token ids to turn into text (`CSV`)"},
		),
		Action: tokenize,
	}
}

func tokenize(_ context.Context, c *cli.Command) error {
	o, err := options(c)
	if err != nil {
		return err
	}
	f, err := gguf.Open(o.Model)
	if err != nil {
		return err
	}
	t, err := tokenizer.New(f)
	if err != nil {
		return err
	}
	if c.IsSet("ids") {
		return detokenize(c, t)
	}
	text, err := readText(c, "text", "file", c.Args().Slice())
	if err != nil {
		return err
	}
	ids := t.Encode(text, c.Bool("special"))
	if ids == nil {
		ids = []int32{}
	}
	if c.Bool("json") {
		return printJSON(c, map[string]any{"ids": ids})
	}
	s := make([]string, len(ids))
	for i, id := range ids {
		s[i] = fmt.Sprint(id)
	}
	_, err = fmt.Fprintln(c.Root().Writer, strings.Join(s, ","))
	return err
}

func detokenize(c *cli.Command, t *tokenizer.Tokenizer) error {
	ids, err := parseIDs(c.String("ids"))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id < 0 || int(id) >= t.Size() {
			return fmt.Errorf("token %d is outside the vocabulary of %d: %w", id, t.Size(), errUsage)
		}
	}
	text := t.Decode(ids, c.Bool("special"))
	if c.Bool("json") {
		return printJSON(c, map[string]any{"text": text})
	}
	_, err = fmt.Fprintln(c.Root().Writer, text)
	return err
}
