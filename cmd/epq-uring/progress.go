package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"
)

// bar shows progress on a terminal; elsewhere it is silent.
type bar struct {
	mu    sync.Mutex
	what  string
	on    bool
	bytes bool // that is what is counted; else only the share is shown
	p     *progressbar.ProgressBar
}

// newBar is a bar of bytes.
func newBar(c *cli.Command, what string) *bar {
	return &bar{what: what, on: onTerminal(c), bytes: true}
}

// onTerminal tells whether somebody looks at stderr.
func onTerminal(c *cli.Command) bool {
	f, ok := c.Root().ErrWriter.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (b *bar) set(done, total int64) {
	if !b.on {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.p == nil {
		b.p = b.start(total)
	}
	_ = b.p.Set64(done) // a terminal that cannot be written to is no reason to stop
}

func (b *bar) start(total int64) *progressbar.ProgressBar {
	if b.bytes {
		return progressbar.DefaultBytes(total, b.what)
	}
	return progressbar.NewOptions64(total, progressbar.OptionSetDescription(b.what), progressbar.OptionSetWriter(os.Stderr), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(10), progressbar.OptionFullWidth(), progressbar.OptionSetRenderBlankState(true),
		progressbar.OptionOnCompletion(func() { fmt.Fprintln(os.Stderr) }))
}

// done fills the bar, or leaves it where it stands: what failed or was interrupted is not shown as done.
func (b *bar) done(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.p == nil || b.p.IsFinished():
	case err != nil:
		_ = b.p.Exit()
	default:
		_ = b.p.Finish()
	}
}

// countBar shows how many of a number of steps are done, which one runs, and how long the rest may take; on a terminal only.
type countBar struct{ p *progressbar.ProgressBar }

func newCountBar(c *cli.Command, total int) countBar {
	if !onTerminal(c) {
		return countBar{}
	}
	return countBar{progressbar.NewOptions(total, progressbar.OptionSetWriter(c.Root().ErrWriter), progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(20), progressbar.OptionUseANSICodes(true))}
}

func (b countBar) set(done int, what string) {
	if b.p == nil {
		return
	}
	b.p.Describe(what)
	_ = b.p.Set(done) // a terminal that cannot be written to is no reason to stop
}

func (b countBar) done() {
	if b.p != nil {
		_ = b.p.Finish()
	}
}
