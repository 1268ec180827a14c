package main

import (
	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// visible is what a user sees of an answer: of a model that answers in channels the final one, else everything, thinking
// text included.
type visible struct {
	split chat.Answer // nil: everything
	text  string      // so far
}

// newVisible is for the answer to a rendered chat; prompt is its text.
func newVisible(e *engine.Engine, prompt string) *visible {
	if e.Chat().Channels() {
		return &visible{split: e.Chat().Answer(prompt)}
	}
	return &visible{}
}

// push takes a piece of the answer and returns what of it is shown.
func (v *visible) push(piece string) string {
	if v.split != nil {
		_, piece = v.split.Push(piece)
	}
	v.text += piece
	return piece
}

// end returns what is shown behind the last piece.
func (v *visible) end() (piece string) {
	if v.split != nil {
		_, piece = v.split.Flush()
	}
	v.text += piece
	return piece
}
