package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// absentFlags belong to features that this version does not have: what asks for nothing is accepted, so that command
// lines stay valid from version to version.
func absentFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "hf-repo", Aliases: []string{"hf", "hfr"}, Usage: "`OWNER/REPO[:QUANT]` to download (not in this version: fetch the file and name it with -m)", Sources: env("hf-repo", "LLAMA_ARG_HF_REPO")},
	}
}

// absentServeFlags are those of serve alone.
func absentServeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "prompt-cache", Usage: "`DIR` that keeps prompts from run to run (not in this version)", Sources: env("prompt-cache")},
		&cli.StringFlag{Name: "prompt-slice", Value: "auto", Usage: "prompt tokens read between two tokens of others: auto (the ubatch; -ub changes it)", Sources: env("prompt-slice")},
	}
}

// absentCommand says why a command of other programs is not here, nil of any other name.
func absentCommand(name string) error {
	if name == "pull" || name == "list" {
		return fmt.Errorf("no command %q: this version downloads nothing; fetch the GGUF file (all its shards) and name it with -m FILE: %w", name, errUsage)
	}
	return nil
}

// absent refuses what this version cannot do.
func absent(c *cli.Command) error {
	if repo := c.String("hf-repo"); repo != "" {
		return fmt.Errorf("-hf %s: this version downloads nothing; fetch the GGUF file (all its shards) and name it with -m FILE: %w", repo, errUsage)
	}
	for _, f := range []struct {
		name   string
		fine   []string
		remedy string
	}{
		{"prompt-cache", []string{""}, "prompts are kept while the server runs"},
		{"prompt-slice", []string{"auto", ""}, "-ub bounds what is read at a time"},
	} {
		if v := strings.ToLower(c.String(f.name)); !slices.Contains(f.fine, v) {
			return fmt.Errorf("--%s %s is not available in this version; %s: %w", f.name, c.String(f.name), f.remedy, errUsage)
		}
	}
	return nil
}
