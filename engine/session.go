package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/epq-uring/epq-uring/model"
	"github.com/epq-uring/epq-uring/tokenizer"
)

// session is one timeline of tokens with its part of the caches. It stays when its request ends, so that the next one
// may continue it. Only the loop touches it.
type session struct {
	l    *loop
	seq  int32
	fed  []int32 // tokens in the caches, by position
	used int64   // loop step of its last request

	job      *job // nil: free
	pending  []int32
	decoding bool // the prompt is read; pending is the token chosen last
	solo     bool // its batch failed: runs alone until it has caught up
	draft    draft
	chosen   []choice // from the rows of the last batch, up to the first that a wrong draft led to
	astray   bool     // the rows that follow are such
	sampler  *Sampler
	decoder  *tokenizer.Decoder
	stopper  *Stopper
	result   Result
	text     []byte // of the answer so far
	began    time.Time
	first    time.Time // when the first token was chosen
}

// choice is a token chosen from a row of logits, or why none could be.
type choice struct {
	id      int32
	logprob TokenLogprob
	err     error
}

// keepable says how many tokens of a new sequence are in the caches already and can stay. At least one must be read
// again, for its logits; a recurrent state cannot be cut back, so there it is all that was fed or nothing.
func (s *session) keepable(tokens []int32) int {
	n := 0
	for n < len(s.fed) && n < len(tokens)-1 && s.fed[n] == tokens[n] {
		n++
	}
	if s.l.model.Recurrent() && n < len(s.fed) {
		return 0
	}
	return n
}

// sync makes the session continue with the given tokens from position 0 on: keeps what is keepable, forgets the rest,
// and leaves what must be read in pending.
func (s *session) sync(tokens []int32) (kept int) {
	kept = s.keepable(tokens)
	if kept == 0 {
		s.forget()
	}
	s.fed = s.fed[:kept]
	s.pending = append(s.pending[:0], tokens[kept:]...)
	return kept
}

// forget empties the caches of the sequence.
func (s *session) forget() {
	s.fed = s.fed[:0]
	s.l.model.Reset(s.seq)
}

// rebuild prepares to read everything again, alone.
func (s *session) rebuild() {
	all := append(append([]int32(nil), s.fed...), s.pending...)
	s.forget()
	s.pending, s.solo = all, true
}

// begin starts a request.
func (s *session) begin(j *job) {
	s.job, s.decoding, s.solo, s.began = j, false, false, time.Now()
	s.used = s.l.forwards
	s.draft.begin(&s.l.drafting)
	s.result, s.text = Result{PromptTokens: len(j.req.Tokens)}, s.text[:0]
	if j.each != nil { // wants the rows of what is in the caches too
		s.forget()
	}
	s.result.CachedTokens = s.sync(j.req.Tokens)
	s.sampler, s.decoder, s.stopper = j.sampler, nil, NewStopper(j.req.Stop)
	if s.l.e.tok != nil {
		s.decoder = s.l.e.tok.NewDecoder()
	}
}

// put adds what comes next to a batch, at most room tokens.
func (s *session) put(b *model.Batch, room int) {
	n := min(len(s.pending), room)
	if limit := s.job.batch; limit > 0 {
		n = min(n, limit)
	}
	for i, t := range s.pending[:n] {
		pos := len(s.fed) + i
		s.feed(b, t, pos, s.job.each != nil && pos >= s.job.given || s.job.each == nil && i == len(s.pending)-1)
	}
	s.chosen, s.astray = s.chosen[:0], false
	if len(s.draft.tokens) == 0 {
		return
	}
	b.Drafted = append(b.Drafted, s.seq)
	for i, t := range s.draft.tokens {
		s.feed(b, t, len(s.fed)+1+i, true)
	}
}

// feed adds a token to a batch; row: its logits are wanted.
func (s *session) feed(b *model.Batch, id int32, pos int, row bool) {
	if row {
		b.Rows = append(b.Rows, int32(len(b.Tokens)))
	}
	b.Tokens = append(b.Tokens, id)
	b.Seqs = append(b.Seqs, s.seq)
	b.Pos = append(b.Pos, int32(pos))
}

// give hands a row of logits to a request that wants them all. A request that is built anew goes on after the last row it
// was given; an error of its function is its own fault, not the batch's.
func (s *session) give(pos int, logits []float32) {
	if s.job.fault == nil {
		s.job.given = pos + 1
		s.job.fault = s.job.each(pos, logits)
	}
}

// next chooses a token from the logits after the last pending one, or after a drafted one if the draft was right so far:
// the sampler draws for the same rows, in the same order, as it would without drafts. row is the token's place in the batch.
func (s *session) next(row int32, logits []float32) {
	if s.astray {
		return
	}
	now := time.Now()
	if !s.decoding {
		s.decoding, s.first = true, now
		s.result.PromptTime = now.Sub(s.began)
		s.result.FirstToken = now.Sub(s.job.asked)
	}
	var c choice
	if c.id, c.err = s.sampler.Next(logits); c.err == nil && s.job.req.Logprobs {
		c.logprob, c.err = s.sampler.Logprob(logits, c.id)
	}
	if c.err == nil {
		s.sampler.Accept(c.id)
	} else if block, e, ok := s.l.model.Culprit(&s.l.batch, int(row)); ok {
		c.err = fmt.Errorf("%w: the output of layer %d, expert %d is not; check the file (epq-uring verify)", c.err, block, e)
	}
	i := len(s.chosen)
	s.astray = c.err != nil || i >= len(s.draft.tokens) || s.draft.tokens[i] != c.id
	s.chosen = append(s.chosen, c)
}

