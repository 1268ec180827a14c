package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/model"
)

// budget is how much memory the process may use, and why.
type budget struct {
	bytes   int64
	boundBy string
	charged bool // page cache counts
	minimal bool // whatever the smallest working budget is
}

func (e *Engine) readBudget() (budget, error) {
	room, err := mem.Room("")
	if err != nil {
		return budget{}, err
	}
	switch strings.ToLower(e.opt.RAM) {
	case "auto":
		by := room.By
		if room.Where != "" {
			by += " (" + room.Where + ")"
		}
		return budget{bytes: room.Bytes, boundBy: by, charged: room.Charged}, nil
	case "min":
		return budget{boundBy: "flag (--ram min)", minimal: true, charged: room.Charged}, nil
	}
	n, err := ParseSize(e.opt.RAM)
	if err != nil {
		return budget{}, fmt.Errorf("engine: --ram: %w", err)
	}
	// In a group the kernel counts page cache whatever the flag says; a budget well below the group's limit leaves it room.
	charged := room.Charged && n > room.Bytes-room.Bytes/8
	return budget{bytes: n, boundBy: "flag (--ram)", charged: charged}, nil
}

// makePlan fixes the context, sizes the model and divides the budget.
func (e *Engine) makePlan() error {
	b, err := e.readBudget()
	if err != nil {
		return err
	}
	switch {
	case e.opt.Context == 0:
		e.opt.Context = min(defaultContext, e.cfg.Context)
	case e.opt.Context > 0:
		e.opt.Context = min(e.opt.Context, e.cfg.Context)
	default:
		e.opt.Context = e.cfg.Context
	}
	e.opt.UBatch = min(e.opt.UBatch, e.opt.Context)
	p, err := e.planFor(b)
	if err != nil {
		return err
	}
	e.plan = p
	return nil
}

// planFor divides a budget for the context that was chosen.
func (e *Engine) planFor(b budget) (*expert.Plan, error) {
	var err error
	e.model, err = model.New(e.file, e.cfg, model.Options{
		Context: e.opt.Context, UBatch: e.opt.UBatch, Sequences: e.opt.Parallel, LogitRows: e.opt.LogitRows,
		TypeK: e.typeK, TypeV: e.typeV, Threads: e.opt.Threads,
	})
	if err != nil {
		return nil, err
	}
	terms := e.terms(b)
	if b.minimal {
		_, err := expert.NewPlan(0, b.boundBy, terms, e.catalog)
		var small *expert.TooSmall
		if !errors.As(err, &small) {
			return nil, err
		}
		b.bytes = small.Minimum
	}
	return expert.NewPlan(b.bytes, b.boundBy, terms, e.catalog)
}

// What the process holds besides the model's own memory, measured on linux/amd64 with Go 1.26 (engine's memory test
// holds them): the Go heap lives in one 64 MiB arena that RLIMIT_DATA counts whole, with tables of the runtime beside it.
const (
	runtimeBytes   = 76 << 20
	threadBytes    = 288 << 10 // stack of 256 KiB, guard page and thread-local storage
	spareThreads   = 8         // runtime: sysmon, signals, system calls that block
	ioBytes        = 1 << 20   // rings and their tables
	growthOfAVocab = 2         // Go strings and maps over the bytes of the text
)

// terms lists what will be held, largest purposes first.
func (e *Engine) terms(b budget) []expert.Term {
	s := e.model.Sizes()
	anonymous := func(name string, bytes int64) expert.Term {
		return expert.Term{Name: name, Bytes: pages(bytes), Kind: expert.Anonymous, Counted: true}
	}
	weights := expert.Term{Name: "resident weights", Bytes: residentBytes(e.model.Resident()), Kind: expert.File, Counted: b.charged}
	if e.opt.Resident == "copy" {
		weights = anonymous("resident weights", weights.Bytes)
	}
	heap := int64(0)
	if e.tok != nil {
		heap = e.tok.Bytes()
	}
	heap += e.headerBytes() * growthOfAVocab
	// The first 48 MiB of heap fit the arena that the runtime term counts.
	heap = max(0, heap-48<<20)
	return []expert.Term{
		weights,
		anonymous("kv cache", s.KV),
		anonymous("recurrent state", s.Recurrent),
		anonymous("compute buffers", s.Scratch),
		anonymous("vectors", s.Vectors),
		anonymous("tokenizer and metadata beyond the runtime's first heap", heap),
		anonymous("go runtime and first heap", runtimeBytes),
		anonymous("thread stacks", int64(e.opt.Threads+spareThreads)*threadBytes),
		anonymous("i/o bookkeeping", ioBytes),
	}
}

// pages rounds up to what the kernel hands out.
func pages(n int64) int64 {
	const page = 4096
	return (n + page - 1) &^ (page - 1)
}

// headerBytes is the size of everything before the tensors' data, over all shards: what metadata and tensor table take.
func (e *Engine) headerBytes() int64 {
	first := map[int]int64{}
	for _, t := range e.file.Tensors() {
		if at, ok := first[t.Shard]; !ok || t.Offset < at {
			first[t.Shard] = t.Offset
		}
	}
	sum := int64(0)
	for _, n := range first {
		sum += n
	}
	return sum
}
