package server

import "github.com/epq-uring/epq-uring/engine"

// readCompletion reads the body of POST /v1/completions.
func (s *Server) readCompletion(body []byte, e Engine) (*task, error) {
	r, err := parseCompletion(body, *s.opt.Default, e.Vocab())
	if err != nil {
		return nil, err
	}
	g := r.generation
	if g.Tokens = r.tokens; g.Tokens == nil {
		if g.Tokens, err = e.Encode(r.prompt); err != nil {
			return nil, err
		}
	}
	if len(g.Tokens) == 0 {
		return nil, badRequest("prompt", "prompt has no tokens")
	}
	return &task{g, nil, &completionFormat{header: newHeader("cmpl-", e).as("text_completion"), logprobs: g.Logprobs, engine: e}}, nil
}

// completionFormat makes text_completion objects; chunks have the same shape.
type completionFormat struct {
	header
	logprobs bool
	engine   Engine
	offset   int // bytes of text so far, for log-probabilities
}

type completionObject struct {
	header
	Choices []completionChoice `json:"choices"`
	Usage   *usage             `json:"usage,omitempty"`
	Timings *timings           `json:"timings,omitempty"`
}

type completionChoice struct {
	Index    int                 `json:"index"`
	Text     string              `json:"text"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Finish   *string             `json:"finish_reason"`
}

func (f *completionFormat) splits() bool { return false }

func (f *completionFormat) first() any { return nil }

func (f *completionFormat) chunk(p piece) any { return f.whole(p) }

func (f *completionFormat) whole(p piece) any {
	c := completionChoice{Text: p.content}
	if f.logprobs {
		c.Logprobs = f.completionLogprobs(p.logprobs)
	}
	if p.finish != "" {
		c.Finish = &p.finish
	}
	return completionObject{f.header, []completionChoice{c}, p.usage, p.timings}
}

func (f *completionFormat) total(u usage) any {
	return completionObject{header: f.header, Choices: []completionChoice{}, Usage: &u}
}

type completionLogprobs struct {
	Tokens  []string             `json:"tokens"`
	Chosen  []float32            `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

func (f *completionFormat) completionLogprobs(list []engine.TokenLogprob) *completionLogprobs {
	out := &completionLogprobs{Tokens: []string{}, Chosen: []float32{}, Top: []map[string]float32{}, Offsets: []int{}}
	for _, p := range list {
		text := f.engine.Token(p.Token)
		top := map[string]float32{}
		for _, t := range p.Top {
			top[f.engine.Token(t.Token)] = finite(t.Logprob)
		}
		out.Tokens = append(out.Tokens, text)
		out.Chosen = append(out.Chosen, finite(p.Logprob))
		out.Top = append(out.Top, top)
		out.Offsets = append(out.Offsets, f.offset)
		f.offset += len(text)
	}
	return out
}
