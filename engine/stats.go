package engine

import (
	"context"
	"time"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/pager"
)

// Stats count from the start of the engine. Differences of two describe what lay between.
type Stats struct {
	Pager    pager.Stats
	Prefetch PrefetchStats
	Drafts   DraftStats
	Process  mem.Process
	Forwards int64         // batches computed
	Busy     time.Duration // in forward passes, waiting for reads included
}

// Stats reads the counters between two batches.
func (e *Engine) Stats() (Stats, error) {
	var s Stats
	err := e.loop.do(context.Background(), func() {
		s.Pager, s.Forwards, s.Busy = e.loop.pager.Stats(), e.loop.forwards, e.loop.busy
		s.Drafts = e.loop.drafting.stats
		if a := e.loop.experts.ahead; a != nil {
			s.Prefetch = PrefetchStats{Stats: a.Stats(), PerLayer: e.loop.pager.GuessStats(nil)}
		}
	})
	if err != nil {
		return s, err
	}
	s.Process, err = mem.ReadProcess()
	return s, err
}
