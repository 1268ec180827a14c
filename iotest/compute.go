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

// computing is what a token takes when all its experts are there.
type computing struct {
	alone  time.Duration
	beside time.Duration // while the disk reads: what it writes takes bandwidth of the memory that computing waits for
}

// slower is beside to alone, at least 1.
func (c computing) slower() float64 { return max(1, float64(c.beside)/float64(c.alone)) }

// A token's time is the mean of computeRounds times computeTokens, alone and beside reads in turns.
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
		end, err := x.keepReading(ctx)
		if err != nil {
			return c, err
		}
		beside, err := decodeTime(ctx, e)
		if err := errors.Join(err, end()); err != nil {
			return c, err
		}
		c.alone, c.beside = c.alone+alone/computeRounds, c.beside+beside/computeRounds
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

// keepReading reads as much as all experts of a layer have, again and again, until end is called.
func (x *expertRun) keepReading(ctx context.Context) (end func() error, err error) {
	align := int64(x.files.Align(0))
	parts := int64(len(x.cat.Layers[0].Parts))
	bs := max(x.cat.TotalBytes/int64(x.cat.Experts())/parts/align, 1) * align
	depth := x.cat.Layers[0].Used * int(parts)
	block, err := allocate(max(depth*int(bs), hugePageBytes), true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	opened, done := make(chan error), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		dev, err := uring.Open(x.files, [][]byte{block.Bytes()}, uring.Options{Backend: x.opt.Engine.Backend, Depth: depth})
		opened <- err
		if err != nil {
			return
		}
		start := time.Now()
		w := newWorker(dev, func() time.Duration { return time.Since(start) }, newOrder(x.files.Size(0), bs, align, true, 1), depth)
		w.place = func(i int) (int, int64) { return 0, int64(i) * bs }
		done <- errors.Join(w.run(ctx, time.Hour, new(tally)), dev.Close())
	}()
	if err := <-opened; err != nil {
		cancel()
		return nil, errors.Join(err, block.Free())
	}
	return func() error {
		cancel()
		return errors.Join(<-done, block.Free())
	}, nil
}
