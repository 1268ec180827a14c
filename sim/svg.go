package sim

import (
	"fmt"
	"io"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/chart"
)

// WriteSVG draws the hit rate over the budget, one line per policy.
func WriteSVG(w io.Writer, cells []Cell) error {
	at := map[string]int{}
	l := chart.Lines{X: "memory budget; hit rate of expert uses", Unit: " %", Top: 100, Paper: true}
	for _, c := range cells {
		i, ok := at[c.Policy]
		if !ok {
			i = len(l.Series)
			at[c.Policy] = i
			l.Series = append(l.Series, chart.Series{Name: c.Policy})
		}
		s := &l.Series[i]
		s.Points = append(s.Points, chart.Point{X: float64(c.RAM), Y: 100 * c.HitRate, Tick: expert.FormatBytes(c.RAM)})
	}
	if _, err := io.WriteString(w, l.SVG()); err != nil {
		return fmt.Errorf("sim: svg: %w", err)
	}
	return nil
}
