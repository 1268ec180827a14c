package chat

import "strings"

const (
	openThink  = "<think>"
	closeThink = "</think>"
	blank      = " \t\r\n"
)

// Splitter takes the text of an answer as it comes and tells thinking text from content. Thinking text is what lies
// before </think>, if the prompt has opened it or the answer begins with <think>; white space around both is dropped.
// The joined pieces do not depend on how the text was cut. A piece of a tag never shows up. A Splitter belongs to one
// goroutine.
type Splitter struct {
	state state
	held  string // may be the beginning of a tag, or white space that may turn out to be at the end
}

type state uint8

const (
	begin    state = iota // white space or a piece of <think> so far
	thinking              // nothing but white space so far
	thought               // inside of thinking text
	between               // behind </think>, white space so far
	content
)

// NewSplitter makes the splitter of the answer to prompt.
func NewSplitter(prompt string) *Splitter {
	s := &Splitter{}
	if strings.HasSuffix(strings.TrimRight(prompt, blank), openThink) {
		s.state = thinking
	}
	return s
}

// Push adds text and gives what is certain now.
func (s *Splitter) Push(text string) (reasoning, answer string) {
	text, s.held = s.held+text, ""
	for text != "" {
		switch s.state {
		case begin:
			text = s.begin(text)
		case thinking, between:
			if text = strings.TrimLeft(text, blank); text != "" {
				s.state++
			}
		case thought:
			var r string
			r, text = s.think(text)
			reasoning += r
		case content:
			return reasoning, text
		}
	}
	return reasoning, ""
}

// begin decides whether the answer begins with <think>, and gives what is left to look at.
func (s *Splitter) begin(text string) string {
	body := strings.TrimLeft(text, blank)
	switch {
	case strings.HasPrefix(body, openThink):
		s.state = thinking
		return body[len(openThink):]
	case strings.HasPrefix(openThink, body):
		s.held = text
		return ""
	}
	s.state = content
	return text
}

// think gives the thinking text that is certain, and what follows the closing tag.
func (s *Splitter) think(text string) (reasoning, rest string) {
	if i := strings.Index(text, closeThink); i >= 0 {
		s.state = between
		return strings.TrimRight(text[:i], blank), text[i+len(closeThink):]
	}
	end := len(text)
	for n := min(len(closeThink)-1, len(text)); n > 0; n-- {
		if strings.HasSuffix(text, closeThink[:n]) {
			end -= n
			break
		}
	}
	end = len(strings.TrimRight(text[:end], blank))
	s.held = text[end:]
	return text[:end], ""
}

// Flush ends the answer. What was held back is dropped, except for white space or "<" that is all there is.
func (s *Splitter) Flush() (reasoning, answer string) {
	held := s.held
	s.held = ""
	if s.state == begin && len(strings.TrimLeft(held, blank)) < 2 {
		return "", held
	}
	return "", ""
}
