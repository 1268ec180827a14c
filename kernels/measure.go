package kernels

import (
	"math/rand/v2"
	"time"

	"github.com/epq-uring/epq-uring/gguf"
)

// Measure returns how many bytes of weights of type t the set multiplies by one column per second, on the calling
// thread and from the second-level cache: the best of many short runs within the given time.
func (s *Set) Measure(t gguf.Type, limit time.Duration) (bytesPerSecond float64, err error) {
	form, err := FormOf(t)
	if err != nil {
		return 0, err
	}
	const cols = 2048
	rows := 1
	if row, err := t.RowBytes(cols); err == nil {
		rows = max(1, 384<<10/int(row))
	}
	w := randomMatrix(rand.New(rand.NewPCG(1, uint64(t))), t, rows, cols)
	a, y := checkInput(s, form, cols, 1), make([]float32, rows)
	p := NewPanel(nil, 1, cols, 0)
	s.Gather(p, a, nil, 1, form)
	best, end := time.Duration(1<<62), time.Now().Add(limit)
	for {
		start := time.Now()
		s.Mul(&w, 0, rows, p, y, rows)
		best = min(best, max(time.Since(start), 1))
		if time.Now().After(end) {
			return float64(len(w.Data)) / best.Seconds(), nil
		}
	}
}
