package bench

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/expert"
)

// Cell is what was measured of one arm: rates and times are medians, peaks the largest, the rest is that of the run in
// the middle, so that its figures belong together.
type Cell struct {
	Arm
	RAMBytes int64    `json:"ram_bytes"` // the budget as it was in the end
	Runs     int      `json:"runs"`      // that did not fail
	Failed   int      `json:"failed"`
	Errors   []string `json:"errors"` // why, each once
	Spread   float64  `json:"spread"` // of the decode rate
	Measured

	DecodeCI *Interval `json:"decode_ci95,omitempty"`
	PromptCI *Interval `json:"prompt_ci95,omitempty"`
	FirstCI  *Interval `json:"first_token_ci95,omitempty"`

	Against       string      `json:"against,omitempty"` // the cell compared with, in the same rounds
	DecodeAgainst *Difference `json:"decode_against,omitempty"`
	PromptAgainst *Difference `json:"prompt_against,omitempty"`

	Command string   `json:"command"`
	Samples []Sample `json:"samples"`
}

// Model is the file that was run.
type Model struct {
	File         string `json:"file"`
	Architecture string `json:"architecture"`
	Bytes        int64  `json:"bytes"` // all shards
}

// Report is what `bench --json` writes.
type Report struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Machine Machine   `json:"machine"`
	Command string    `json:"command"`
	Model   Model     `json:"model"`
	Prompt  int       `json:"n_prompt"`
	Predict int       `json:"n_gen"`
	Rounds  int       `json:"rounds"`
	Cold    bool      `json:"cold"`
	Cap     Cap       `json:"cap"`
	Cells   []Cell    `json:"cells"`
	Llama   []Llama   `json:"llama_bench"` // the same, as llama-bench writes it
}

// NewCell sums up the samples of an arm.
func NewCell(a Arm, command string, samples []Sample) Cell {
	c := Cell{Arm: a, Command: command, Samples: samples, Errors: []string{}}
	good := ran(samples)
	c.Runs, c.Failed = len(good), len(samples)-len(good)
	for _, s := range samples {
		if s.Error != "" && !slices.Contains(c.Errors, s.Error) {
			c.Errors = append(c.Errors, s.Error)
		}
	}
	if len(good) == 0 {
		return c
	}
	decode, prompt, first := column(good, decodeRate), column(good, promptRate), column(good, firstToken)
	c.Measured = middle(good).Measured
	c.DecodeRate, c.PromptRate, c.FirstToken = median(decode), median(prompt), median(first)
	for _, s := range good {
		c.PeakAnon, c.PeakRSS, c.Swap = max(c.PeakAnon, s.PeakAnon), max(c.PeakRSS, s.PeakRSS), max(c.Swap, s.Swap)
		c.GroupPeak, c.Cached = max(c.GroupPeak, s.GroupPeak), max(c.Cached, s.Cached)
		c.ReadRetries, c.ReadFailures = max(c.ReadRetries, s.ReadRetries), max(c.ReadFailures, s.ReadFailures)
		if c.Fallback == "" {
			c.Fallback = s.Fallback
		}
	}
	c.RAMBytes, c.Spread = c.Budget, spread(decode)
	c.DecodeCI, c.PromptCI, c.FirstCI = meanInterval(decode), meanInterval(prompt), meanInterval(first)
	return c
}

func decodeRate(s Sample) float64 { return s.DecodeRate }
func promptRate(s Sample) float64 { return s.PromptRate }
func firstToken(s Sample) float64 { return s.FirstToken }

// ran returns the samples that did not fail.
func ran(samples []Sample) (good []Sample) {
	for _, s := range samples {
		if s.Error == "" {
			good = append(good, s)
		}
	}
	return good
}

func column(samples []Sample, f func(Sample) float64) (x []float64) {
	for _, s := range samples {
		x = append(x, f(s))
	}
	return x
}

// middle returns the run whose decode rate is the median, the lower one of two.
func middle(samples []Sample) Sample {
	s := slices.SortedFunc(slices.Values(samples), func(a, b Sample) int { return cmp.Compare(a.DecodeRate, b.DecodeRate) })
	return s[(len(s)-1)/2]
}

// Finish fills in what the cells say together: the rows of llama-bench, and how each cell stands against an earlier one,
// the first that has the same budget, threads and policy, else the first with the same budget, else the first of all.
func (r *Report) Finish() {
	r.Llama = r.llamaRows()
	for i := range r.Cells {
		if i == 0 {
			continue
		}
		c := &r.Cells[i]
		base := &r.Cells[baseline(r.Cells[:i], c.Arm)]
		a, b := rounds(base.Samples, c.Samples)
		c.Against = r.Label(*base)
		if d := paired(column(a, decodeRate), column(b, decodeRate)); d.Ratio != 0 {
			c.DecodeAgainst = &d
		}
		if d := paired(column(a, promptRate), column(b, promptRate)); d.Ratio != 0 {
			c.PromptAgainst = &d
		}
	}
}

func baseline(earlier []Cell, a Arm) int {
	for _, same := range []func(b Arm) bool{
		func(b Arm) bool { return b.RAM == a.RAM && b.Threads == a.Threads && b.Policy == a.Policy },
		func(b Arm) bool { return b.RAM == a.RAM },
	} {
		if i := slices.IndexFunc(earlier, func(c Cell) bool { return same(c.Arm) }); i >= 0 {
			return i
		}
	}
	return 0
}

