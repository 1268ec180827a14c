package engine

import (
	"errors"
	"fmt"

	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/uring"
)

// What happens to a model whose file changes under it:
//
//	replaced by renaming   nothing: the open file is the old one, whole as long as it is open
//	written to             requests that begin from now on are refused: which weights are old and which new is unknown
//	cut                    experts beyond the cut fail as they are read; a mapped weight beyond it ends the request before
//	                       it is touched, for touching it would end the process (SIGBUS)

// written refuses a new request on a file that was written to since it was loaded. A file that was only cut still serves
// what is left of it.
func (e *Engine) written() error {
	for i := range e.files.Len() {
		size, written, err := e.files.Now(uring.FileID(i))
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		if written && size >= e.files.Size(uring.FileID(i)) {
			return fmt.Errorf("engine: %s was written to while in use: %w: start again to load what is there now", e.file.Shards[i].Path, uring.ErrChanged)
		}
	}
	return nil
}

// mappedEnds is where the last mapped weight of each shard ends; 0 where none is mapped.
func (e *Engine) mappedEnds() []int64 {
	ends := make([]int64, len(e.file.Shards))
	if e.opt.Resident == "copy" {
		return ends
	}
	for _, t := range e.model.Resident() {
		ends[t.Shard] = max(ends[t.Shard], t.Offset+t.Size)
	}
	return ends
}

// uncut makes sure that every mapped weight is still in its file. One fstat per shard and batch.
func (l *loop) uncut() error {
	for i, end := range l.mapped {
		if end == 0 {
			continue
		}
		size, _, err := l.e.files.Now(uring.FileID(i))
		if err != nil {
			return fmt.Errorf("engine: %w", err)
		}
		if size < end {
			return fmt.Errorf("engine: %s was cut to %d bytes while in use, its weights reach to byte %d: %w: put the whole file back and start again",
				l.e.file.Shards[i].Path, size, end, uring.ErrChanged)
		}
	}
	return nil
}

// forward runs the batch on files that are still there, and says when a failed read may come from a changed file.
func (l *loop) forward() error {
	if err := l.uncut(); err != nil {
		return err
	}
	err := l.model.Forward(&l.batch)
	if !errors.Is(err, pager.ErrRead) {
		return err
	}
	for i := range l.e.files.Len() {
		if changed := l.e.files.Changed(uring.FileID(i)); changed != nil {
			return fmt.Errorf("%w; %w", err, changed)
		}
	}
	return err
}
