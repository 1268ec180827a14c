package sim

import (
	"fmt"
	"io"
	"strings"
)

// WriteSVG draws the hit rate over the budget, one line per policy.
func WriteSVG(w io.Writer, cells []Cell) error {
	const width, height, left, top, right, bottom = 760, 420, 60, 20, 140, 50
	var names []string
	lines := map[string][]Cell{}
	low, high := int64(0), int64(1)
	for i, c := range cells {
		if lines[c.Policy] == nil {
			names = append(names, c.Policy)
		}
		lines[c.Policy] = append(lines[c.Policy], c)
		if i == 0 {
			low, high = c.RAM, c.RAM
		}
		low, high = min(low, c.RAM), max(high, c.RAM)
	}
	x := func(ram int64) float64 {
		return left + float64(ram-low)/float64(max(1, high-low))*(width-left-right)
	}
	y := func(rate float64) float64 { return top + (1-rate)*(height-top-bottom) }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for i := range 6 {
		rate := float64(i) / 5
		fmt.Fprintf(&s, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n", left, y(rate), width-right, left-6, y(rate)+4, 100*rate)
	}
	for i, name := range names {
		colour := fmt.Sprintf("hsl(%d 70%% 40%%)", i*360/len(names))
		var points []string
		for _, c := range lines[name] {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(c.RAM), y(c.HitRate)))
			fmt.Fprintf(&s, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x(c.RAM), y(c.HitRate), colour)
		}
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.Join(points, " "), colour)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-right+12, top+16*(i+1), colour, name)
	}
	for _, c := range lines[firstOf(names)] {
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%.1f GiB</text>`, x(c.RAM), height-bottom+18, float64(c.RAM)/(1<<30))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle">memory budget; hit rate of expert uses</text></svg>`+"\n", (left+width-right)/2, height-10)
	if _, err := io.WriteString(w, s.String()); err != nil {
		return fmt.Errorf("sim: svg: %w", err)
	}
	return nil
}

func firstOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}