// rounds returns the samples of both cells for the rounds in which neither failed.
func rounds(a, b []Sample) (pa, pb []Sample) {
	for _, x := range a {
		for _, y := range b {
			if x.Round == y.Round && x.Error == "" && y.Error == "" {
				pa, pb = append(pa, x), append(pb, y)
			}
		}
	}
	return pa, pb
}

// SameTokens returns an ErrOutput unless all runs that did not fail made the same tokens.
func (r *Report) SameTokens() error { return sameTokens(r.Cells) }

// Failure returns an ErrFailed if a run failed.
func (r *Report) Failure() error {
	failed, runs, why := 0, 0, ""
	for _, c := range r.Cells {
		failed, runs = failed+c.Failed, runs+c.Failed+c.Runs
		if why == "" && len(c.Errors) > 0 {
			why = r.Label(c) + ": " + reason(c.Errors[0])
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("bench: %d of %d runs %w: %s", failed, runs, ErrFailed, why)
}

// reason is the error of a run without the words that say that it is one.
func reason(err string) string {
	return strings.TrimPrefix(strings.TrimPrefix(err, "bench: "), "the run "+ErrFailed.Error()+": ")
}

// name says all settings of an arm.
func (a Arm) name() string {
	return fmt.Sprintf("prefetch %s, ram %s, policy %s, %d threads", a.Prefetch, a.RAM, a.Policy, a.Threads)
}

// Label says the settings in which the cell is unlike others; the budget if there are none.
func (r *Report) Label(c Cell) string {
	varies := func(f func(Arm) string) bool {
		return slices.ContainsFunc(r.Cells, func(o Cell) bool { return f(o.Arm) != f(c.Arm) })
	}
	var words []string
	for _, s := range []func(Arm) string{
		func(a Arm) string { return "prefetch " + a.Prefetch },
		func(a Arm) string { return a.RAM },
		func(a Arm) string { return a.Policy },
		func(a Arm) string { return fmt.Sprintf("%d threads", a.Threads) },
	} {
		if varies(s) {
			words = append(words, s(c.Arm))
		}
	}
	if len(words) == 0 {
		return c.RAM
	}
	return strings.Join(words, ", ")
}

// Facts are the lines above the tables: name and value.
func (r *Report) Facts() [][2]string {
	m := r.Machine
	state, limit := "warm: after a pass that is not counted", ""
	if r.Cold {
		state = "cold: a fresh process, the file out of the page cache"
	}
	if r.Cap != CapNone {
		limit = fmt.Sprintf("; budget enforced by %s", r.Cap)
	}
	facts := [][2]string{
		{"model", fmt.Sprintf("%s, %s, %s", filepath.Base(r.Model.File), r.Model.Architecture, expert.FormatBytes(r.Model.Bytes))},
		{"machine", fmt.Sprintf("%s, %d CPUs, %s RAM, Linux %s, load %s", m.CPU, m.CPUs, expert.FormatBytes(m.RAM), m.Kernel, m.Load)},
		{"disk", strings.Trim(m.Disk+", "+m.FileSystem, ", ")},
		{"measured", fmt.Sprintf("prompt of %d tokens, %d decoded, %d runs each in turns; %s%s", r.Prompt, r.Predict, r.Rounds, state, limit)},
		{"program", fmt.Sprintf("epq-uring %s, %s", r.Version, r.Started.Format("2006-01-02 15:04"))},
		{"command", r.Command},
	}
	return facts
}

// A text of fewTokens or more of which less than one in repeatShare is different goes round in circles: English has one in
// two over some hundred tokens.
const (
	fewTokens   = 16
	repeatShare = 4
)

func distinct(tokens []int32) int {
	return len(slices.Compact(slices.Sorted(slices.Values(tokens))))
}

// Notes are what must be said beside the numbers: failures, fallbacks, pages that stayed in the cache.
func (r *Report) Notes() []string {
	var notes []string
	add := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !slices.Contains(notes, s) {
			notes = append(notes, s)
		}
	}
	for _, c := range r.Cells {
		label := r.Label(c)
		if n := c.Runs + c.Failed; n < r.Rounds {
			add("%s: ended after %d of %d runs", label, n, r.Rounds)
		}
		for _, e := range c.Errors {
			add("%s: %d of %d runs failed: %s", label, c.Failed, c.Failed+c.Runs, reason(e))
		}
		if c.ReadRetries+c.ReadFailures > 0 {
			add("%s: %d reads repeated after an error, %d experts given up", label, c.ReadRetries, c.ReadFailures)
		}
		if c.Fallback != "" {
			add("ran %s", c.Fallback)
		}
		if c.Runs > 0 && c.PeakAnon > c.RAMBytes {
			add("%s: the anonymous peak is %d bytes above the budget", label, c.PeakAnon-c.RAMBytes)
		}
		if c.Swap > 0 {
			add("%s: %s were swapped out: the budget is more than the machine has", label, expert.FormatBytes(c.Swap))
		}
		if made, other := len(c.OutputTokens), distinct(c.OutputTokens); made >= fewTokens && other*repeatShare < made {
			add("%s: only %d of %d tokens are different: a text that repeats itself needs fewer experts than others, give another prompt", label, other, made)
		}
		if r.Cold && c.Cached < 0 {
			add("whether the model left the page cache is not known: its file belongs to somebody else")
		}
		if r.Cold && c.Cached > 0 {
			add("%s: %s of the model stayed in the page cache", label, expert.FormatBytes(c.Cached))
		}
	}
	if err := r.SameTokens(); err != nil {
		add("%s", strings.TrimPrefix(err.Error(), "bench: "))
	}
	return notes
}