// advance books n tokens of the batch as read. If those were all that is pending, tokens were chosen.
func (s *session) advance(n int) {
	n = min(n, len(s.pending))
	s.fed = append(s.fed, s.pending[:n]...)
	s.pending = append(s.pending[:0], s.pending[n:]...)
	j := s.job
	switch {
	case j.fault != nil:
		s.forget() // NaN may be in the caches
		s.finish("", j.fault)
	case len(s.pending) > 0:
		j.push(Event{Processed: len(s.fed), Total: len(s.fed) + len(s.pending)})
	case j.each != nil:
		s.finish("stop", nil)
	default:
		s.solo = false
		s.accept()
	}
}

// accept takes the chosen tokens, of which all but the last were drafted, until one ends the request; what was fed after
// that is taken back.
func (s *session) accept() {
	if len(s.draft.tokens) == 0 {
		s.verified(0)
	} else {
		s.verified(len(s.chosen) - 1)
	}
	before := len(s.fed)
	for i, c := range s.chosen {
		if i > 0 {
			s.fed = append(s.fed, s.draft.tokens[i-1])
		}
		if c.err != nil {
			s.forget() // NaN may be in the caches
			s.finish("", c.err)
			return
		}
		if !s.take(c) {
			break
		}
	}
	if len(s.draft.tokens) > 0 {
		s.l.model.Rewind(s.seq, 1+len(s.fed)-before)
	}
}

// take adds a chosen token to the answer. It becomes pending, or ends the request; then take returns false.
func (s *session) take(c choice) bool {
	j, id := s.job, c.id
	s.result.DecodeTime = time.Since(s.first)
	s.result.Tokens = append(s.result.Tokens, id)
	ev := Event{Tokens: []int32{id}}
	if j.req.Logprobs {
		ev.Logprobs = []TokenLogprob{c.logprob}
	}
	if s.l.e.tok != nil && s.l.e.tok.IsEnd(id) && !j.req.IgnoreEOS {
		s.report(ev, s.decoder.Flush(), true)
		s.finish("stop", nil)
		return false
	}
	piece := ""
	if s.decoder != nil {
		piece = s.decoder.Push(id)
	}
	if s.report(ev, piece, false) {
		s.finish("stop", nil)
		return false
	}
	full := len(s.fed)+1 >= s.l.e.opt.Context
	if full || j.req.MaxTokens >= 0 && len(s.result.Tokens) >= j.req.MaxTokens {
		if s.decoder != nil {
			s.report(Event{}, s.decoder.Flush(), true)
		}
		s.finish("length", nil)
		return false
	}
	s.pending = append(s.pending[:0], id)
	return true
}

// report sends text on its way past the stop strings; it reports true when one of them was met.
func (s *session) report(ev Event, piece string, last bool) bool {
	text, stop := s.stopper.Push(piece)
	if last && stop == "" {
		text += s.stopper.Flush()
	}
	s.result.StopString = stop
	s.text = append(s.text, text...)
	ev.Text = text
	s.job.push(ev)
	return stop != ""
}

// finish ends the request and frees the session.
func (s *session) finish(how string, err error) {
	if s.job == nil {
		return
	}
	s.result.Text, s.result.Finish, s.result.MTP = string(s.text), how, s.mtpNote()
	j := s.job
	s.job, s.sampler, s.decoder, s.stopper = nil, nil, nil, nil
	s.pending = s.pending[:0]
	j.end(s.result, err)
}

// job is a request on its way through the loop. Its events wait in a list, so that the loop never waits for a reader.
type job struct {
	ctx     context.Context
	req     Request
	asked   time.Time
	batch   int // most tokens of this request in one forward pass; 0: no bound
	sampler *Sampler
	each    func(pos int, logits []float32) error // every row instead of sampling
	given   int                                   // rows given to each
	fault   error

	mu     sync.Mutex
	events []Event
	result Result
	err    error
	ended  bool
	signal chan struct{} // one buffered wake-up
}

func newJob(ctx context.Context, r Request) *job {
	return &job{ctx: ctx, req: r, asked: time.Now(), signal: make(chan struct{}, 1)}
}

func (j *job) push(ev Event) {
	j.mu.Lock()
	j.events = append(j.events, ev)
	j.mu.Unlock()
	wake(j.signal)
}

func (j *job) end(r Result, err error) {
	j.mu.Lock()
	j.result, j.err, j.ended = r, err, true
	j.mu.Unlock()
	wake(j.signal)
}

// take returns what has been reported since the last call.
func (j *job) take() (events []Event, ended bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	events, j.events = j.events, nil
	return events, j.ended
}

// follow calls fn with the events until the request ends. It returns when the loop is done with the job, or at once when
// the caller gives up while the job still waits in q.
func (j *job) follow(q *queue, cancel context.CancelCauseFunc, fn func(Event) error) (Result, error) {
	var stopped error
	gone := j.ctx.Done()
	for {
		select {
		case <-gone:
			if q.remove(j) {
				return Result{}, context.Cause(j.ctx)
			}
			gone = nil // running: the loop ends it after this batch
		case <-j.signal:
		}
		events, ended := j.take()
		for _, ev := range events {
			if fn == nil || stopped != nil {
				continue
			}
			if stopped = fn(ev); stopped != nil {
				cancel(stopped)
			}
		}
		if !ended {
			continue
		}
		if stopped != nil {
			return j.result, stopped
		}
		return j.result, j.err
	}
}
