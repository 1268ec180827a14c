package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
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
