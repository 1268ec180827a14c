package engine

import (
	"fmt"

	"github.com/epq-uring/epq-uring/uring"
)

// Recorder takes down which experts a run uses. The engine's loop makes all calls, in the order of the run.
type Recorder interface {
	Use(layer int, ids []int32) // experts of a MoE layer that are about to be used; valid until it returns
	Batch(tokens int)           // a batch of so many tokens is done
	Close() error               // no more calls come
}

// openRecorder makes the recorder that Options.Record asks for.
func (e *Engine) openRecorder() error {
	if e.opt.Record == nil {
		return nil
	}
	var err error
	if e.recorder, err = e.opt.Record(e.catalog, e.plan, e.sizes()); err != nil {
		return fmt.Errorf("engine: trace: %w", err)
	}
	return nil
}

// sizes are the shards' in bytes.
func (e *Engine) sizes() []int64 {
	var s []int64
	for i := range e.files.Len() {
		s = append(s, e.files.Size(uring.FileID(i)))
	}
	return s
}
