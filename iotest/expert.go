package iotest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/uring"
)

// ExpertOptions say how a model's experts are read: at their own offsets and sizes, by the pager.
type ExpertOptions struct {
	Engine  engine.Options // the model, and what a run of it would be given; Backend is what is measured
	Bursts  []int          // experts that are missing at once; default: 1, 2, 4 up to what a token uses
	Runtime time.Duration  // of each; default DefaultRuntime
	Batches []Batch        // of a recorded run; none: random experts only
}

// Batch are the experts that a batch of tokens used, in order.
type Batch struct {
	Tokens int
	Uses   []Use
}

// Use names experts of a MoE layer.
type Use struct {
	Layer int
	IDs   []int32
}

// RunExperts measures how long it takes to read experts in bursts, as a layer's misses come; how long a token takes to
// compute; and from the two what the model decodes at. With Batches the pager replays them in the arena that a run would
// have, reading for real and computing for as long as it takes.
func RunExperts(ctx context.Context, opt ExpertOptions, progress Progress) (*Report, error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	if opt.Runtime == 0 {
		opt.Runtime = DefaultRuntime
	}
	plan, err := engine.Plan(opt.Engine)
	if err != nil {
		return nil, err
	}
	x := &expertRun{opt: opt, plan: plan, progress: progress}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- x.run(ctx)
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	return x.report(ctx), nil
}

// expertRun is the work of RunExperts on its thread.
type expertRun struct {
	opt      ExpertOptions
	plan     *expert.Plan
	compute  computing
	progress Progress

	cat    *expert.Catalog
	files  *uring.Files
	cost   cost
	spin   spinner
	late   time.Duration // what the reads of a token would have ended later, had computing been real
	bursts []*burst
	replay *Replay
	lost   []uring.Loss
}

// burst are uses that missed so many experts.
type burst struct {
	missing int
	tally   tally
}

func (x *expertRun) run(ctx context.Context) (err error) {
	f, err := x.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.files.Close()) }()
	if err := x.chooseBursts(); err != nil {
		return err
	}
	if x.compute, err = x.measureCompute(ctx); err != nil {
		return err
	}
	x.cost = costOf(f, x.cat, x.compute)
	if err := x.readBursts(ctx); err != nil || len(x.opt.Batches) == 0 || ctx.Err() != nil {
		return err
	}
	return x.readBatches(ctx)
}

func (x *expertRun) open() (*gguf.File, error) {
	f, err := gguf.Open(x.opt.Engine.Model)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, s := range f.Shards {
		paths = append(paths, s.Path)
	}
	if x.files, err = uring.OpenFiles(paths, uring.DirectPreferred); err != nil {
		return nil, err
	}
	align := make([]int, len(paths))
	for i := range align {
		align[i] = x.files.Align(uring.FileID(i))
	}
	if x.cat, err = expert.NewCatalog(f, align); err != nil {
		return nil, errors.Join(err, x.files.Close())
	}
	return f, nil
}

// chooseBursts fills in how many experts are missing at once, and checks it.
func (x *expertRun) chooseBursts() error {
	used := 0
	for _, l := range x.cat.Layers {
		used = max(used, l.Used)
	}
	list := x.opt.Bursts
	if len(list) == 0 {
		for n := 1; n < used; n *= 2 {
			list = append(list, n)
		}
		list = append(list, used)
	}
	for _, n := range list {
		if n < 1 || n > used {
			return fmt.Errorf("iotest: --iodepth %d: a layer of this model misses 1 to %d experts at once: %w", n, used, ErrOption)
		}
		x.bursts = append(x.bursts, &burst{missing: n})
	}
	slices.SortFunc(x.bursts, func(a, b *burst) int { return a.missing - b.missing })
	return nil
}

// withPager calls fn with a pager over an arena of its own and the real device.
func (x *expertRun) withPager(ctx context.Context, slots []int, fn func(p *pager.Pager) error) (err error) {
	arena, err := pager.NewArena(x.cat, slots)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, arena.Free()) }()
	if err := arena.Touch(ctx, runtime.GOMAXPROCS(0)); err != nil {
		return err
	}
	dev, err := uring.Open(x.files, arena.Regions(), uring.Options{Backend: x.opt.Engine.Backend, PrefetchBytes: x.opt.Engine.InFlight})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	x.lost = dev.Limits().Lost
	p, err := pager.New(dev, x.cat, arena, pager.Options{Policy: x.opt.Engine.EvictPolicy, StaleTokens: x.opt.Engine.StaleTokens, GuessBytes: x.opt.Engine.InFlight})
	if err != nil {
		return err
	}
	return errors.Join(fn(p), p.Close())
}

// whole waits for the last part of experts, as computing them would.
func whole(ready []expert.Ready) error {
	for _, r := range ready {
		if _, err := r.Down(); err != nil {
			return err
		}
	}
	return nil
}

