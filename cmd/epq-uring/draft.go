package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
)

func draftFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "mtp", Value: "auto", Usage: "draft tokens with the model's own block of multi-token prediction: auto (where it pays), off, or always `N` tokens; the answer is the same", Sources: env("mtp")},
		&cli.StringFlag{Name: "draft-ngram", Value: "auto", Usage: "draft tokens from runs that the text repeats, verified in one pass: auto (where it pays), on or off; the answer is the same", Sources: env("draft-ngram")},
	}
}

// draftOptions reads draftFlags.
func draftOptions(c *cli.Command, o *engine.Options) error {
	o.MTP, o.DraftNgram = strings.ToLower(c.String("mtp")), strings.ToLower(c.String("draft-ngram"))
	if n, err := strconv.Atoi(o.MTP); o.MTP != engine.Auto && o.MTP != engine.Off && (err != nil || n < 0 || n > engine.MaxMTP) {
		return fmt.Errorf("--mtp is %q, allowed are auto, off and a number of tokens up to %d: %w", c.String("mtp"), engine.MaxMTP, errUsage)
	}
	switch o.DraftNgram {
	case engine.Auto, engine.On, engine.Off:
	default:
		return fmt.Errorf("--draft-ngram is %q, allowed are auto, on and off: %w", c.String("draft-ngram"), errUsage)
	}
	return nil
}

// draftReport is what a run's report says about drafting. The rate of the answer includes it.
type draftReport struct {
	Drafted  int    `json:"draft_tokens"`    // guessed and verified
	Accepted int    `json:"accepted_tokens"` // of those, the right ones
	MTP      string `json:"mtp"`             // what the model's own block did
}

func newDraftReport(r engine.Result) draftReport {
	return draftReport{Drafted: r.Drafted, Accepted: r.Accepted, MTP: r.MTP}
}

// line is the report's part of the statistics line.
func (r draftReport) line() string {
	if r.Drafted == 0 {
		return ""
	}
	return "; drafted " + strconv.Itoa(r.Drafted) + " tokens, " + strconv.Itoa(r.Accepted) + " right"
}
