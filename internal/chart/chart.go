// Package chart draws lines and bars as SVG: one self-contained element, readable without scripts or styles from
// elsewhere. Text and grid take the colour of the page around them, so that a dark page keeps them readable.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Point is one measured value. Low and High are the ends of the range around it; both 0: none is drawn.
type Point struct {
	X, Y      float64
	Low, High float64
	Tick      string // what stands below the axis at X; "": nothing
	Hint      string // shown when the mouse rests on the point; "": the value
}

// Series are the points of one line, in the order of X.
type Series struct {
	Name   string
	Points []Point
}

// Lines is a chart of values over one axis.
type Lines struct {
	Title  string
	X, Y   string  // what the axes mean
	Unit   string  // of Y's ticks, after the number
	Top    float64 // of the Y axis; 0: from the values
	Series []Series
	Paper  bool // a white ground of its own, for a file that stands alone
}

const (
	width, height            = 760, 380
	left, top, right, bottom = 62, 36, 170, 52
	inset                    = 24 // of the outermost points
)

// SVG draws the chart.
func (l Lines) SVG() string {
	low, high, most := l.ranges()
	step := niceStep(most)
	most = max(math.Ceil(most/step-1e-9)*step, step)
	x := func(v float64) float64 {
		if high == low {
			return left + float64(width-left-right)/2
		}
		return left + inset + (v-low)/(high-low)*(width-left-right-2*inset)
	}
	y := func(v float64) float64 { return top + (1-v/most)*(height-top-bottom) }
	var s strings.Builder
	open(&s, width, height, l.Title, l.Paper)
	for v := 0.0; v <= most+step/2; v += step {
		fmt.Fprintf(&s, `<path d="M%d %.1fH%d" stroke="currentColor" stroke-opacity=".15"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, y(v), width-right, left-6, y(v)+4, html.EscapeString(number(v)+l.Unit))
	}
	for i, series := range l.Series {
		l.line(&s, series, Colour(i), x, y)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+14, top+8+17*i, Colour(i), html.EscapeString(series.Name))
	}
	for at, tick := range l.ticks() {
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x(at), height-bottom+18, html.EscapeString(tick))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (left+width-right)/2, height-10, html.EscapeString(l.X))
	s.WriteString("</svg>\n")
	return s.String()
}

func (l Lines) line(s *strings.Builder, series Series, colour string, x, y func(float64) float64) {
	var path []string
	for _, p := range series.Points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.X), y(p.Y)))
	}
	fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.Join(path, " "), colour)
	for _, p := range series.Points {
		if p.Low != 0 || p.High != 0 {
			fmt.Fprintf(s, `<path d="M%.1f %.1fV%.1f" stroke="%s" stroke-width="5" stroke-opacity=".3"/>`, x(p.X), y(max(p.Low, 0)), y(p.High), colour)
		}
		hint := p.Hint
		if hint == "" {
			hint = fmt.Sprintf("%s, %s: %s%s", series.Name, p.Tick, number(p.Y), l.Unit)
		}
		fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s</title></circle>`+"\n", x(p.X), y(p.Y), colour, html.EscapeString(hint))
	}
}

// ranges returns the ends of the X axis and the largest value.
func (l Lines) ranges() (low, high, most float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range l.Series {
		for _, p := range s.Points {
			low, high, most = min(low, p.X), max(high, p.X), max(most, p.Y, p.High)
		}
	}
	if low > high {
		low, high = 0, 0
	}
	if l.Top > 0 {
		most = l.Top
	}
	return low, high, most
}

// ticks returns a text for every place on the X axis that has one.
func (l Lines) ticks() map[float64]string {
	t := map[float64]string{}
	for _, s := range l.Series {
		for _, p := range s.Points {
			if p.Tick != "" {
				t[p.X] = p.Tick
			}
		}
	}
	return t
}

// Bar is one row: parts side by side, from left to right.
type Bar struct {
	Label     string
	Parts     []float64
	Low, High float64 // ends of the range of the whole; both 0: none
	Text      string  // stands after the bar
}

// Bars is a chart of horizontal bars.
type Bars struct {
	Title string
	Parts []string // names of the parts; one or none: no legend
	Bars  []Bar
}

// SVG draws the chart.
func (b Bars) SVG() string {
	const row, label, after = 26, 210, 150
	head, most := 34, 0.0
	if len(b.Parts) > 1 {
		head += 20
	}
	for _, r := range b.Bars {
		most = max(most, sum(r.Parts), r.High)
	}
	scale := float64(width-label-after) / max(most, math.SmallestNonzeroFloat32)
	var s strings.Builder
	open(&s, width, head+row*len(b.Bars)+10, b.Title, false)
	if len(b.Parts) > 1 {
		for i, name := range b.Parts {
			fmt.Fprintf(&s, `<rect x="%d" y="34" width="11" height="11" rx="2" fill="%s"/><text x="%d" y="44">%s</text>`+"\n", label+150*i, Colour(i), label+16+150*i, html.EscapeString(name))
		}
	}
	for i, r := range b.Bars {
		y, x := head+row*i, float64(label)
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`, label-8, y+17, html.EscapeString(r.Label))
		for k, part := range r.Parts {
			fmt.Fprintf(&s, `<rect x="%.1f" y="%d" width="%.1f" height="18" rx="2" fill="%s"/>`, x, y+4, max(part*scale, 0), Colour(k))
			x += part * scale
		}
		if r.Low != 0 || r.High != 0 {
			fmt.Fprintf(&s, `<path d="M%.1f %dH%.1f" stroke="currentColor" stroke-width="2"/>`, label+max(r.Low, 0)*scale, y+13, label+r.High*scale)
		}
		fmt.Fprintf(&s, `<text x="%.1f" y="%d">%s</text>`+"\n", max(x, label+r.High*scale)+8, y+17, html.EscapeString(r.Text))
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func open(s *strings.Builder, w, h int, title string, paper bool) {
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="currentColor" role="img">`+"\n", w, h)
	if paper {
		fmt.Fprintf(s, `<rect width="%d" height="%d" fill="white"/>`+"\n", w, h)
	}
	if title != "" {
		fmt.Fprintf(s, `<text x="8" y="18" font-size="14" font-weight="600">%s</text>`+"\n", html.EscapeString(title))
	}
}

// Colour is the i-th of a row of colours that tell lines apart on light and dark ground; it goes round.
func Colour(i int) string {
	return [...]string{"#2f7ed8", "#e07b1a", "#2a9d6f", "#c2427f", "#8a63d2", "#b0912b", "#4aa3b8", "#a5553a"}[i%8]
}

// niceStep is the distance of ticks, of the form 1, 2 or 5 times a power of ten, that makes four to nine of them.
func niceStep(most float64) float64 {
	if !(most > 0) || math.IsInf(most, 1) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most)))
	for _, s := range []float64{0.2, 0.5, 1} {
		if most/(s*unit) <= 8 {
			return s * unit
		}
	}
	return 2 * unit
}

func number(v float64) string {
	s := fmt.Sprintf("%.4g", v)
	if strings.ContainsRune(s, 'e') {
		s = fmt.Sprintf("%.0f", v)
	}
	return s
}

func sum(v []float64) (t float64) {
	for _, x := range v {
		t += x
	}
	return t
}
