package main

import (
	"os"
	"sync"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"
)

// bar shows progress in bytes on a terminal; elsewhere it is silent.
type bar struct {
	mu   sync.Mutex
	what string
	on   bool
	p    *progressbar.ProgressBar
}

func newBar(c *cli.Command, what string) *bar {
	return &bar{what: what, on: onTerminal(c)}
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
		b.p = progressbar.DefaultBytes(total, b.what)
	}
	_ = b.p.Set64(done) // a terminal that cannot be written to is no reason to stop
}

func (b *bar) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.p != nil {
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
