package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// wellFormed reads the whole text as XML.
func wellFormed(t *testing.T, s string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(s))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in %s", err, s)
		}
	}
}

func TestLines(t *testing.T) {
	l := Lines{Title: "a < b & c", X: "RAM", Unit: " %", Top: 100, Paper: true, Series: []Series{
		{"one", []Point{{X: 1, Y: 0, Tick: "1"}, {X: 3, Y: 100, Low: 90, High: 100, Tick: "3", Hint: "<here>"}}},
		{"two", []Point{{X: 2, Y: 50, Tick: "2"}}},
	}}
	s := l.SVG()
	wellFormed(t, s)
	if n := strings.Count(s, "<circle"); n != 3 {
		t.Errorf("%d points of 3", n)
	}
	// The points go from 86 to 566 and from 36 (100 %) to 328 (0 %).
	for _, want := range []string{`points="86.0,328.0 566.0,36.0"`, `points="326.0,182.0"`, "a &lt; b &amp; c", "&lt;here&gt;", ">100 %<", `fill="white"`} {
		if !strings.Contains(s, want) {
			t.Errorf("no %s in %s", want, s)
		}
	}
	wellFormed(t, Lines{}.SVG())
	wellFormed(t, Lines{Series: []Series{{"same place", []Point{{X: 5}, {X: 5}}}}}.SVG())
}

func TestBars(t *testing.T) {
	s := Bars{Title: "time", Parts: []string{"compute", "wait"}, Bars: []Bar{
		{Label: "off", Parts: []float64{1, 3}, Text: "4 s"}, {Label: "on <", Parts: []float64{1, 1}, Low: 1.5, High: 2.5},
	}}.SVG()
	wellFormed(t, s)
	// 400 wide for the longest bar, so 100 for a unit.
	for _, want := range []string{`x="210.0" y="58" width="100.0"`, `x="310.0" y="58" width="300.0"`, "on &lt;", "M360.0 93H460.0", ">wait<"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %s in %s", want, s)
		}
	}
	wellFormed(t, Bars{}.SVG())
}

func TestNiceStep(t *testing.T) {
	for _, c := range []struct{ most, want float64 }{{100, 20}, {1, 0.2}, {7.4, 1}, {39, 5}, {0, 1}, {1500, 200}, {8, 1}, {8.5, 2}, {0.03, 0.005}} {
		if got := niceStep(c.most); got < c.want*0.999 || got > c.want*1.001 {
			t.Errorf("to %g: steps of %g, want %g", c.most, got, c.want)
		}
	}
}
