// Package engine loads a model into a memory budget and runs it: one loop on one thread owns everything that changes
// (pager, ring, caches, sequences), callers hand in requests and get back text.
package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/model"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/tokenizer"
	"github.com/epq-uring/epq-uring/uring"
)

// Engine is a loaded model. Its methods may be called from any goroutine.
type Engine struct {
	opt  Options
	file *gguf.File
	cfg  model.Config
	plan *expert.Plan
	tok  *tokenizer.Tokenizer
	chat *chat.Template
	lost []uring.Loss

	chatErr error // why the template cannot be used

	model    *model.Model
	set      *kernels.Set
	files    *uring.Files
	catalog  *expert.Catalog // of the layers in use: main, or whole
	main     *expert.Catalog // of the main pass
	whole    *expert.Catalog // and of the block that drafts, if there is one
	arena    *pager.Arena
	resident *resident
	blocks   []*mem.Block
	image    mem.Image
	history  []uint32 // what the prefetcher learns in; nil: it learns nothing
	mtp      bool     // the file's own block drafts
	mtpOff   string   // why it does not
	drafts   int      // most drafted tokens of a sequence that a pass verifies; 0: none
	typeK    gguf.Type
	typeV    gguf.Type

	recorder Recorder // nil: none
	sums     *sums    // nil: reads are not verified
	warmNote string   // for FirstLine
	notices  []string // of a set of kernels or a template that is not used
	loop     *loop
}

