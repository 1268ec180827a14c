package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/prefetch"
)

// prefetchOption reads --prefetch.
func prefetchOption(c *cli.Command, o *engine.Options) error {
	mode, file, has := strings.Cut(c.String("prefetch"), "=")
	mode = strings.ToLower(mode)
	switch {
	case !slices.Contains(prefetch.Modes(), mode) || has && mode != prefetch.Oracle:
		return fmt.Errorf("--prefetch is %q, allowed are auto, on, off, router, history, hybrid and oracle=FILE: %w", c.String("prefetch"), errUsage)
	case mode == prefetch.Oracle && file == "":
		return fmt.Errorf("--prefetch oracle needs the trace of the same run: record it with --trace FILE, then give --prefetch oracle=FILE: %w", errUsage)
	case mode == prefetch.Oracle:
		o.Future = func(cat *expert.Catalog) ([]prefetch.Use, error) { return future(file, cat) }
	}
	o.Prefetch = mode
	return nil
}

// future reads the uses of a recorded run of the model of cat.
func future(path string, cat *expert.Catalog) ([]prefetch.Use, error) {
	t, err := readTrace(path)
	if err != nil {
		return nil, err
	}
	if err := sameModel(path, t.Catalog, cat); err != nil {
		return nil, err
	}
	var uses []prefetch.Use
	for layer, ids := range t.Uses() {
		uses = append(uses, prefetch.Use{Layer: int32(layer), IDs: ids})
	}
	return uses, nil
}

// prefetchReport is what a run's report says about reading ahead. Precision is useful / issued; recall counts the experts
// that the predictor named, issued or not, in the uses it named some for.
type prefetchReport struct {
	Precision   float64          `json:"prefetch_precision"`
	Recall      float64          `json:"prefetch_recall"`
	WastedBytes int64            `json:"prefetch_wasted_bytes"`
	Details     *prefetchDetails `json:"prefetch_details,omitempty"` // unless it is off
}

type prefetchDetails struct {
	Predictor string  `json:"predictor"`
	Depth     int     `json:"layers_ahead"`
	Reason    string  `json:"reason"`
	Time      float64 `json:"time_s"`
	guessCounts
	Displaced  int64           `json:"displaced"`
	AskedAgain int64           `json:"asked_again"`
	Layers     []prefetchLayer `json:"layers"`
}

// guessCounts are guesses by what became of them: issued = useful + late + wasted + cancelled + held.
type guessCounts struct {
	Issued    int64   `json:"issued"`
	Useful    int64   `json:"useful"`
	Late      int64   `json:"late"`
	Wasted    int64   `json:"wasted"`
	Cancelled int64   `json:"cancelled"`
	Held      int64   `json:"held"`
	Lead      float64 `json:"lead_ms"` // of the useful, on average
}

// prefetchLayer has the recall of the lists of 1 and 2 layers ahead, each among as many names as a token uses experts and
// among twice as many, and of the list made before the token began.
type prefetchLayer struct {
	guessCounts
	Recall map[string][2]float64 `json:"recall"`
}

func newGuessCounts(g pager.GuessStats) guessCounts {
	c := guessCounts{Issued: g.Issued, Useful: g.Useful, Late: g.Late, Wasted: g.Wasted, Cancelled: g.Cancelled, Held: g.Held}
	if g.Useful > 0 {
		c.Lead = g.Lead.Seconds() * 1e3 / float64(g.Useful)
	}
	return c
}

func newPrefetchReport(p pager.Stats, s engine.PrefetchStats) prefetchReport {
	r := prefetchReport{Precision: p.Guess.Precision(), Recall: s.Recall(), WastedBytes: p.Guess.WastedBytes}
	if s.Mode == "" {
		return r
	}
	r.Details = &prefetchDetails{
		Predictor: s.Predictor, Depth: s.Depth, Reason: s.Reason, Time: s.Time.Seconds(),
		guessCounts: newGuessCounts(p.Guess), Displaced: p.Displaced, AskedAgain: p.AskedAgain,
	}
	for i, l := range s.Layers {
		out := prefetchLayer{guessCounts: newGuessCounts(s.PerLayer[i]), Recall: map[string][2]float64{}}
		for k, name := range []string{"1", "2", "before"} {
			if l.Recall[k].Routed > 0 {
				first, all := l.Recall[k].Share()
				out.Recall[name] = [2]float64{first, all}
			}
		}
		r.Details.Layers = append(r.Details.Layers, out)
	}
	return r
}

// line is the report's part of the statistics line.
func (r prefetchReport) line() string {
	d := r.Details
	if d == nil {
		return "nothing read ahead"
	}
	s := fmt.Sprintf("read ahead %d experts (%s, depth %d: %s)", d.Issued, d.Predictor, d.Depth, d.Reason)
	if d.Issued > 0 {
		s += fmt.Sprintf(", %.0f %% in time, %.0f %% late", 100*r.Precision, 100*float64(d.Late)/float64(d.Issued))
	}
	return s
}

// sameModel refuses a trace of a model with other layers.
func sameModel(path string, trace, cat *expert.Catalog) error {
	if len(trace.Layers) != len(cat.Layers) {
		return fmt.Errorf("--prefetch oracle=%s: recorded with a model of %d MoE layers, this one has %d: record this one", path, len(trace.Layers), len(cat.Layers))
	}
	for i, l := range trace.Layers {
		if l.Experts != cat.Layers[i].Experts {
			return fmt.Errorf("--prefetch oracle=%s: recorded with a model of %d experts in MoE layer %d, this one has %d: record this one", path, l.Experts, i, cat.Layers[i].Experts)
		}
	}
	return nil
}
