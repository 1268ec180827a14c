package engine

import (
	"fmt"
	"time"

	"github.com/epq-uring/epq-uring/model"
)

// Where drafted tokens come from. Guesses of one source are about equally good: that of the text so far is told apart by
// how much of it repeats, that of the model's own block by how many tokens ahead it looks.
const (
	fromRepeat = 0             // a run of minRepeat tokens occurred before; then one more, ..
	fromBlock  = repeatSources // the model's own block, one token ahead; then two, ..
	sources    = fromBlock + MaxMTP
)

// MaxMTP is the most tokens that the model's own block drafts for a pass.
const MaxMTP = 4

const (
	minRepeat     = 2 // tokens that must have occurred before
	repeatSources = 4 // runs of minRepeat, one more, .., and all longer ones
	maxRepeat     = 8 // tokens that are compared at most
	repeatWindow  = 1 << 15
	ngramMost     = 8 // tokens drafted from the text
)

// sourcesBefore is how often guesses are taken to be right before an engine has tried any.
var sourcesBefore = [sources]float64{0.4, 0.5, 0.6, 0.8, 0.7, 0.5, 0.4, 0.3}

// drafting is what an engine knows about drafts.
type drafting struct {
	pace    pace
	beliefs [sources]belief
	right   []float64 // of the draft in question
	stats   DraftStats
	passed  pass
	batch   model.Batch // of guesses by the model's own block
}

// pass is the batch at hand, if all its sequences decode: of each one token and its draft.
type pass struct {
	sequences, drafted int
	took               time.Duration
}

// DraftStats count drafted tokens and what drafting them took.
type DraftStats struct {
	Drafted, Accepted int64
	Time              time.Duration // of the model's own block
}

// Sub returns what was counted since an earlier reading.
func (s DraftStats) Sub(earlier DraftStats) DraftStats {
	return DraftStats{s.Drafted - earlier.Drafted, s.Accepted - earlier.Accepted, s.Time - earlier.Time}
}

// draft is a request's drafting: the tokens that its next pass verifies, and what became of the earlier ones.
type draft struct {
	gate            gate
	beliefs         [sources]belief
	tokens          []int32       // that come after the pending one, if the guess is right
	source          int           // of the first of them
	want            int           // how many the model's own block is to guess
	step            time.Duration // that took
	byBlock, passes int           // passes that it drafted for, and all that it could have
	harmful         bool          // a batch with a draft of this request failed: there are no more
}

func (d *draft) begin(of *drafting) {
	*d = draft{gate: gate{pace: &of.pace}, tokens: d.tokens[:0]}
}

// sourceOf is the source of the i-th token of a draft whose first is from source.
func sourceOf(source, i int) int {
	if source < fromBlock {
		return source
	}
	return min(source+i, sources-1)
}

// expect lists how likely each of n tokens from a source is right if those before are.
func (l *loop) expect(d *draft, source, n int) []float64 {
	f := &l.drafting
	f.right = f.right[:0]
	for i := range n {
		s := sourceOf(source, i)
		f.right = append(f.right, d.beliefs[s].p(f.beliefs[s].p(sourcesBefore[s])))
	}
	return f.right
}

// propose makes the drafts of the next batch. Where a prompt is read there are none.
func (l *loop) propose() {
	l.drafting.passed = pass{}
	n := l.decoding()
	if l.e.drafts == 0 || n == 0 {
		return
	}
	room := l.e.opt.UBatch - n
	for _, s := range l.sessions {
		if s.job != nil && room > 0 && !s.draft.harmful {
			s.propose(n, min(room, s.draftRoom()))
			room -= max(len(s.draft.tokens), s.draft.want)
		}
	}
	l.predict()
	l.drafting.passed = pass{sequences: n}
	for _, s := range l.sessions {
		l.drafting.passed.drafted += len(s.draft.tokens)
	}
}

// decoding is how many sessions decode, 0 where one does anything else. Drafts that were not used are gone.
func (l *loop) decoding() int {
	n := 0
	for _, s := range l.sessions {
		s.draft.tokens, s.draft.want, s.draft.step = s.draft.tokens[:0], 0, 0
		if s.job == nil {
			continue
		}
		if !s.decoding || s.solo || len(s.pending) != 1 {
			n = -len(l.sessions)
		}
		n++
	}
	return max(n, 0)
}

// draftRoom is how many tokens may still follow the pending one: those that a request ends with are not fed.
func (s *session) draftRoom() int {
	n := min(s.l.e.drafts, s.l.e.opt.Context-2-len(s.fed))
	if most := s.job.req.MaxTokens; most >= 0 {
		n = min(n, most-1-len(s.result.Tokens))
	}
	return max(n, 0)
}

