package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// env names the variables of a flag: ours, and llama.cpp's where it has the same flag.
func env(flag string, others ...string) cli.ValueSourceChain {
	chain := cli.ValueSourceChain{}
	for _, name := range append([]string{"EPQ_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}, others...) {
		chain.Chain = append(chain.Chain, &variable{name: name})
	}
	return chain
}

// envSwitch is env for a flag without a value: besides Go's words for true and false it takes on, off, enabled, disabled.
func envSwitch(flag string) cli.ValueSourceChain {
	chain := env(flag)
	for _, v := range chain.Chain {
		v.(*variable).isSwitch = true
	}
	return chain
}

// variable of the environment that a flag takes its value from where it is not typed. An empty one counts as not set.
type variable struct {
	name     string
	isSwitch bool
	taken    bool
}

// Lookup implements cli.ValueSource; it is asked for flags that are not typed.
func (v *variable) Lookup() (string, bool) {
	text := os.Getenv(v.name)
	if v.taken = text != ""; v.isSwitch {
		switch strings.ToLower(text) {
		case "on", "enabled", "yes":
			text = "true"
		case "off", "disabled", "no":
			text = "false"
		}
	}
	return text, v.taken
}

// String names the variable in errors.
func (v *variable) String() string { return fmt.Sprintf("environment variable %q", v.name) }

// GoString is String.
func (v *variable) GoString() string { return v.String() }

// IsFromEnv and Key let --help show the variable.
func (v *variable) IsFromEnv() bool { return true }

// Key is the variable's name.
func (v *variable) Key() string { return v.name }

// typed tells whether a flag of text or of a number stands in the command line: IsSet is also true of one that the environment
// gives, which must not beat what is typed elsewhere.
func typed(c *cli.Command, name string) bool {
	i := slices.IndexFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 || !c.Flags[i].IsSet() {
		return false
	}
	var chain []cli.ValueSource
	switch f := c.Flags[i].(type) {
	case *cli.StringFlag:
		chain = f.Sources.Chain
	case *cli.IntFlag:
		chain = f.Sources.Chain
	}
	return !slices.ContainsFunc(chain, func(s cli.ValueSource) bool { return s.(*variable).taken })
}
