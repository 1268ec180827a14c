package bench

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/epq-uring/epq-uring/expert"
)

// Table is rows of words under a header; the first column names the row.
type Table struct {
	Title  string
	Header []string
	Rows   [][]string
}

// Tables are the report's figures: speed and reads; memory and what is behind the speed.
func (r *Report) Tables() []Table {
	speed := Table{Title: "Speed", Header: []string{"settings", "decode tok/s", "95 %", "against " + r.base(), "prompt tok/s", "95 %", "against",
		"first token s", "hits %", "without first uses %", "SSD MiB/token", "runs"}}
	inner := Table{Title: "Memory and reads", Header: []string{"settings", "budget", "arena", "slots", "evictions", "device read", "prefetch precision %", "recall %", "wasted",
		"anonymous peak", "RSS peak", "group peak", "swap", "compute %", "I/O wait %", "other %", "errors"}}
	for _, c := range r.Cells {
		label := r.Label(c)
		if c.Runs == 0 {
			why := "failed"
			if c.Failed == 0 {
				why = "not run"
			}
			speed.Rows = append(speed.Rows, fill(len(speed.Header), label, why))
			inner.Rows = append(inner.Rows, fill(len(inner.Header), label, why))
			continue
		}
		speed.Rows = append(speed.Rows, []string{label, figure(c.DecodeRate), interval(c.DecodeCI), c.DecodeAgainst.text(), figure(c.PromptRate), interval(c.PromptCI),
			c.PromptAgainst.text(), figure(c.FirstToken), percent(c.HitRate), percent(c.HitRateCold), figure(c.MiBPerToken), fmt.Sprint(c.Runs)})
		group := "-"
		if c.GroupPeak > 0 {
			group = expert.FormatBytes(c.GroupPeak)
		}
		wall := max(c.Split.Compute+c.Split.IOWait+c.Split.Other, 1e-9)
		inner.Rows = append(inner.Rows, []string{label, expert.FormatBytes(c.RAMBytes), expert.FormatBytes(c.Arena), fmt.Sprint(c.Slots), fmt.Sprint(c.Evictions),
			expert.FormatBytes(c.DeviceRead), percent(c.PrefetchPrecision), percent(c.PrefetchRecall), expert.FormatBytes(c.PrefetchWasted), expert.FormatBytes(c.PeakAnon),
			expert.FormatBytes(c.PeakRSS), group, expert.FormatBytes(c.Swap), percent(c.Split.Compute / wall), percent(c.Split.IOWait / wall), percent(c.Split.Other / wall),
			fmt.Sprint(int64(c.Failed) + c.ReadRetries + c.ReadFailures)})
	}
	return []Table{speed, inner}
}

// base names what the cells are compared with, where that is one and the same.
func (r *Report) base() string {
	name := ""
	for _, c := range r.Cells {
		if c.Against == "" {
			continue
		}
		if name != "" && name != c.Against {
			return "first of its budget"
		}
		name = c.Against
	}
	if name == "" {
		return "others"
	}
	return name
}

func fill(n int, words ...string) []string {
	for len(words) < n {
		words = append(words, "-")
	}
	return words
}

func (d *Difference) text() string {
	switch {
	case d == nil:
		return "-"
	case d.Interval == nil:
		return fmt.Sprintf("x%.2f (one run)", d.Ratio)
	case d.Noise:
		return fmt.Sprintf("x%.2f noise (%s)", d.Ratio, interval(d.Interval))
	}
	return fmt.Sprintf("x%.2f (%s)", d.Ratio, interval(d.Interval))
}

func interval(i *Interval) string {
	if i == nil {
		return "-"
	}
	if i.High > 100*i.Low { // digits would say more than is known
		return "wide"
	}
	return figure(i.Low) + ".." + figure(i.High)
}

// figure prints three digits, and all before the point.
func figure(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1 || v <= -1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func percent(v float64) string { return fmt.Sprintf("%.1f", 100*v) }

// WriteText prints tables for a terminal: columns of one width, numbers to the right.
func WriteText(w io.Writer, facts [][2]string, tables []Table, notes []string) error {
	var s strings.Builder
	for _, f := range facts {
		fmt.Fprintf(&s, "%-9s %s\n", f[0], f[1])
	}
	for _, t := range tables {
		if t.Title != "" {
			fmt.Fprintf(&s, "\n%s\n", t.Title)
		}
		wide := make([]int, len(t.Header))
		for _, row := range append([][]string{t.Header}, t.Rows...) {
			for i, cell := range row {
				wide[i] = max(wide[i], utf8.RuneCountInString(cell))
			}
		}
		for _, row := range append([][]string{t.Header}, t.Rows...) {
			for i, cell := range row {
				pad := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(cell))
				if i == 0 {
					s.WriteString(cell + pad)
				} else {
					s.WriteString("  " + pad + cell)
				}
			}
			s.WriteString("\n")
		}
	}
	for _, n := range notes {
		fmt.Fprintf(&s, "note: %s\n", n)
	}
	_, err := io.WriteString(w, s.String())
	return err
}

// WriteMarkdown prints tables for a page of text.
func WriteMarkdown(w io.Writer, facts [][2]string, tables []Table, notes []string) error {
	var s strings.Builder
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, f := range facts {
		fmt.Fprintf(&s, "- %s: %s\n", f[0], f[1])
	}
	for _, t := range tables {
		if t.Title != "" {
			fmt.Fprintf(&s, "\n## %s\n", t.Title)
		}
		s.WriteString("\n")
		line := func(words []string) {
			for _, c := range words {
				s.WriteString("| " + cell.Replace(c) + " ")
			}
			s.WriteString("|\n")
		}
		line(t.Header)
		s.WriteString("| --- " + strings.Repeat("| ---: ", len(t.Header)-1) + "|\n")
		for _, row := range t.Rows {
			line(row)
		}
	}
	s.WriteString("\n")
	for _, n := range notes {
		fmt.Fprintf(&s, "- %s\n", n)
	}
	_, err := io.WriteString(w, s.String())
	return err
}
