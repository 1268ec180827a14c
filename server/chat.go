package server

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/epq-uring/epq-uring/engine"
)

// readChat reads the body of POST /v1/chat/completions.
func (s *Server) readChat(body []byte, e Engine) (*task, error) {
	r, err := parseChat(body, *s.opt.Default)
	if err != nil {
		return nil, err
	}
	p, err := e.EncodeChat(r.Chat)
	if err != nil {
		return nil, err
	}
	g := r.generation
	g.Tokens = p.Tokens
	g.Stop = append(slices.Clone(g.Stop), p.Stop...)
	return &task{g, p.Splitter, &chatFormat{newHeader("chatcmpl-", e), g.Logprobs, e}}, nil
}

// header is what all objects of one answer begin with.
type header struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func newHeader(prefix string, e Engine) header {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return header{ID: prefix + hex.EncodeToString(b[:]), Created: time.Now().Unix(), Model: e.ModelName()}
}

func (h header) as(object string) header {
	h.Object = object
	return h
}

// chatFormat makes chat.completion objects and their chunks.
type chatFormat struct {
	header
	logprobs bool
	engine   Engine
}

type chatObject struct {
	header
	Choices []chatChoice `json:"choices"`
	Usage   *usage       `json:"usage,omitempty"`
	Timings *timings     `json:"timings,omitempty"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  any           `json:"message,omitempty"`
	Delta    any           `json:"delta,omitempty"`
	Logprobs *chatLogprobs `json:"logprobs,omitempty"`
	Finish   *string       `json:"finish_reason"`
}

// opening is the first delta: its content is null.
type opening struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
}

type delta struct {
	Reasoning string `json:"reasoning_content,omitempty"`
	Content   string `json:"content,omitempty"`
}

type chatMessage struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"`
}

func (f *chatFormat) splits() bool { return true }

func (f *chatFormat) object(kind string, p piece, c chatChoice) chatObject {
	if f.logprobs {
		c.Logprobs = f.chatLogprobs(p.logprobs)
	}
	if p.finish != "" {
		c.Finish = &p.finish
	}
	return chatObject{f.as(kind), []chatChoice{c}, p.usage, p.timings}
}

const chatChunk = "chat.completion.chunk"

func (f *chatFormat) first() any {
	return chatObject{header: f.as(chatChunk), Choices: []chatChoice{{Delta: opening{Role: "assistant"}}}}
}

func (f *chatFormat) chunk(p piece) any {
	return f.object(chatChunk, p, chatChoice{Delta: delta{p.reasoning, p.content}})
}

func (f *chatFormat) whole(p piece) any {
	return f.object("chat.completion", p, chatChoice{Message: chatMessage{"assistant", p.content, p.reasoning}})
}

func (f *chatFormat) total(u usage) any {
	return chatObject{header: f.as(chatChunk), Choices: []chatChoice{}, Usage: &u}
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
}

type chatLogprob struct {
	Token   string        `json:"token"`
	Logprob float32       `json:"logprob"`
	Bytes   []int         `json:"bytes"` // of the token, which may be a part of a character
	Top     []chatLogprob `json:"top_logprobs,omitempty"`
}

func (f *chatFormat) chatLogprobs(list []engine.TokenLogprob) *chatLogprobs {
	out := &chatLogprobs{Content: make([]chatLogprob, len(list))}
	for i, p := range list {
		out.Content[i] = f.chatLogprob(p)
		for _, t := range p.Top {
			out.Content[i].Top = append(out.Content[i].Top, f.chatLogprob(t))
		}
	}
	return out
}

func (f *chatFormat) chatLogprob(p engine.TokenLogprob) chatLogprob {
	text := f.engine.Token(p.Token)
	l := chatLogprob{Token: text, Logprob: finite(p.Logprob), Bytes: make([]int, len(text))}
	for i := range len(text) {
		l.Bytes[i] = int(text[i])
	}
	if !utf8.ValidString(text) {
		l.Token = spell(text)
	}
	return l
}

// spell writes bytes that are no text as OpenAI does: bytes:\xe6\x97.
func spell(text string) string {
	out := []byte("bytes:")
	for i := range len(text) {
		out = append(out, '\\', 'x')
		out = hex.AppendEncode(out, []byte{text[i]})
	}
	return string(out)
}
