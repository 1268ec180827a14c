package chat

import "strings"

// Answer takes the text of an answer as it comes and tells thinking text from content.
type Answer interface {
	// Push adds text and gives what is certain now.
	Push(text string) (reasoning, answer string)
	// Flush ends the answer and gives what was held back.
	Flush() (reasoning, answer string)
}

// Answer makes the splitter of the answer to a rendered prompt.
func (t *Template) Answer(prompt string) Answer {
	if t.Channels() {
		return newChannelSplitter(prompt)
	}
	return NewSplitter(prompt)
}

// Channels reports whether the model answers in channels, of which only the final one is for the user.
func (t *Template) Channels() bool {
	return strings.Contains(t.source, channelTag) && strings.Contains(t.source, messageTag)
}

// Stops are texts that begin somebody else's turn: an answer ends before the first of them.
func (t *Template) Stops() []string {
	if strings.Contains(t.source, "<role>") {
		return []string{"<role>"}
	}
	return nil
}
