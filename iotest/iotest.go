package iotest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// Progress tells how far a phase has come, in units of the phase.
type Progress func(phase string, done, total int64)

// Run measures all jobs. Cancelling ctx ends it early with what there is. The error is of kind ErrVerify, with a report,
// when blocks were wrong.
func Run(ctx context.Context, opt Options, progress Progress) (r *Report, err error) {
	b := &bench{}
	if b.opt, err = opt.withDefaults(); err != nil {
		return nil, err
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx, progress); err != nil {
		return nil, err
	}
	jobs := b.opt.jobs()
	if err := b.measure(ctx, jobs, progress); err != nil {
		return nil, err
	}
	r = &Report{Time: time.Now().Unix(), Path: b.path, Verdict: judge(jobs), Interrupted: ctx.Err() != nil, Lost: b.lost}
	for _, j := range jobs {
		r.Jobs = append(r.Jobs, j.result(b.path, b.size))
	}
	if tool := b.tool(jobs); tool != nil {
		t := tool.result(b.path, b.size)
		r.Tool = &t
	}
	return r, wrongBlocks(jobs)
}

// open makes or finds the file.
func (b *bench) open(ctx context.Context, progress Progress) error {
	var err error
	if b.opt.Create {
		size := b.opt.Size
		if size == 0 {
			size = DefaultSize
		}
		size = max(1, size/patternBytes) * patternBytes
		b.path, b.gen, err = create(ctx, b.opt.Path, size, func(done, total int64) { progress("writing", done, total) })
		b.remove = err == nil && !b.opt.Keep
	} else if b.path, err = choose(b.opt.Path); err == nil && b.opt.Verify {
		b.gen, err = generationOf(b.path)
	}
	if err != nil {
		return err
	}
	if b.files, err = uring.OpenFiles([]string{b.path}, b.opt.Direct); err != nil {
		return err
	}
	b.note(b.files.Lost())
	b.chooseBackends()
	if !b.files.Direct(0) {
		b.opt.Direct = uring.DirectOff
	}
	b.size = b.files.Size(0)
	if b.opt.Size > 0 {
		b.size = min(b.size, b.opt.Size)
	}
	return b.checkSizes()
}

// chooseBackends puts the ring in the place of auto, or pread where the ring is refused.
func (b *bench) chooseBackends() {
	var list []string
	for _, name := range b.opt.Backends {
		if name == "auto" {
			name = "ring"
			if f := uring.Probe()[0]; !f.OK {
				name = "pread"
				b.note([]uring.Loss{{What: f.What, Reason: f.State + "; reading with pread and threads", Remedy: f.Remedy}})
			}
		}
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	b.opt.Backends = list
}

func (b *bench) checkSizes() error {
	align := int64(b.files.Align(0))
	for _, bs := range b.opt.BlockSizes {
		switch {
		case bs%align != 0:
			return fmt.Errorf("iotest: --bs %d: %s is read in multiples of %d bytes: %w", bs, b.path, align, ErrOption)
		case bs > b.size:
			return fmt.Errorf("iotest: --bs %d: %s has only %d bytes to read: give a smaller --bs or another file: %w", bs, b.path, b.size, ErrOption)
		}
	}
	if b.opt.Verify && b.size%patternBytes != 0 {
		return fmt.Errorf("iotest: --verify: %d bytes of %s are no multiple of %d: it was cut, or --size is odd: %w", b.size, b.path, patternBytes, ErrForeign)
	}
	return nil
}

// rounds is how many turns a job gets: one alone runs through; several take turns, so that a slow phase of the disk meets
// all of them.
func (b *bench) rounds(jobs int) int {
	if jobs == 1 {
		return 1
	}
	return min(max(int(b.opt.Runtime/shortTurn), 1), maxRounds)
}

const (
	shortTurn = 250 * time.Millisecond
	maxRounds = 8
)

// measure lets the jobs take turns, in every second round the other way round.
func (b *bench) measure(ctx context.Context, jobs []*job, progress Progress) error {
	n := b.rounds(len(jobs))
	for r := range n {
		for i := range jobs {
			j := jobs[i]
			if r%2 == 1 {
				j = jobs[len(jobs)-1-i]
			}
			progress("measuring", int64(r*len(jobs)+i), int64(n*len(jobs)))
			if ctx.Err() != nil {
				return nil
			}
			if err := b.turn(ctx, j, b.opt.Runtime/time.Duration(n), &j.tally); err != nil {
				return err
			}
		}
	}
	progress("measuring", int64(n*len(jobs)), int64(n*len(jobs)))
	return nil
}

// toolTime is long enough for a device that does nothing.
const toolTime = 50 * time.Millisecond

// tool measures the first job on the null device, unless one of the jobs did so.
func (b *bench) tool(jobs []*job) *job {
	for _, j := range jobs {
		if j.backend == "null" {
			return nil
		}
	}
	opt := b.opt
	opt.Verify = false
	j := &job{opt: &opt, backend: "null", bs: jobs[0].bs, depth: jobs[0].depth, huge: jobs[0].huge}
	verify := b.opt.Verify
	b.opt.Verify = false
	err := b.turn(context.Background(), j, toolTime, &j.tally)
	b.opt.Verify = verify
	if err != nil {
		return nil
	}
	return j
}

func wrongBlocks(jobs []*job) error {
	errs, blocks := int64(0), int64(0)
	var first []string
	for _, j := range jobs {
		errs, blocks = errs+j.tally.errors, blocks+j.tally.blocks
		for _, w := range j.tally.wrong {
			if len(first) == 0 || w.String() != first[0] && len(first) < 3 {
				first = append(first, w.String())
			}
		}
	}
	if errs == 0 {
		return nil
	}
	return fmt.Errorf("iotest: --verify: %d of %d blocks read are wrong: %s: check the disk (dmesg, smartctl): %w", errs, blocks, strings.Join(first, "; "), ErrVerify)
}

func (b *bench) close() error {
	var errs []error
	if b.files != nil {
		errs = append(errs, b.files.Close())
	}
	if b.small != nil {
		errs = append(errs, b.small.Free())
	}
	if b.large != nil {
		errs = append(errs, b.large.Free())
	}
	if b.remove {
		errs = append(errs, os.Remove(b.path))
	}
	return errors.Join(errs...)
}
