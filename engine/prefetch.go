package engine

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/prefetch"
)

// PrefetchStats say what was guessed and what became of it.
type PrefetchStats struct {
	prefetch.Stats
	PerLayer []pager.GuessStats // per MoE layer; their sum is pager.Stats.Guess
}

// Sub returns what was counted since an earlier reading.
func (s PrefetchStats) Sub(earlier PrefetchStats) PrefetchStats {
	s.Stats = s.Stats.Sub(earlier.Stats)
	for i := range min(len(s.PerLayer), len(earlier.PerLayer)) {
		s.PerLayer[i] = s.PerLayer[i].Sub(earlier.PerLayer[i])
	}
	return s
}

// Prefetch is the mode asked for.
func (e *Engine) Prefetch() string { return e.opt.Prefetch }

// learns says whether the mode keeps a history of routes, which is a term of the plan.
func (e *Engine) learns() bool {
	switch e.opt.Prefetch {
	case prefetch.Off, prefetch.Router, prefetch.Oracle:
		return false
	}
	return true
}

// historyBytes is what that takes.
func (e *Engine) historyBytes() int64 {
	if !e.learns() {
		return 0
	}
	return int64(prefetch.HistoryWords(e.main)) * 4
}

// allocHistory makes the memory that the prefetcher learns in.
func (e *Engine) allocHistory() error {
	n := e.historyBytes()
	if n == 0 {
		return nil
	}
	block, err := mem.Alloc("prefetch history", int(n))
	if err != nil {
		return err
	}
	e.blocks = append(e.blocks, block)
	e.history = unsafe.Slice((*uint32)(unsafe.Pointer(&block.Bytes()[0])), n/4)
	return nil
}

const historyMagic = "epqnext1"

// historyPath is where the history of a model is kept, beside the list of what is hot.
func historyPath(w *warmFile) string {
	return filepath.Join(filepath.Dir(w.path), "routes-"+strings.TrimPrefix(filepath.Base(w.path), "warm-"))
}

// readHistory takes up what earlier runs learned; with an error the history stays empty.
func (e *Engine) readHistory(w *warmFile) error {
	if e.history == nil {
		return nil
	}
	path := historyPath(w)
	b, err := readSmall(path, sealBytes+4*len(e.history))
	if err != nil {
		return err
	}
	body, err := unseal(filepath.Base(path), historyMagic, w.id, b)
	if err != nil {
		return err
	}
	for i := range e.history {
		e.history[i] = binary.LittleEndian.Uint32(body[4*i:])
	}
	return nil
}

// keepHistory writes the history for the next run. One that cannot be written costs only some guesses.
func (e *Engine) keepHistory(w *warmFile) {
	if e.history == nil {
		return
	}
	body := make([]byte, 0, 4*len(e.history))
	for _, v := range e.history {
		body = binary.LittleEndian.AppendUint32(body, v)
	}
	_ = replaceFile(historyPath(w), seal(historyMagic, w.id, body))
}

// newPrefetcher makes what guesses for the arena; nil where nothing shall be read ahead.
func (e *Engine) newPrefetcher(arena prefetch.Arena) (*prefetch.Prefetcher, error) {
	if e.opt.Prefetch == prefetch.Off {
		return nil, nil
	}
	o := prefetch.Options{Mode: e.opt.Prefetch, Score: e.model.Foresee, Arena: arena, History: e.history}
	if e.opt.Prefetch == prefetch.Oracle {
		if e.opt.Future == nil {
			return nil, fmt.Errorf("engine: --prefetch oracle: no recorded run: %w", ErrOption)
		}
		var err error
		if o.Future, err = e.opt.Future(e.catalog); err != nil {
			return nil, err
		}
		o.Future = slices.DeleteFunc(o.Future, func(u prefetch.Use) bool { return int(u.Layer) >= len(e.main.Layers) })
	}
	return prefetch.New(e.catalog.First(len(e.main.Layers)), o)
}

// Future reads the uses of a recorded run of the model of cat, for Options.Prefetch "oracle".
type Future func(cat *expert.Catalog) ([]prefetch.Use, error)
