package engine

import (
	"errors"
	"fmt"
	"time"
)

// Request asks for a continuation of Tokens.
type Request struct {
	Tokens    []int32 // the whole prompt; never cut
	MaxTokens int     // -1: to the end of the context
	Sampling  Sampling
	Stop      []string // the text ends before the first of these
	IgnoreEOS bool     // end tokens are never chosen
	Logprobs  bool     // report them, with Sampling.TopLogprobs alternatives
}

// Event is what a running request reports: a piece of prompt read, or text made.
type Event struct {
	Text     string  // whole runes; may be empty while a stop string or a character is incomplete
	Tokens   []int32 // made since the last event
	Logprobs []TokenLogprob
	// Prompt progress; Total is 0 in events with text.
	Processed, Total int
}

// TokenLogprob is one chosen token with its log-probability and the best alternatives.
type TokenLogprob struct {
	Token   int32
	Logprob float32
	Top     []TokenLogprob // without Top of their own
}

// Result ends a request.
type Result struct {
	Text         string
	Tokens       []int32
	Finish       string // "stop" or "length"
	StopString   string // the stop string that ended it, if one did
	PromptTokens int
	CachedTokens int           // of the prompt, kept from an earlier request
	PromptTime   time.Duration // reading the prompt
	DecodeTime   time.Duration // from the first token to the last
	FirstToken   time.Duration // from the request to the first token
	Drafted      int           // tokens guessed and verified
	Accepted     int           // of those, the right ones
	MTP          string        // what the model's own block of multi-token prediction did
}

// Kinds of refusals; match with errors.Is.
var (
	ErrBusy   = errors.New("engine: queue full")
	ErrClosed = errors.New("engine: closed")
)

// ContextError refuses a prompt that does not fit; it is never cut.
type ContextError struct {
	PromptTokens int
	Context      int
	AtLeast      bool // it has PromptTokens or more: it was not split into tokens, so long is it
}

func (e *ContextError) Error() string {
	least := ""
	if e.AtLeast {
		least = "at least "
	}
	return fmt.Sprintf("engine: the prompt has %s%d tokens, the context %d: shorten it or raise -c", least, e.PromptTokens, e.Context)
}
