package server

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// Engine is what the server asks of a loaded model. All methods may be called at the same time.
type Engine interface {
	// Generate continues a prompt; see engine.Engine.
	Generate(ctx context.Context, r engine.Request, fn func(engine.Event) error) (engine.Result, error)
	// Encode turns raw text into a prompt: control tokens are recognised, and a token that starts
	// every text is put in front where the model wants one. An *engine.ContextError refuses what
	// cannot fit, here and below.
	Encode(text string) ([]int32, error)
	// EncodeChat renders messages with the model's template. Control tokens spelt in messages
	// stay text. Errors are of kind ErrMessages, chat.ErrTemplate or
	// chat.ErrSyntax.
	EncodeChat(c Chat) (Prompt, error)
	// Token is the text of one token, perhaps a part of a character.
	Token(id int32) string
	Vocab() int   // tokens in the vocabulary
	Context() int // tokens a prompt and its answer may have together
	ModelName() string
}

// ErrMessages is the kind of a chat that cannot be rendered; the error's text is for the client.
// Errors of kind chat.ErrTemplate need not be wrapped.
var ErrMessages = errors.New("server: messages refused")

// Chat is a conversation to be continued.
type Chat struct {
	Messages           []chat.Message
	Tools              json.RawMessage // an array of tool definitions, members in the client's order; nil: none
	Kwargs             json.RawMessage // an object of variables for the template; nil: none
	NoGenerationPrompt bool            // the answer continues the last message
}

// Prompt is a rendered chat.
type Prompt struct {
	Tokens   []int32
	Splitter Splitter // nil: the answer is all content
	Stop     []string // ends the answer beside what the client asks for
}

// Splitter takes an answer in pieces and tells thinking text from content; see chat.Splitter.
type Splitter interface {
	Push(text string) (reasoning, content string)
	Flush() (reasoning, content string)
}