// readBursts uses random experts, layer by layer, in an arena that keeps next to none; the numbers of experts take turns.
func (x *expertRun) readBursts(ctx context.Context) error {
	return x.withPager(ctx, x.cat.MinSlots(), func(p *pager.Pager) error {
		rnd, begin := rand.New(rand.NewPCG(1, 2)), time.Now()
		total := x.opt.Runtime * time.Duration(len(x.bursts))
		for layer := 0; ctx.Err() == nil; layer++ {
			spent := time.Since(begin)
			x.progress("reading experts", int64(min(spent, total)), int64(total))
			if spent >= total {
				return nil
			}
			l := layer % len(x.cat.Layers)
			for _, b := range x.bursts {
				ids := rnd.Perm(x.cat.Layers[l].Experts)
				if err := x.readBurst(p, l, ids[:min(b.missing, len(ids))]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// readBurst times one use and notes it where it belongs: by the experts that it really missed.
func (x *expertRun) readBurst(p *pager.Pager, layer int, perm []int) error {
	ids := make([]int32, len(perm))
	for i, id := range perm {
		ids[i] = int32(id)
	}
	before, from := p.Stats(), time.Now()
	user, system := processorTime()
	if err := p.Use(layer, ids, 0, whole); err != nil {
		return err
	}
	took, s := time.Since(from), p.Stats().Sub(before)
	userEnd, systemEnd := processorTime()
	for _, b := range x.bursts {
		if int64(b.missing) != s.Misses {
			continue
		}
		t := &b.tally
		t.reads, t.bytes, t.elapsed = t.reads+s.Reads, t.bytes+s.BytesRead, t.elapsed+took
		t.user, t.system = t.user+userEnd-user, t.system+systemEnd-system
		t.clat.add(int64(took))
		t.lat.add(int64(took))
	}
	return nil
}

// Replay is what a recorded run would have been with this disk, CPU and budget.
type Replay struct {
	Tokens      int     `json:"tokens"` // decoded
	HitRate     float64 `json:"hit_rate"`
	MiBPerToken float64 `json:"ssd_mib_per_token"`
	TokS        float64 `json:"decode_tok_s"`
	Wait        float64 `json:"io_wait_s_per_token"`
	Slots       int     `json:"arena_slots"`
	Budget      int64   `json:"budget_bytes"`
}

// readBatches replays the recorded uses in the arena of a run. Prompts are read but not timed.
func (x *expertRun) readBatches(ctx context.Context) error {
	return x.withPager(ctx, x.plan.Slots, func(p *pager.Pager) error {
		r, total := Replay{Budget: x.plan.Budget}, time.Duration(0)
		x.spin = spinner{now: time.Now, slower: x.cost.slower, busy: func() bool { return p.Poll() == nil && p.Pending() }} // the next Use tells a failure
		for _, n := range x.plan.Slots {
			r.Slots += n
		}
		var sum pager.Stats
		for i, b := range x.opt.Batches {
			x.progress("replaying", int64(i), int64(len(x.opt.Batches)))
			if ctx.Err() != nil {
				break
			}
			before, from := p.Stats(), time.Now()
			x.late = 0
			if err := x.token(p, b); err != nil {
				return err
			}
			if p.Tick(); b.Tokens == 1 {
				total += time.Since(from) + x.late
				r.Tokens++
				s := p.Stats().Sub(before)
				sum.Hits, sum.Joined, sum.Misses = sum.Hits+s.Hits, sum.Joined+s.Joined, sum.Misses+s.Misses
				sum.BytesRead, sum.WaitTime = sum.BytesRead+s.BytesRead, sum.WaitTime+s.WaitTime
			}
		}
		x.progress("replaying", 1, 1)
		if r.Tokens == 0 {
			return fmt.Errorf("iotest: the trace has no token decoded alone: record run -n 64 with --trace: %w", ErrOption)
		}
		n := float64(r.Tokens)
		r.HitRate, r.MiBPerToken = sum.HitRate(), float64(sum.BytesRead)/(1<<20)/n
		r.TokS, r.Wait = n/total.Seconds(), sum.WaitTime.Seconds()/n
		x.replay = &r
		return nil
	})
}

// token uses the experts of a batch; where it is of one token it also passes the time that computing takes.
func (x *expertRun) token(p *pager.Pager, b Batch) error {
	timed := b.Tokens == 1
	for _, u := range b.Uses {
		if timed {
			x.spin.pass(x.cost.layer)
		}
		before := p.Stats().WaitTime
		x.spin.beside = 0
		err := p.Use(u.Layer, u.IDs, 0, func(ready []expert.Ready) error {
			if timed {
				x.spin.pass(time.Duration(len(ready)) * x.cost.expert * 2 / 3) // gate and up need not wait for down
			}
			if err := whole(ready); err != nil {
				return err
			}
			if timed {
				x.spin.pass(time.Duration(len(ready)) * x.cost.expert / 3)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if p.Stats().WaitTime > before {
			x.late += time.Duration(float64(x.spin.beside) * (1 - x.cost.share))
		}
	}
	return nil
}

// spinner passes time without sleeping, as computing does: longer where something is read meanwhile. What one call took too
// long, because others had the CPU, the next takes less: the time of a token that is passed was measured among them.
type spinner struct {
	now    func() time.Time
	busy   func() bool // the disk
	slower float64
	beside time.Duration // passed while the disk was busy
	over   time.Duration
}

func (s *spinner) pass(d time.Duration) {
	from := s.now()
	for s.over < d {
		busy := s.busy()
		now := s.now()
		step := now.Sub(from)
		if busy {
			s.beside += step
			step = time.Duration(float64(step) / s.slower)
		}
		s.over += step
		from = now
	}
	s.over -= d
}
