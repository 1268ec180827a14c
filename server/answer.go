package server

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/engine"
)

// piece is a part of an answer, or all of it.
type piece struct {
	reasoning, content string
	logprobs           []engine.TokenLogprob
	finish             string // "": not the last
	usage              *usage
	timings            *timings
}

// format makes the objects of one route.
type format interface {
	first() any        // the chunk before all others; nil: none
	chunk(p piece) any // one part
	whole(p piece) any // a whole answer
	total(u usage) any // the chunk with usage alone
	splits() bool      // thinking text stands apart
}

// usage counts tokens as clients expect it.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Completion int           `json:"completion_tokens"`
	Total      int           `json:"total_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	Cached int `json:"cached_tokens"`
}

func usageOf(r engine.Result) usage {
	n := len(r.Tokens)
	return usage{r.PromptTokens, n, r.PromptTokens + n, promptDetails{r.CachedTokens}}
}

// timings has the names of llama.cpp's server.
type timings struct {
	CacheN       int     `json:"cache_n"`
	PromptN      int     `json:"prompt_n"`
	PromptMS     float64 `json:"prompt_ms"`
	PromptRate   float64 `json:"prompt_per_second"`
	PredictedN   int     `json:"predicted_n"`
	PredictedMS  float64 `json:"predicted_ms"`
	PredictedPer float64 `json:"predicted_per_second"`
}

func timingsOf(r engine.Result) *timings {
	read, made := r.PromptTokens-r.CachedTokens, len(r.Tokens)
	return &timings{
		CacheN: r.CachedTokens, PromptN: read, PromptMS: milliseconds(r.PromptTime), PromptRate: rate(read, r.PromptTime),
		// The first token came out of the prompt.
		PredictedN: made, PredictedMS: milliseconds(r.DecodeTime), PredictedPer: rate(made-1, r.DecodeTime),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// task is what is left of a body once it is tokens, so that its memory is free while the request waits and runs.
type task struct {
	generation
	split  Splitter // nil: the answer is all content
	format format
}

// generate is the handler of a route whose bodies read understands.
func (s *Server) generate(read func(body []byte, e Engine) (*task, error)) func(http.ResponseWriter, *http.Request, Engine) {
	return func(w http.ResponseWriter, q *http.Request, e Engine) {
		leave, err := s.enter()
		if err != nil {
			writeError(w, asAPIError(err))
			return
		}
		defer leave()
		t, err := s.readTask(w, q, e, read)
		if err != nil {
			writeError(w, s.fault(q, err))
			return
		}
		s.answer(w, q, e, t)
	}
}

func (s *Server) readTask(w http.ResponseWriter, q *http.Request, e Engine, read func(body []byte, e Engine) (*task, error)) (*task, error) {
	body, release, err := s.readBody(w, q)
	if err != nil {
		return nil, err
	}
	defer release()
	return read(body, e)
}

// answer generates and sends what was asked for. The place of the request is held by the caller.
func (s *Server) answer(w http.ResponseWriter, q *http.Request, e Engine, t *task) {
	g, split, f := &t.generation, t.split, t.format
	if n := e.Context(); len(g.Tokens) >= n {
		writeError(w, s.fault(q, &engine.ContextError{PromptTokens: len(g.Tokens), Context: n}))
		return
	}
	if err := g.Sampling.Validate(e.Vocab()); err != nil {
		writeError(w, asAPIError(err))
		return
	}
	if !g.Logprobs {
		g.Sampling.TopLogprobs = 0
	}
	if !f.splits() {
		split = nil
	}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	if g.stream {
		st := newStream(w, s.opt.KeepAlive, cancel)
		defer st.close()
		if err := s.answerStream(ctx, st, e, g, split, f); err != nil && q.Context().Err() == nil {
			_ = st.send(errorBody{s.fault(q, err)}) // if that fails too, the client has gone
		}
		return
	}
	whole, err := s.answerWhole(ctx, e, g, split)
	if err == nil {
		writeJSON(w, http.StatusOK, f.whole(whole))
	} else if q.Context().Err() == nil {
		writeError(w, s.fault(q, err))
	}
}

// promptField is where the routes that generate have what must fit the context.
var promptField = map[string]string{chatRoute: "messages", completionRoute: "prompt"}

// fault is what the client is told; faults of the server's own are logged too.
func (s *Server) fault(q *http.Request, err error) *apiError {
	e := asAPIError(err)
	if e.Type == typeContext {
		e.at(promptField[q.URL.Path])
	}
	if e.status == http.StatusInternalServerError {
		s.opt.Log.Error().Str("path", q.URL.Path).Err(err).Msg("request failed")
	}
	return e
}

func (s *Server) answerStream(ctx context.Context, st *stream, e Engine, g *generation, split Splitter, f format) error {
	first := f.first()
	send := func(p piece) error {
		if first != nil {
			if err := st.send(first); err != nil {
				return err
			}
			first = nil
		}
		return st.send(f.chunk(p))
	}
	c := collector{split: split}
	result, err := e.Generate(ctx, g.Request, func(ev engine.Event) error {
		if err := c.add(ev); err != nil {
			return err
		}
		return c.deltas(send)
	})
	if err != nil {
		return err
	}
	c.flush()
	if err := c.deltas(send); err != nil {
		return err
	}
	if err := send(piece{logprobs: c.logprobs, finish: result.Finish, timings: timingsOf(result)}); err != nil {
		return err
	}
	if g.includeUsage {
		if err := st.send(f.total(usageOf(result))); err != nil {
			return err
		}
	}
	return st.done()
}

func (s *Server) answerWhole(ctx context.Context, e Engine, g *generation, split Splitter) (piece, error) {
	c := collector{split: split}
	var reasoning, content strings.Builder
	keep := func() {
		reasoning.WriteString(c.reasoning)
		content.WriteString(c.content)
		c.reasoning, c.content = "", ""
	}
	result, err := e.Generate(ctx, g.Request, func(ev engine.Event) error {
		err := c.add(ev)
		keep()
		return err
	})
	if err != nil {
		return piece{}, err
	}
	c.flush()
	keep()
	u := usageOf(result)
	return piece{reasoning.String(), content.String(), c.logprobs, result.Finish, &u, timingsOf(result)}, nil
}

// collector turns events into the parts of an answer that have not been sent yet.
type collector struct {
	split              Splitter
	reasoning, content string
	logprobs           []engine.TokenLogprob
}

func (c *collector) add(ev engine.Event) error {
	for _, p := range ev.Logprobs {
		if p.Logprob != p.Logprob {
			return engine.ErrNaN // JSON has no word for it, and the answer is worth nothing
		}
	}
	c.logprobs = append(c.logprobs, ev.Logprobs...)
	if c.split == nil {
		c.content += ev.Text
		return nil
	}
	r, t := c.split.Push(ev.Text)
	c.reasoning += r
	c.content += t
	return nil
}

func (c *collector) flush() {
	if c.split != nil {
		r, t := c.split.Flush()
		c.reasoning += r
		c.content += t
	}
}

// deltas sends what is there, thinking text first. Log-probabilities go with the text that the
// tokens made; those of text still held back wait for it.
func (c *collector) deltas(send func(piece) error) error {
	var parts []piece
	if c.reasoning != "" {
		parts = append(parts, piece{reasoning: c.reasoning})
	}
	if c.content != "" {
		parts = append(parts, piece{content: c.content})
	}
	if len(parts) == 0 {
		return nil
	}
	parts[len(parts)-1].logprobs = c.logprobs
	c.reasoning, c.content, c.logprobs = "", "", nil
	for _, p := range parts {
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}

// finite replaces minus infinity, which JSON cannot say.
func finite(logprob float32) float32 {
	if math.IsInf(float64(logprob), -1) {
		return engine.LogprobFloor
	}
	return logprob
}