// Open loads a model. Everything large is allocated here, once, as the plan says. When ctx ends before that is done, the
// error is its cause.
func Open(ctx context.Context, o Options) (*Engine, error) {
	e, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := e.load(ctx); err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

// Plan works out what Open would allocate, and allocates nothing. The error may be an *expert.TooSmall.
func Plan(o Options) (*expert.Plan, error) {
	e, err := prepare(o)
	if err != nil {
		return nil, err
	}
	return e.plan, e.release()
}

// prepare reads headers, checks everything that can be checked, and plans.
func prepare(o Options) (e *Engine, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	// Two more than compute, so that collector and server never wait for a spinning worker.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), o.Threads+2))
	e = &Engine{opt: o}
	if e.typeK, err = cacheType("-ctk", o.CacheTypeK); err != nil {
		return nil, err
	}
	if e.typeV, err = cacheType("-ctv", o.CacheTypeV); err != nil {
		return nil, err
	}
	if e.set, err = kernels.Choose(o.Kernels, o.KernelPlugin); err != nil {
		return nil, err
	}
	if e.file, err = gguf.Open(o.Model); err != nil {
		return nil, err
	}
	limitHeap(e.heapBytes() - heapMargin)
	if e.cfg, err = model.ReadConfig(e.file); err != nil {
		return nil, err
	}
	if err := e.readText(); err != nil {
		return nil, err
	}
	if err := e.openFiles(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	if err := e.makePlan(); err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

// readText loads tokenizer and chat template.
func (e *Engine) readText() error {
	if e.opt.NoTokenizer {
		return nil
	}
	var err error
	if e.tok, err = tokenizer.New(e.file); err != nil {
		return err
	}
	source, _, err := e.file.String("tokenizer.chat_template")
	if err != nil {
		return err
	}
	o := chat.Options{Control: e.tok.Control()}
	if id, ok := e.tok.BOS(); ok {
		o.BOS, _ = e.tok.Text(id)
	}
	if ends := e.tok.EndTokens(); len(ends) > 0 {
		o.EOS, _ = e.tok.Text(ends[0])
	}
	if e.chat, err = chat.New(source, o); err != nil {
		e.chatErr = fmt.Errorf("%w; raw text can be continued: run --no-chat, or /v1/completions", err)
		e.notices = append(e.notices, e.chatErr.Error())
	}
	if e.opt.Chat {
		return e.chatErr
	}
	return nil
}

func (e *Engine) openFiles() error {
	var paths []string
	for _, s := range e.file.Shards {
		paths = append(paths, s.Path)
	}
	var err error
	mode := uring.DirectPreferred
	if e.opt.Buffered {
		mode = uring.DirectOff
	}
	if e.files, err = uring.OpenFiles(paths, mode); err != nil {
		return err
	}
	align := make([]int, len(paths))
	for i := range align {
		align[i] = e.files.Align(uring.FileID(i))
	}
	if e.main, err = expert.NewCatalog(e.file, align); err != nil {
		return err
	}
	e.catalog = e.main
	if e.whole, err = expert.NewFullCatalog(e.file, align); err != nil { // no harm to who does not draft with it
		e.whole, e.mtpOff = e.main, "off: "+err.Error()
	}
	return nil
}

// types lists the tensor types that the kernels will meet.
func (e *Engine) types() (ts []gguf.Type) {
	add := func(t gguf.Type) {
		if !slices.Contains(ts, t) {
			ts = append(ts, t)
		}
	}
	for _, t := range e.model.Resident() {
		add(t.Type)
	}
	for _, l := range e.catalog.Layers {
		for _, p := range l.Parts {
			if t, ok := e.file.Tensor(p.Tensor); ok {
				add(t.Type)
			}
		}
	}
	return ts
}

// testKernels checks the set on this CPU for the types of the model. Where nobody asked for a set, the next slower one takes
// the place of one that computes wrongly.
func (e *Engine) testKernels() error {
	if e.opt.Kernels != "" || e.opt.KernelPlugin != "" {
		if err := e.set.SelfTest(e.types()...); err != nil {
			return fmt.Errorf("%w: choose another set with --kernels", err)
		}
		return nil
	}
	set, wrong, err := kernels.Working(e.types()...)
	if err != nil {
		return err
	}
	if e.set = set; wrong != nil {
		e.notices = append(e.notices, fmt.Sprintf("%v; %s is used in its place", wrong, set.Name))
	}
	return nil
}

// load allocates and starts what the plan says.
func (e *Engine) load(ctx context.Context) error {
	var err error
	if e.sums, err = e.openSums(); err != nil {
		return err
	}
	e.lost = e.opt.places.place()
	if err := e.testKernels(); err != nil {
		return err
	}
	if e.resident, err = loadResident(ctx, e.file, e.model.Resident(), e.opt.Resident, e.opt.Threads); err != nil {
		return err
	}
	if e.arena, err = pager.NewArena(e.catalog, e.plan.Slots); err != nil {
		return err
	}
	if err := e.arena.Touch(ctx, e.opt.Threads); err != nil { // registering untouched memory would fault it in on one thread
		return err
	}
	memory, err := e.allocate(ctx)
	if err != nil {
		return err
	}
	if err := e.allocHistory(); err != nil {
		return err
	}
	if err := e.openRecorder(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	e.loop, err = startLoop(e, memory)
	return err
}

// allocate makes what the model computes in.
func (e *Engine) allocate(ctx context.Context) (memory model.Memory, err error) {
	sizes := e.model.Sizes()
	for _, b := range []struct {
		purpose mem.Purpose
		size    int64
		to      *[]byte
	}{
		{"kv", sizes.KV, &memory.KV}, {"recurrent state", sizes.Recurrent, &memory.Recurrent}, {"draft states", sizes.Drafts, &memory.Drafts},
		{"compute buffers", sizes.Scratch, &memory.Scratch}, {"vectors", sizes.Vectors, &memory.Vectors},
	} {
		if b.size == 0 {
			continue
		}
		block, err := mem.Alloc(b.purpose, int(b.size))
		if err != nil {
			return memory, err
		}
		e.blocks = append(e.blocks, block)
		if err := block.TouchWhile(ctx, e.opt.Threads); err != nil {
			return memory, err
		}
		*b.to = block.Bytes()
	}
	return memory, nil
}

// Close ends running requests, waits for reads in flight and gives all memory back. Where a broken device cannot be waited
// for, the arena stays mapped, for the kernel may still write to it, and the error says so.
func (e *Engine) Close() error {
	if e.loop != nil {
		e.loop.close()
	}
	return e.release()
}

func (e *Engine) release() error {
	var errs []error
	if e.loop != nil {
		errs = append(errs, e.loop.broken)
	}
	if e.arena != nil && errors.Join(errs...) == nil {
		errs = append(errs, e.arena.Free())
	}
	for _, b := range e.blocks {
		errs = append(errs, b.Free())
	}
	if e.resident != nil {
		errs = append(errs, e.resident.close())
	}
	if e.files != nil {
		errs = append(errs, e.files.Close())
	}
	if e.recorder != nil {
		errs = append(errs, e.recorder.Close())
		e.recorder = nil
	}
	e.arena, e.blocks, e.resident, e.files = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Tokenizer, Chat, Context, Plan and the like describe what was loaded.

// Tokenizer is the model's own.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// Chat is the model's template, or ChatML.
func (e *Engine) Chat() *chat.Template { return e.chat }

// Context is the number of tokens a sequence can hold.
func (e *Engine) Context() int { return e.opt.Context }

// Plan is the memory plan that was carried out.
func (e *Engine) Plan() *expert.Plan { return e.plan }

// Vocab is the number of logits in a row.
func (e *Engine) Vocab() int { return e.model.Vocab() }

// MoELayers is the number of layers with routed experts, Used how many experts a token takes in each.
func (e *Engine) MoELayers() int { return e.model.MoELayers() }

// Experts is how many a MoE layer has; Used how many a token takes.
func (e *Engine) Experts() int { return e.cfg.Experts }

// Used is how many routed experts a token takes in each MoE layer.
func (e *Engine) Used() int { return e.cfg.Used }

// ModelName is general.name, or the file's name.
func (e *Engine) ModelName() string {
	if s, ok, err := e.file.String("general.name"); err == nil && ok && s != "" {
		return s
	}
	p := e.file.Shards[0].Path
	return strings.TrimSuffix(p[strings.LastIndexByte(p, '/')+1:], ".gguf")
}

// KernelSet is the name of the set in use; Backend of the I/O path; Policy of the eviction policy.
func (e *Engine) KernelSet() string { return e.set.Name }

// Backend is the I/O path in use: "ring", "pread" or "null".
func (e *Engine) Backend() string { return e.loop.limits.Backend }

// Policy is the eviction policy in use.
func (e *Engine) Policy() string { return e.loop.policy }

// FirstLine says in one line how the model was loaded.
func (e *Engine) FirstLine() string {
	p := e.plan
	slots, experts := 0, 0
	for _, c := range p.Classes {
		slots += c.Slots
		experts += c.Experts
	}
	return fmt.Sprintf("%s: budget %s (%s), arena %s = %d of %d experts, policy %s, kernels %s, %d threads, I/O %s",
		e.ModelName(), expert.FormatBytes(p.Budget), p.BoundBy, expert.FormatBytes(p.ArenaBytes), slots, experts, e.Policy(),
		e.set.Name, e.opt.Threads, e.Backend()) + e.notes()
}

// notes are what not every run has to say.
func (e *Engine) notes() string {
	s := ""
	if e.sums != nil {
		s = ", reads verified"
	}
	switch nodes := e.opt.places.nodes; {
	case e.opt.places.mode == mem.Prefer:
		s += fmt.Sprintf(", NUMA node %d", nodes[0])
	case len(nodes) > 0:
		s += fmt.Sprintf(", memory in turn from %d NUMA nodes", len(nodes))
	}
	return s + e.warmNote
}

// Warnings are what is odd about the model's file, or wrong with its template or with a set of kernels on this CPU, with what
// follows from it, a line each.
func (e *Engine) Warnings() []string { return slices.Concat(e.cfg.Warnings, e.notices) }

// LostLine names what the machine refused, why, and how to get it back; "" if nothing.
func (e *Engine) LostLine() string {
	var s []string
	for _, l := range e.lost {
		s = append(s, fmt.Sprintf("without %s: %s; %s", l.What, l.Reason, l.Remedy))
	}
	return strings.Join(s, " | ")
}
