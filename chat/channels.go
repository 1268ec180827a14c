package chat

import "strings"

// Tags of models that answer in messages, each for a channel: <|channel|>NAME<|message|>TEXT<|end|><|start|>assistant...
// The words before <|message|> are a message's header.
const (
	startTag     = "<|start|>"
	channelTag   = "<|channel|>"
	messageTag   = "<|message|>"
	finalChannel = "final"
)

// bodyEnds are the tags that end a message's text.
var bodyEnds = []string{"<|end|>", startTag, channelTag}

// ChannelSplitter is the Splitter of such models: the final channel is the answer, all others are thinking text. An answer
// that does not begin with a header is all content. A tag never shows up, nor a piece of one.
type ChannelSplitter struct {
	state  channelState
	header string
	final  bool
	held   string // may be the beginning of a tag
}

type channelState uint8

const (
	opening channelState = iota // nothing has come yet
	inHeader
	inBody
)

// newChannelSplitter makes the splitter of the answer to prompt, whose end may have opened a message already.
func newChannelSplitter(prompt string) *ChannelSplitter {
	s := &ChannelSplitter{}
	last := prompt[strings.LastIndex(prompt, startTag)+1:]
	if i := strings.Index(last, channelTag); i >= 0 && !strings.Contains(last, bodyEnds[0]) {
		s.Push(last[i:])
	}
	return s
}

// Push adds text and gives what is certain now.
func (s *ChannelSplitter) Push(text string) (reasoning, answer string) {
	text, s.held = s.held+text, ""
	for text != "" {
		switch s.state {
		case opening:
			if strings.HasPrefix(channelTag, text) || strings.HasPrefix(startTag, text) || strings.HasPrefix(" to=", text) {
				s.held = text
				return reasoning, answer
			}
			s.state, s.header = inHeader, ""
			if !strings.HasPrefix(text, channelTag) && !strings.HasPrefix(text, startTag) && !strings.HasPrefix(text, " to=") {
				s.state, s.final = inBody, true
			}
		case inHeader:
			s.header += text
			text = ""
			if head, body, ok := strings.Cut(s.header, messageTag); ok {
				s.state, s.final, text = inBody, channelOf(head) == finalChannel, body
			}
		case inBody:
			body, rest := s.body(text)
			if s.final {
				answer += body
			} else {
				reasoning += body
			}
			text = rest
		}
	}
	return reasoning, answer
}

// channelOf is the channel that a header names: the first word behind its last tag.
func channelOf(header string) string {
	i := strings.LastIndex(header, channelTag)
	if i < 0 {
		return finalChannel // a message to nobody in particular
	}
	f := strings.FieldsFunc(header[i+len(channelTag):], func(r rune) bool { return r == ' ' || r == '<' || r == '\n' })
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

// body gives the text of a message that is certain, and what follows it from the next header on.
func (s *ChannelSplitter) body(text string) (body, rest string) {
	for i := range len(text) {
		if text[i] != '<' {
			continue
		}
		for _, tag := range bodyEnds {
			if strings.HasPrefix(text[i:], tag) {
				s.state, s.header = inHeader, ""
				return text[:i], text[i:]
			}
			if strings.HasPrefix(tag, text[i:]) {
				s.held = text[i:]
				return text[:i], ""
			}
		}
	}
	return text, ""
}

// Flush ends the answer. The beginning of a tag that was held back is dropped, unless it is a lone "<" or no tag of a text.
func (s *ChannelSplitter) Flush() (reasoning, answer string) {
	held := s.held
	s.held = ""
	switch {
	case strings.HasPrefix(held, "<|") || s.state == inHeader:
		return "", ""
	case s.state == inBody && !s.final:
		return held, ""
	}
	return "", held
}
