package bench

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/epq-uring/epq-uring/expert"
)

// ReadReport reads what `bench --json` wrote. An ErrInput is something else.
func ReadReport(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("bench: %s: %w: %w", path, ErrInput, err)
	}
	if len(r.Cells) == 0 {
		return nil, fmt.Errorf("bench: %s: %w: it has no cells; bench --json writes such files", path, ErrInput)
	}
	return r, nil
}

// Pair is a cell that both reports have: B over A.
type Pair struct {
	Arm
	A          Cell       `json:"a"`
	B          Cell       `json:"b"`
	Decode     Difference `json:"decode"`
	Prompt     Difference `json:"prompt"`
	FirstToken Difference `json:"first_token"`
}

// Comparison is two reports side by side.
type Comparison struct {
	Pairs    []Pair   `json:"pairs"`
	Warnings []string `json:"warnings"` // why the numbers may not be comparable, and cells that only one has
}

// CompareReports matches the cells of two reports by their settings. The runs are of different times: a difference counts
// only when the spread of both leaves it.
func CompareReports(a, b *Report) Comparison {
	c := Comparison{Pairs: []Pair{}, Warnings: []string{}}
	warn := func(what, x, y string) {
		if x != y {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s: %s there, %s here", what, x, y))
		}
	}
	warn("model", modelText(a.Model), modelText(b.Model))
	warn("processor", a.Machine.CPU, b.Machine.CPU)
	warn("CPUs", fmt.Sprint(a.Machine.CPUs), fmt.Sprint(b.Machine.CPUs))
	warn("prompt and answer", fmt.Sprintf("%d and %d tokens", a.Prompt, a.Predict), fmt.Sprintf("%d and %d tokens", b.Prompt, b.Predict))
	warn("cold", fmt.Sprint(a.Cold), fmt.Sprint(b.Cold))
	warn("cap", string(a.Cap), string(b.Cap))
	seen := map[Arm]bool{}
	for _, x := range a.Cells {
		found := false
		for _, y := range b.Cells {
			if x.Arm == y.Arm {
				found, seen[x.Arm] = true, true
				c.Pairs = append(c.Pairs, pair(x, y))
			}
		}
		if !found {
			c.Warnings = append(c.Warnings, x.name()+": only in the first file")
		}
	}
	for _, y := range b.Cells {
		if !seen[y.Arm] {
			c.Warnings = append(c.Warnings, y.name()+": only in the second file")
		}
	}
	return c
}

func modelText(m Model) string {
	return fmt.Sprintf("%s of %s", m.Architecture, expert.FormatBytes(m.Bytes))
}

func pair(a, b Cell) Pair {
	p := Pair{Arm: a.Arm, A: a, B: b}
	for _, m := range []struct {
		d *Difference
		f func(Sample) float64
	}{{&p.Decode, decodeRate}, {&p.Prompt, promptRate}, {&p.FirstToken, firstToken}} {
		*m.d = unpaired(column(ran(a.Samples), m.f), column(ran(b.Samples), m.f))
	}
	p.A.Samples, p.B.Samples = nil, nil // the differences are what came of them
	return p
}

// Table puts A and B side by side.
func (c Comparison) Table() Table {
	t := Table{Header: []string{"settings", "decode tok/s", "", "B / A", "prompt tok/s", "", "B / A", "first token s", "", "B / A", "hits %", "", "MiB/token", ""}}
	for _, p := range c.Pairs {
		t.Rows = append(t.Rows, []string{p.name(), figure(p.A.DecodeRate), figure(p.B.DecodeRate), p.Decode.text(), figure(p.A.PromptRate), figure(p.B.PromptRate), p.Prompt.text(),
			figure(p.A.FirstToken), figure(p.B.FirstToken), p.FirstToken.text(), percent(p.A.HitRate), percent(p.B.HitRate), figure(p.A.MiBPerToken), figure(p.B.MiBPerToken)})
	}
	return t
}
