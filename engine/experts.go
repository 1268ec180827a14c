package engine

import (
	"time"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/prefetch"
)

// experts joins the pager to the model, and the prefetcher to both.
type experts struct {
	*pager.Pager
	rec   Recorder             // may be nil
	ahead *prefetch.Prefetcher // nil: nothing is read ahead
	width int                  // of a hidden state

	main   int // layers of the main pass; what lies behind them drafts, and nothing is read ahead for it
	layer  int // of the running Use
	ids    []int32
	hidden []float32 // of the batch's tokens
	state  prefetch.State
	before pager.Stats // at the last token's end
}

// Use implements model.Experts.
func (x *experts) Use(layer int, ids []int32, group int, fn func([]expert.Ready) error) error {
	if x.rec != nil {
		x.rec.Use(layer, ids)
	}
	x.layer = layer
	if x.ahead != nil && layer < x.main {
		x.ahead.Begin(layer, ids, x.single(), x.Load().Waited)
		x.ids = ids
	}
	return x.Pager.Use(layer, ids, group, fn)
}

// Hint implements model.Experts. From embeddings one can only guess now; in a layer the guess waits until its own reads
// are on their way (started).
func (x *experts) Hint(layer int, hidden []float32) {
	x.hidden = hidden
	if layer < 0 {
		x.guess(layer, nil)
	}
}

// started is called by the pager when a Use has handed in its reads: what the next layer needs comes after them.
func (x *experts) started() {
	if x.layer < x.main {
		x.guess(x.layer, x.ids)
	}
}

// single says whether the batch is one token.
func (x *experts) single() bool { return len(x.hidden) == x.width }

func (x *experts) guess(layer int, ids []int32) {
	if x.ahead == nil {
		return
	}
	if !x.single() {
		x.ReadUnion(x.ahead.Union(layer, x.hidden, x.width))
		return
	}
	s, load := &x.state, x.Load()
	s.WaitTime, s.WaitBytes, s.BytesRead = load.WaitTime, load.WaitBytes, load.BytesRead
	s.OnTheirWay = x.Outlook(s.Room)
	if g := x.ahead.Guess(layer, ids, x.hidden, s); len(g) > 0 {
		x.Prefetch(g)
	}
}

// between is called by the worker that owns the ring between two units of its work: only so does the device get more to do
// while the others compute. A token for which nothing is guessed needs nothing more. An error shows in the next Use.
func (x *experts) between() {
	if x.Pending() && !(x.single() && x.ahead.Idle()) {
		_ = x.Poll()
	}
}

// token tells the prefetcher what a batch cost.
func (x *experts) token(tokens int, took time.Duration) {
	if x.ahead == nil {
		return
	}
	now := x.Stats()
	s := now.Sub(x.before)
	x.before = now
	if tokens != 1 {
		x.ahead.Interrupt()
		return
	}
	x.ahead.Token(took, s.WaitTime, int(s.Misses+s.Guess.Late+s.Guess.Useful-s.AskedAgain))
}

// drafted leaves what drafting read out of the next token's account.
func (x *experts) drafted() {
	if x.ahead != nil {
		x.before = x.Stats()
	}
}
