package bench

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/chart"
)

//go:embed page.html
var pageSource string

var page = template.Must(template.New("page").Parse(pageSource))

// headline is one large figure on top of the page.
type headline struct{ Value, What string }

// WriteHTML writes the report as one page that needs nothing else: charts are part of it, there are no scripts.
func (r *Report) WriteHTML(w io.Writer) error {
	var charts []template.HTML
	for _, svg := range r.charts() {
		charts = append(charts, template.HTML(svg)) // made by package chart, which escapes every text
	}
	err := page.Execute(w, map[string]any{
		"Headlines": r.headlines(), "Facts": r.Facts(), "Tables": r.Tables(), "Notes": r.Notes(), "Charts": charts, "Title": "epq-uring bench",
	})
	if err != nil {
		return fmt.Errorf("bench: page: %w", err)
	}
	return nil
}

// headlines are those of the fastest cell.
func (r *Report) headlines() []headline {
	best := -1
	for i, c := range r.Cells {
		if c.Runs > 0 && (best < 0 || c.DecodeRate > r.Cells[best].DecodeRate) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	c := r.Cells[best]
	return []headline{
		{figure(c.DecodeRate), "tokens per second decoded (" + r.Label(c) + ")"},
		{figure(c.PromptRate), "tokens of prompt per second"},
		{percent(c.HitRate) + " %", "of expert uses found in the arena"},
		{figure(c.MiBPerToken) + " MiB", "read from the SSD per token"},
		{expert.FormatBytes(c.PeakAnon), "anonymous memory at most, of " + expert.FormatBytes(c.RAMBytes)},
	}
}

// measure is a figure that gets a chart of its own.
type measure struct {
	title, unit string
	top         float64
	value       func(Measured) float64
}

var measures = []measure{
	{"Decode, tokens per second", "", 0, func(m Measured) float64 { return m.DecodeRate }},
	{"Prompt, tokens per second", "", 0, func(m Measured) float64 { return m.PromptRate }},
	{"Hits, per cent of expert uses", " %", 100, func(m Measured) float64 { return 100 * m.HitRate }},
	{"Read from the SSD, MiB per token", "", 0, func(m Measured) float64 { return m.MiBPerToken }},
}

// extent is the slowest and the fastest run: what is drawn around a median, for an interval of few runs would dwarf it.
func (m measure) extent(c Cell) (low, high float64) {
	runs := column(ran(c.Samples), func(s Sample) float64 { return m.value(s.Measured) })
	if len(runs) < 2 {
		return 0, 0
	}
	return slices.Min(runs), slices.Max(runs)
}

// charts draws each measure over the budget, or as bars where there is but one budget, and where the time went.
func (r *Report) charts() []string {
	var cells []Cell
	var budgets []int64
	for _, c := range r.Cells {
		if c.Runs == 0 {
			continue
		}
		cells = append(cells, c)
		if !slices.Contains(budgets, c.RAMBytes) {
			budgets = append(budgets, c.RAMBytes)
		}
	}
	var svg []string
	for _, m := range measures {
		if len(budgets) > 1 {
			svg = append(svg, r.curve(m, cells).SVG())
		} else {
			svg = append(svg, r.bars(m, cells).SVG())
		}
	}
	split := chart.Bars{Title: "Where the time went, seconds", Parts: []string{"compute", "waiting for reads", "other"}}
	for _, c := range cells {
		t := c.Split
		split.Bars = append(split.Bars, chart.Bar{Label: r.Label(c), Parts: []float64{t.Compute, t.IOWait, t.Other}, Text: figure(t.Compute+t.IOWait+t.Other) + " s"})
	}
	svg = append(svg, split.SVG())
	if l := r.recall(cells); len(l.Series) > 0 {
		svg = append(svg, l.SVG())
	}
	return svg
}

// recall is a line per cell that predicts experts: how well, layer by layer.
func (r *Report) recall(cells []Cell) chart.Lines {
	l := chart.Lines{Title: "Experts named one layer ahead, per cent", X: "MoE layer", Unit: " %", Top: 100}
	for _, c := range cells {
		if c.Ahead == nil {
			continue
		}
		s := chart.Series{Name: r.Label(c)}
		every := len(c.Ahead.Layers)/16 + 1
		for i, layer := range c.Ahead.Layers {
			share, ok := layer.Recall["1"]
			if !ok {
				continue
			}
			p := chart.Point{X: float64(i), Y: 100 * share[0], Hint: fmt.Sprintf("%s, layer %d: %s %%", s.Name, i, percent(share[0]))}
			if i%every == 0 {
				p.Tick = fmt.Sprint(i)
			}
			s.Points = append(s.Points, p)
		}
		if len(s.Points) > 0 {
			l.Series = append(l.Series, s)
		}
	}
	return l
}

func (r *Report) curve(m measure, cells []Cell) chart.Lines {
	l := chart.Lines{Title: m.title, X: "memory budget", Unit: m.unit, Top: m.top}
	at := map[string]int{}
	for _, c := range cells {
		name := r.lineName(c)
		i, ok := at[name]
		if !ok {
			i = len(l.Series)
			at[name] = i
			l.Series = append(l.Series, chart.Series{Name: name})
		}
		p := chart.Point{X: float64(c.RAMBytes), Y: m.value(c.Measured), Tick: expert.FormatBytes(c.RAMBytes)}
		p.Low, p.High = m.extent(c)
		l.Series[i].Points = append(l.Series[i].Points, p)
	}
	for _, s := range l.Series {
		slices.SortFunc(s.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return l
}

// lineName is the label without the budget, which is the axis.
func (r *Report) lineName(c Cell) string {
	var words []string
	for _, w := range strings.Split(r.Label(c), ", ") {
		if w != c.RAM {
			words = append(words, w)
		}
	}
	if len(words) == 0 {
		return "prefetch " + c.Prefetch
	}
	return strings.Join(words, ", ")
}

func (r *Report) bars(m measure, cells []Cell) chart.Bars {
	b := chart.Bars{Title: m.title}
	for _, c := range cells {
		v := m.value(c.Measured)
		bar := chart.Bar{Label: r.Label(c), Parts: []float64{v}, Text: figure(v) + m.unit}
		if low, high := m.extent(c); low < high {
			bar.Low, bar.High = low, high
			bar.Text += " (" + figure(low) + ".." + figure(high) + ")"
		}
		b.Bars = append(b.Bars, bar)
	}
	return b
}
