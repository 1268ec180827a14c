package engine

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/model"
)

// The words of Options.MTP and Options.DraftNgram.
const (
	Auto = "auto" // where it pays
	On   = "on"   // always; DraftNgram only
	Off  = "off"
)

// draftOptions checks the options and returns the number that mtp is, 0 for a word.
func draftOptions(mtp, ngram string) (int, error) {
	switch ngram {
	case Auto, On, Off:
	default:
		return 0, fmt.Errorf("engine: --draft-ngram is %q, allowed are auto, on and off: %w", ngram, ErrOption)
	}
	if mtp == Auto || mtp == Off {
		return 0, nil
	}
	n, err := strconv.Atoi(mtp)
	if err != nil || n < 0 || n > MaxMTP {
		return 0, fmt.Errorf("engine: --mtp is %q, allowed are auto, off and a number of tokens up to %d: %w", mtp, MaxMTP, ErrOption)
	}
	return n, nil
}

// setDrafts decides which layers are in use and how many tokens a pass may verify.
func (e *Engine) setDrafts(mtp, ngram bool) {
	e.mtp, e.drafts, e.catalog = mtp, 0, e.main
	if ngram {
		e.drafts = ngramMost
	}
	if mtp {
		e.drafts, e.catalog = max(e.drafts, mtpTokens(e.opt.mtpTokens)), e.whole
	}
}

// mtpTokens is the most that the model's own block drafts where n was asked for.
func mtpTokens(n int) int {
	if n > 0 {
		return n
	}
	return MaxMTP
}

// orderDrafts sets what was asked for by name.
func (e *Engine) orderDrafts() error {
	n := e.opt.mtpTokens
	if n > 0 && e.cfg.Predict == 0 {
		return fmt.Errorf("engine: --mtp %d: %s has no block of multi-token prediction: give a file that has one, or --mtp auto: %w",
			n, e.opt.Model, ErrOption)
	}
	if n > 0 && e.mtpOff != "" {
		return fmt.Errorf("engine: --mtp %d: %s: %w", n, e.mtpOff, ErrOption)
	}
	switch {
	case e.cfg.Predict == 0:
		e.mtpOff = "off: the file has no block for it"
	case e.opt.MTP != Auto && n == 0:
		e.mtpOff = "off"
	}
	e.setDrafts(n > 0, e.opt.DraftNgram == On)
	return nil
}

// draftShare is the part of the arena that drafting may cost where nobody asked for it: one in fifty costs about a point
// of hits.
const draftShare = 50

// planDrafts makes room for the drafting that is left to the engine, if that takes next to nothing from the experts: with
// the model's own block, or without. The smallest budget is never raised for it.
func (e *Engine) planDrafts(bs []budget, context int, p *expert.Plan, n *needs) (*expert.Plan, *needs) {
	mtp, ngram := e.mtp, e.opt.DraftNgram == On
	if e.mtpOff == "" && len(e.whole.Classes) != len(e.main.Classes) && !mtp {
		e.mtpOff = "off: its experts are of another size than all others and would need slots of their own"
	}
	if !bs[0].minimal {
		for _, m := range choices(mtp, e.mtpOff == "") {
			for _, t := range choices(ngram, e.opt.DraftNgram == Auto) {
				e.setDrafts(m, t)
				q, r, err := e.planFor(bs, context)
				if m && errors.Is(err, model.ErrTensor) {
					e.mtpOff = "off: " + err.Error()
				}
				if err == nil && q.ArenaBytes >= p.ArenaBytes-p.ArenaBytes/draftShare {
					q.Minimum = p.Minimum
					return e.plannedDrafts(q, r)
				}
			}
		}
	}
	e.setDrafts(mtp, ngram)
	return e.plannedDrafts(p, n)
}

// plannedDrafts says why the model's own block does not draft, if nothing did yet.
func (e *Engine) plannedDrafts(p *expert.Plan, n *needs) (*expert.Plan, *needs) {
	if !e.mtp && e.mtpOff == "" {
		e.mtpOff = "off: the memory is worth more to the experts"
	}
	return p, n
}

// choices are what may be tried of a kind of drafting, the best first.
func choices(ordered, free bool) []bool {
	if free && !ordered {
		return []bool{true, false}
	}
	return []bool{ordered}
}
