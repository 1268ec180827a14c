package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/sim"
)

// traceTo makes the engine record its routes in a file.
func traceTo(o *engine.Options, path string) {
	o.Record = func(cat *expert.Catalog, plan *expert.Plan, sizes []int64) (engine.Recorder, error) {
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		r, err := sim.NewRecorder(f, cat, plan, sizes)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &traceFile{r, f}, nil
	}
}

type traceFile struct {
	*sim.Recorder
	f *os.File
}

// Close implements engine.Recorder.
func (t *traceFile) Close() error {
	if err := errors.Join(t.Recorder.Close(), t.f.Close()); err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	return nil
}

// readTrace reads what run --trace wrote.
func readTrace(path string) (*sim.Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--trace: %w", err)
	}
	defer f.Close()
	t, err := sim.Read(f)
	if err != nil {
		return nil, fmt.Errorf("--trace %s: %w", path, err)
	}
	return t, nil
}

// expected is what the uses of a recorded run hit in a planned arena.
type expected struct {
	HitRate     float64 `json:"expected_hit_rate"`
	HitRateCold float64 `json:"expected_hit_rate_cold"` // the first use of every expert left out
	MiBPerToken float64 `json:"expected_mib_per_token"`
}

func expect(p *expert.Plan, path string, opt pager.Options) (*expected, error) {
	t, err := readTrace(path)
	if err != nil {
		return nil, err
	}
	if err := planned(t, p, path); err != nil {
		return nil, err
	}
	s, err := t.Replay(p.Slots, opt)
	if err != nil {
		return nil, err
	}
	return &expected{s.HitRate(), s.WarmHitRate(), float64(s.BytesRead) / (1 << 20) / float64(max(1, t.Tokens))}, nil
}

// planned refuses a trace whose slots are not those of a plan.
func planned(t *sim.Trace, p *expert.Plan, path string) error {
	same := len(t.Catalog.Classes) == len(p.Classes)
	for i := 0; same && i < len(p.Classes); i++ {
		same = p.Classes[i].SlotBytes == t.Catalog.Classes[i].SlotBytes && p.Classes[i].Experts == t.Catalog.Classes[i].Experts
	}
	if !same {
		return fmt.Errorf("--trace %s: recorded with another model (%d slot sizes, the first for %d experts; here %d and %d): record this one",
			path, len(t.Catalog.Classes), t.Catalog.Classes[0].Experts, len(p.Classes), p.Classes[0].Experts)
	}
	return nil
}

func (e *expected) line() string {
	return fmt.Sprintf("with the trace's uses: %.1f %% hits (%.1f %% without first uses), %.2f MiB read per token", 100*e.HitRate, 100*e.HitRateCold, e.MiBPerToken)
}
