package iotest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/uring"
)

// computing is what a token takes when all its experts are there, and what computing and reading cost each other: both go
// to the same memory, and reading needs a CPU now and then.
type computing struct {
	alone   time.Duration
	beside  time.Duration // while the disk reads
	reading float64       // bandwidth of the disk with nothing computed, bytes per second
	shared  float64       // and while computing
}

// slower is what computing takes longer while the disk reads, as a factor.
func (c computing) slower() float64 { return max(1, float64(c.beside)/float64(c.alone)) }

// share of its bandwidth that the disk has while something is computed.
func (c computing) share() float64 {
	if c.reading <= 0 || c.shared <= 0 {
		return 1
	}
	return min(1, c.shared/c.reading)
}

// A token's time is the mean of computeRounds times computeTokens; computing, both and reading take turns.
const (
	computeTokens = 16
	computeRounds = 3
)

// measureCompute decodes on the null device, which leaves the experts' bytes as they are: routes and speed do not depend
// on them.
func (x *expertRun) measureCompute(ctx context.Context) (c computing, err error) {
	o := x.opt.Engine
	o.Backend, o.Prefetch, o.WarmDir, o.Record, o.Verify = "null", "off", "", nil, false
	e, err := engine.Open(ctx, o)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for i := range int64(computeRounds) {
		x.progress("computing", i, computeRounds)
		alone, err := decodeTime(ctx, e)
		if err != nil {
			return c, err
		}
		var beside time.Duration
		shared, err := x.readWhile(ctx, func() error {
			beside, err = decodeTime(ctx, e)
			return err
		})
		if err != nil {
			return c, err
		}
		reading, err := x.readWhile(ctx, func() error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(beside*computeTokens, x.opt.Runtime)):
				return nil
			}
		})
		if err != nil {
			return c, err
		}
		c.alone, c.beside = c.alone+alone/computeRounds, c.beside+beside/computeRounds
		c.shared, c.reading = c.shared+shared/computeRounds, c.reading+reading/computeRounds
	}
	x.progress("computing", computeRounds, computeRounds)
	return c, nil
}

// decodeTime is what a token takes.
func decodeTime(ctx context.Context, e *engine.Engine) (time.Duration, error) {
	r, err := e.Generate(ctx, engine.Request{Tokens: []int32{1}, MaxTokens: min(computeTokens, e.Context()-1), IgnoreEOS: true}, nil)
	switch {
	case err != nil:
		return 0, err
	case len(r.Tokens) < 2 || r.DecodeTime <= 0:
		return 0, fmt.Errorf("iotest: the model decoded %d tokens, two are needed to see what computing takes: raise -c: %w", len(r.Tokens), ErrOption)
	}
	return r.DecodeTime / time.Duration(len(r.Tokens)-1), nil
}

// readWhile reads as much as all experts of a layer have, again and again, while fn runs, and returns the bandwidth in
// bytes per second.
func (x *expertRun) readWhile(ctx context.Context, fn func() error) (bandwidth float64, err error) {
	align := int64(x.files.Align(0))
	parts := int64(len(x.cat.Layers[0].Parts))
	bs := max(x.cat.TotalBytes/int64(x.cat.Experts())/parts/align, 1) * align
	depth := x.cat.Layers[0].Used * int(parts)
	block, err := allocate(max(depth*int(bs), hugePageBytes), true)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, block.Free()) }()
	ctx, cancel := context.WithCancel(ctx)
	var t tally
	opened, done := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		dev, err := uring.Open(x.files, [][]byte{block.Bytes()}, uring.Options{Backend: x.opt.Engine.Backend, Depth: depth})
		opened <- err
		if err != nil {
			done <- nil
			return
		}
		start := time.Now()
		w := newWorker(dev, func() time.Duration { return time.Since(start) }, newOrder(x.files.Size(0), bs, align, true, 1), depth)
		w.place = func(i int) (int, int64) { return 0, int64(i) * bs }
		done <- errors.Join(w.run(ctx, time.Hour, &t), dev.Close())
	}()
	if err = <-opened; err == nil {
		err = fn()
	}
	cancel()
	err = errors.Join(err, <-done)
	return t.bandwidth(), err
}
