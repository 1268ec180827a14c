package engine

import (
	"github.com/epq-uring/epq-uring/chat"
)

// EncodeText turns raw text into a prompt: special tokens are parsed, and the token that starts every text is put in
// front where the model wants one. A *ContextError refuses what cannot fit before any work is spent on it.
func (e *Engine) EncodeText(text string) ([]int32, error) {
	if err := e.mayFit(len(text)); err != nil {
		return nil, err
	}
	return e.withBOS(e.tok.Encode(text, true)), nil
}

// mayFit refuses a text of so many bytes when even the longest tokens would fill the context: rendering and splitting a
// body of many MiB takes fifty times its size in memory.
func (e *Engine) mayFit(bytes int) error {
	if least := bytes / e.tok.Longest(); least >= e.opt.Context {
		return &ContextError{PromptTokens: least, Context: e.opt.Context, AtLeast: true}
	}
	return nil
}

// EncodeChat renders messages with the model's template; the text is for those who must know how the prompt ends.
// Control tokens spelt inside messages stay text. The error is a chat.ErrTemplate, or a chat.ErrSyntax where the model's
// template cannot be used at all.
func (e *Engine) EncodeChat(in chat.Input) (ids []int32, text string, err error) {
	if e.chatErr != nil {
		return nil, "", e.chatErr
	}
	bytes := 0
	for _, m := range in.Messages {
		if m.Role != "assistant" { // templates leave parts of earlier answers out
			bytes += len(m.Content)
		}
	}
	if err := e.mayFit(bytes); err != nil {
		return nil, "", err
	}
	p, err := e.chat.Render(in)
	if err != nil {
		return nil, "", err
	}
	return e.withBOS(e.tok.EncodeExcept(p.Text, p.Literal)), p.Text, nil
}

// withBOS makes sure of exactly one BOS at the front where the model wants one, whether or not a template wrote it too.
func (e *Engine) withBOS(ids []int32) []int32 {
	bos, ok := e.tok.BOS()
	if !ok {
		return ids
	}
	for len(ids) > 1 && ids[0] == bos && ids[1] == bos {
		ids = ids[1:]
	}
	if e.tok.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids
}
