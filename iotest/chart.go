package iotest

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/epq-uring/epq-uring/internal/chart"
)

// series are the depths of one backend, kind of pages and block size, each a line.
func (r *Report) series(value func(Point) float64) []chart.Series {
	var list []chart.Series
	for _, j := range r.Jobs {
		if j.job.backend == "null" || j.Read.IOBytes == 0 {
			continue
		}
		name := j.job.backend + " " + sizeWord(j.job.bs)
		if !j.job.huge {
			name += " 4k pages"
		}
		at := slices.IndexFunc(list, func(s chart.Series) bool { return s.Name == name })
		if at < 0 {
			at, list = len(list), append(list, chart.Series{Name: name})
		}
		p := j.job.point()
		list[at].Points = append(list[at].Points, chart.Point{X: math.Log2(float64(p.InFlight)), Y: value(p), Tick: sizeWord(p.InFlight)})
	}
	return list
}

// charts are bandwidth and median latency over the bytes in flight.
func (r *Report) charts(paper bool) (bandwidth, latency string) {
	const axis = "bytes in flight (block size x depth)"
	return chart.Lines{Title: "bandwidth, GB/s", X: axis, Series: r.series(func(p Point) float64 { return p.Bandwidth / 1e9 }), Paper: paper}.SVG(),
		chart.Lines{Title: "median latency, us", X: axis, Series: r.series(func(p Point) float64 { return p.P50 / 1e3 }), Paper: paper}.SVG()
}

// WriteSVG draws bandwidth and median latency over the bytes in flight, one above the other.
func (r *Report) WriteSVG(w io.Writer) error {
	bandwidth, latency := r.charts(true)
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 770\">\n"+
		"<svg width=\"760\" height=\"380\">\n%s</svg>\n<svg y=\"390\" width=\"760\" height=\"380\">\n%s</svg>\n</svg>\n", bandwidth, latency)
	return err
}

// WriteHTML writes a page with the charts, the table and the verdict.
func (r *Report) WriteHTML(w io.Writer) error {
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		return err
	}
	bandwidth, latency := r.charts(false)
	title := html.EscapeString("iotest " + r.Path)
	_, err := fmt.Fprintf(w, "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>%s</title>\n<body style=\"font-family:sans-serif;max-width:60em;margin:2em auto\">\n"+
		"<h1>%s</h1>\n%s<pre style=\"overflow:auto\">%s</pre>\n</body></html>\n", title, title, bandwidth+latency, html.EscapeString(text.String()))
	return err
}
