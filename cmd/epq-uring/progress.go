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
	f, ok := c.Root().ErrWriter.(*os.File)
	return &bar{what: what, on: ok && term.IsTerminal(int(f.Fd()))}
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