// propose drafts at most room tokens for a pass over n sequences, if that is worth it: from the text, or, by naming how
// many it wants, from the model's own block.
func (s *session) propose(n, room int) {
	e, d := s.l.e, &s.draft
	if e.mtp {
		d.passes++
	}
	var best float64
	if e.opt.DraftNgram == On || e.opt.DraftNgram == Auto && e.opt.mtpTokens == 0 {
		best = s.repeat(n, min(room, ngramMost))
	}
	switch {
	case !e.mtp || len(d.tokens) > 0 && e.opt.DraftNgram == On:
	case e.opt.mtpTokens > 0:
		d.want = min(room, e.opt.mtpTokens)
	default:
		k, rate := d.gate.choose(n, s.l.expect(d, fromBlock, min(room, MaxMTP)), s.l.drafting.pace.step.value)
		if k > 0 && (len(d.tokens) == 0 || rate > best) {
			d.want, d.tokens = k, d.tokens[:0]
		}
	}
}

// repeat drafts what came after the text's last tokens where they stood before, and returns the rate expected of it.
func (s *session) repeat(n, room int) (rate float64) {
	d := &s.draft
	from, length := s.repeated()
	if length < minRepeat {
		return 0
	}
	d.source = fromRepeat + min(length-minRepeat, repeatSources-1)
	if s.l.e.opt.DraftNgram != On {
		room, rate = d.gate.choose(n, s.l.expect(d, d.source, room), 0)
	}
	for i := range room {
		d.tokens = append(d.tokens, s.tokenAt(from+i))
	}
	return rate
}

// predict lets the model's own block guess what sessions want of it, one token of each at a time.
func (l *loop) predict() {
	for depth := 0; l.predictOne(depth); depth++ {
	}
	l.experts.drafted()
}

// predictOne guesses the token at a depth of all drafts that go on, and says whether there were any. What cannot be guessed
// is not drafted: whatever is wrong with an expert of that block is no harm to the answer.
func (l *loop) predictOne(depth int) bool {
	b := &l.drafting.batch
	b.Tokens, b.Seqs, b.Pos, b.Rows = b.Tokens[:0], b.Seqs[:0], b.Pos[:0], b.Rows[:0]
	for _, s := range l.sessions {
		if s.job != nil && s.draft.want > depth && len(s.draft.tokens) == depth {
			s.draft.source = fromBlock
			at := len(s.fed) + depth
			s.feed(b, s.tokenAt(at), at, true)
		}
	}
	if len(b.Tokens) == 0 {
		return false
	}
	start := time.Now()
	err := l.model.Predict(b, depth > 0)
	took := time.Since(start)
	l.busy += took
	l.drafting.stats.Time += took
	each := took / time.Duration(len(b.Tokens))
	l.drafting.pace.step.add(each.Seconds())
	for _, q := range b.Seqs {
		l.sessions[q].draft.step += each
	}
	return err == nil
}

// guess takes the best token of a row that the model's own block made, bias and penalties included.
func (l *loop) guess(row int32, logits []float32) error {
	s := l.sessions[l.drafting.batch.Seqs[row]]
	if id, err := s.sampler.Best(logits); err == nil {
		s.draft.tokens = append(s.draft.tokens, id)
	}
	return nil
}

// tokenAt is token i of what is fed, pending and drafted.
func (s *session) tokenAt(i int) int32 {
	switch n := len(s.fed); {
	case i < n:
		return s.fed[i]
	case i == n:
		return s.pending[0]
	default:
		return s.draft.tokens[i-n-1]
	}
}

// repeated finds where the text's last tokens stand before, the latest of the places where most of them do: the position
// after them, and how many there are, at most maxRepeat.
func (s *session) repeated() (next, length int) {
	last := len(s.fed) // position of the pending token
	for end := last - 1; end >= max(0, last-repeatWindow) && length < maxRepeat; end-- {
		n := 0
		for n < maxRepeat && n <= end && s.tokenAt(end-n) == s.tokenAt(last-n) {
			n++
		}
		if n > length {
			next, length = end+1, n
		}
	}
	return next, length
}

// verified books what became of a draft: the first accepted tokens were right.
func (s *session) verified(accepted int) {
	d, f, p := &s.draft, &s.l.drafting, s.l.drafting.passed
	if p.sequences == 0 {
		return
	}
	n := len(d.tokens)
	if n > 0 && d.source >= fromBlock {
		d.byBlock++
	}
	for i := range min(accepted+1, n) {
		source := sourceOf(d.source, i)
		d.beliefs[source].add(i < accepted)
		f.beliefs[source].add(i < accepted)
	}
	d.gate.settle(p.sequences, n, p.drafted, accepted, p.took, d.step)
	s.result.Drafted, s.result.Accepted = s.result.Drafted+n, s.result.Accepted+accepted
	f.stats.Drafted, f.stats.Accepted = f.stats.Drafted+int64(n), f.stats.Accepted+int64(accepted)
}

// measure takes down what the batch took.
func (l *loop) measure(took time.Duration) {
	if p := &l.drafting.passed; p.sequences > 0 {
		p.took = took
		l.drafting.pace.pass(p.sequences, p.drafted, took)
	}
}

// mtpNote says what the model's own block did for a request.
func (s *session) mtpNote() string {
	e, d := s.l.e, &s.draft
	switch {
	case !e.mtp:
		return e.mtpOff
	case e.opt.mtpTokens > 0:
		return fmt.Sprintf("%d tokens, always", e.opt.mtpTokens)
	}
	return fmt.Sprintf("auto: drafted for %d of %d passes", d.byBlock, d.passes)
}
