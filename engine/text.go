package engine

import (
	"github.com/epq-uring/epq-uring/chat"
)

// EncodeText turns raw text into a prompt: special tokens are parsed, and the token that starts every text is put in
// front where the model wants one.
func (e *Engine) EncodeText(text string) []int32 {
	return e.withBOS(e.tok.Encode(text, true))
}

// EncodeChat renders messages with the model's template; the text is for those who must know how the prompt ends.
// Control tokens spelt inside messages stay text.
func (e *Engine) EncodeChat(in chat.Input) (ids []int32, text string, err error) {
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
