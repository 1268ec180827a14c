package engine

import (
	"context"
	"fmt"

	"github.com/epq-uring/epq-uring/model"
)

// Generate continues a prompt. It blocks until the answer is complete and calls fn (which may be nil) with pieces of it
// on this goroutine; an error of fn, or ctx, ends the request within one token or one ubatch. Errors: *ContextError for
// a prompt that does not fit, ErrBusy, ErrClosed, ErrSampling, ErrNaN, an expert that cannot be read; the engine lives on.
func (e *Engine) Generate(ctx context.Context, r Request, fn func(Event) error) (Result, error) {
	if len(r.Tokens) == 0 {
		return Result{}, fmt.Errorf("engine: an empty prompt: %w", ErrOption)
	}
	if len(r.Tokens) >= e.opt.Context {
		return Result{}, &ContextError{PromptTokens: len(r.Tokens), Context: e.opt.Context}
	}
	if r.MaxTokens == 0 {
		return Result{Finish: "length", PromptTokens: len(r.Tokens)}, nil
	}
	var banned []int32
	if r.IgnoreEOS && e.tok != nil {
		banned = e.tok.EndTokens()
	}
	sampler, err := NewSampler(r.Sampling, e.Vocab(), banned)
	if err != nil {
		return Result{}, err
	}
	for _, t := range r.Tokens {
		sampler.Accept(t)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := newJob(ctx, r)
	j.sampler = sampler
	if err := e.loop.queue.push(j); err != nil {
		return Result{}, err
	}
	return j.follow(e.loop.queue, cancel, fn)
}

// Rows computes the logits of every token of a sequence and calls each with them in order, on the engine's thread; the
// slice is valid until it returns. At most batch tokens go through one forward pass (0: the ubatch).
func (e *Engine) Rows(ctx context.Context, tokens []int32, batch int, each func(pos int, logits []float32) error) error {
	if len(tokens) == 0 {
		return fmt.Errorf("engine: no tokens: %w", ErrOption)
	}
	if len(tokens) > e.opt.Context {
		return &ContextError{PromptTokens: len(tokens), Context: e.opt.Context}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := newJob(ctx, Request{Tokens: tokens})
	j.batch, j.each = batch, each
	if err := e.loop.queue.push(j); err != nil {
		return err
	}
	_, err := j.follow(e.loop.queue, cancel, nil)
	return err
}

// Observe has seen called with every route the model chooses (MoE layer, index of the token in its batch, experts best
// first; valid until it returns) and lets force replace a choice; nil ends either. Both run on the engine's thread.
func (e *Engine) Observe(seen func(layer, token int, ids []int32), force func(layer, token int) []int32) error {
	return e.loop.do(context.Background(), func() { e.model.Observer, e.model.Force = seen, force })
}

// CheckLayer compares the experts of a MoE layer, computed by kernels and pager, to a float64 reference; see
// model.CheckLayer. Nothing else may be running.
func (e *Engine) CheckLayer(ctx context.Context, layer int, seed uint64) (c model.LayerCheck, err error) {
	if run := e.loop.do(ctx, func() { c, err = e.model.CheckLayer(layer, seed) }); run != nil {
		return c, run
	}
	return c, err
}
