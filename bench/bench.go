// Package bench measures epq-uring in fresh child processes: a matrix of settings, each cell under a real memory limit and
// from a cold page cache, cells in turns, so that what changes on the machine hits all of them; and it checks answers and
// the quality of logits.
package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors by kind.
var (
	ErrFailed    = errors.New("failed")        // a child
	ErrOutput    = errors.New("other tokens")  // arms that must make the same tokens did not
	ErrReference = errors.New("bad reference") // logits that do not belong to the text
	ErrInput     = errors.New("bad input")     // a report, questions or a text that cannot be used
)

// Arm is one combination of settings.
type Arm struct {
	Prefetch string `json:"prefetch"`
	Policy   string `json:"policy"`
	Threads  int    `json:"threads"`
	RAM      string `json:"ram"` // as it was asked for: min, auto or a size
}

// TimeSplit says where the wall time of a run went, in seconds.
type TimeSplit struct {
	Compute float64 `json:"compute_s"`
	IOWait  float64 `json:"io_wait_s"`
	Other   float64 `json:"other_s"`
}

// Measured is what one run tells (the names are those of `run --json`), and what was seen of it from outside.
type Measured struct {
	PromptTokens int     `json:"prompt_tokens"`
	PromptRate   float64 `json:"prompt_tok_s"`
	DecodeRate   float64 `json:"decode_tok_s"`
	FirstToken   float64 `json:"time_to_first_token_s"`
	HitRate      float64 `json:"hit_rate"`
	HitRateCold  float64 `json:"hit_rate_cold"` // without first uses, which no cache can have
	MiBPerToken  float64 `json:"ssd_mib_per_token"`
	Evictions    int64   `json:"evictions"`

	PrefetchPrecision float64 `json:"prefetch_precision"`
	PrefetchRecall    float64 `json:"prefetch_recall"`
	PrefetchWasted    int64   `json:"prefetch_wasted_bytes"`

	Ahead *Ahead `json:"prefetch_details,omitempty"` // nil: nothing was to be read ahead

	Budget   int64     `json:"budget_bytes"`
	BoundBy  string    `json:"bound_by"`
	Arena    int64     `json:"arena_bytes"`
	Slots    int       `json:"arena_slots"`
	Backend  string    `json:"backend"`
	Kernels  string    `json:"kernels"`
	PeakAnon int64     `json:"peak_anonymous_bytes"` // its own count or the parent's samples, whichever is larger
	PeakRSS  int64     `json:"peak_rss_bytes"`       // the same
	Swap     int64     `json:"vm_swap_bytes"`        // the same
	Split    TimeSplit `json:"time_split"`

	ReadRetries  int64   `json:"read_retries"`  // reads repeated after an error
	ReadFailures int64   `json:"read_failures"` // experts given up
	Fallback     string  `json:"fallback"`      // what the machine refused; "": nothing
	OutputTokens []int32 `json:"output_tokens,omitempty"`

	DeviceRead  int64  `json:"device_read_bytes"` // of the whole process, loading included, as the kernel counts them
	Cached      int64  `json:"cached_bytes"`      // of the model in the page cache when the run began
	GroupPeak   int64  `json:"group_peak_bytes"`  // of the memory group, where there was one
	PrefetchRan string `json:"prefetch_ran"`      // what the run says of its prefetch
}

// Ahead is what became of the experts read ahead.
type Ahead struct {
	Predictor string       `json:"predictor"`
	Depth     int          `json:"layers_ahead"`
	Reason    string       `json:"reason"` // of this depth
	Issued    int64        `json:"issued"`
	Useful    int64        `json:"useful"`
	Late      int64        `json:"late"`
	Wasted    int64        `json:"wasted"`
	Cancelled int64        `json:"cancelled"`
	Layers    []AheadLayer `json:"layers"`
}

// AheadLayer is one MoE layer: the share of its experts that was named one ("1") or two layers ahead ("2") or before the
// token began ("before"), among as many names as a token uses experts and among twice as many.
type AheadLayer struct {
	Recall map[string][2]float64 `json:"recall"`
}

// Sample is one run of a cell.
type Sample struct {
	Round int `json:"round"`
	Measured
	Seconds float64 `json:"seconds"` // of the whole process
	Error   string  `json:"error,omitempty"`
}

// Launcher runs one arm to its end.
type Launcher interface {
	Launch(ctx context.Context, a Arm) (Measured, error)
}

// order returns the arms of a round: forward and backward in turns (A B B A), so that a drift of the machine's speed
// favours no arm.
func order(arms, round int) []int {
	o := make([]int, arms)
	for i := range o {
		o[i] = i
	}
	if round%2 == 1 {
		slices.Reverse(o)
	}
	return o
}

// Run measures every arm rounds times. before, which may be nil, is called ahead of each run with the number of runs that are over.
// An arm that fails goes on with its next round, and its samples tell why. When ctx ends, what is measured is returned
// with its error.
func Run(ctx context.Context, l Launcher, arms []Arm, rounds int, before func(done int, a Arm)) ([][]Sample, error) {
	samples := make([][]Sample, len(arms))
	done := 0
	for round := range rounds {
		for _, i := range order(len(arms), round) {
			if before != nil {
				before(done, arms[i])
			}
			start := time.Now()
			m, err := l.Launch(ctx, arms[i])
			if ctx.Err() != nil {
				return samples, context.Cause(ctx)
			}
			s := Sample{Round: round, Measured: m, Seconds: time.Since(start).Seconds()}
			if err != nil {
				s.Error = err.Error()
			}
			samples[i] = append(samples[i], s)
			done++
		}
	}
	return samples, nil
}

// sameTokens compares the tokens of all runs that did not fail: nil, or an ErrOutput that names the first other one.
func sameTokens(cells []Cell) error {
	var first []int32
	var where string
	for _, c := range cells {
		for _, s := range c.Samples {
			switch {
			case s.Error != "":
			case where == "":
				first, where = s.OutputTokens, c.name()
			case !slices.Equal(s.OutputTokens, first):
				return fmt.Errorf("bench: %s, round %d: token %d is not that of %s: %w", c.name(), s.Round+1, parts(s.OutputTokens, first), where, ErrOutput)
			}
		}
	}
	return nil
}

// parts returns the first index where a and b are different.
func parts(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
