// Package chat turns messages into the prompt a model was trained on, by the Jinja template of its file, and tells
// thinking text from content in what the model answers.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ardanlabs/jinja"
)

// Kinds of errors; match with errors.Is.
var (
	// ErrTemplate is a request that the template refuses or fails on; the text is the template's own where it has one.
	ErrTemplate = errors.New("chat: template")
	// ErrSyntax is a template that cannot be used at all; the text has line and column.
	ErrSyntax = errors.New("chat: template cannot be used")
)

// Message is one turn of a conversation.
type Message struct {
	Role       string // system, user, assistant, tool, or what the template knows
	Content    string
	NoContent  bool   // the content is null, which some templates tell from ""
	Reasoning  string // thinking text of an earlier answer
	ToolCalls  []ToolCall
	ToolCallID string // of a tool's answer
	Name       string
}

// ToolCall is a call that an earlier answer asked for. Arguments is JSON text, as the OpenAI API has it; the template
// gets the object it spells, or the text where it spells none.
type ToolCall struct{ ID, Name, Arguments string }

// Input is what a prompt is made of.
type Input struct {
	Messages           []Message
	Tools              []json.RawMessage // tool definitions; the order of members is kept
	NoGenerationPrompt bool              // the answer continues the last message
	Kwargs             map[string]any    // more variables for the template: JSON values, json.RawMessage to keep an order
	Now                time.Time         // for strftime_now; zero: the time of rendering
}

// Prompt is a rendered conversation.
type Prompt struct {
	Text string
	// Literal are the byte ranges [from, to) of Text, in order, that spell control tokens, or pieces of them, but came
	// from the request: they must be taken as text.
	Literal [][2]int
}

// Options are the properties of a model that its template or its rendering needs.
type Options struct {
	BOS, EOS string   // texts of the tokens
	Control  []string // texts of all control tokens
}

// Template is a compiled template. It is safe for use by many goroutines.
type Template struct {
	name    string
	source  string
	opt     Options
	jinja   *jinja.Template
	control controls
}

// chatML is used where a file has no template.
const chatML = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// New compiles a template; an empty source stands for ChatML. Errors wrap ErrSyntax.
func New(source string, opt Options) (*Template, error) {
	t := &Template{name: "file", source: source, opt: opt, control: newControls(opt.Control)}
	if source == "" {
		t.name, t.source = "chatml", chatML
	}
	var err error
	t.jinja, err = prepare(t.source)
	return t, err
}

// Name is "file" for a template of the model's file and "chatml" where the file has none.
func (t *Template) Name() string { return t.name }

// Render makes the prompt. Errors wrap ErrTemplate. The text is the same as if control tokens meant nothing to anybody:
// hiding them from the template only serves to know where they end up.
func (t *Template) Render(in Input) (Prompt, error) {
	if in.Now.IsZero() {
		in.Now = time.Now()
	}
	plain := newHider(t)
	text, err := t.render(in, plain)
	if err != nil {
		return Prompt{}, err
	}
	if plain.count == 0 {
		return Prompt{Text: text}, nil
	}
	return t.locate(in, text, plain)
}

// render runs the template once; h sees every string of the request.
func (t *Template) render(in Input, h *hider) (text string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: fails: %v", ErrTemplate, p)
		}
	}()
	vars, err := t.variables(in, h)
	if err != nil {
		return "", err
	}
	text, err = t.jinja.RenderValues(vars)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrTemplate, err)
	}
	return text, nil
}
