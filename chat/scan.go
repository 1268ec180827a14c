package chat

import "strings"

// tag is {{ ... }} or {% ... %}.
type tag struct {
	at, close int // the whole tag
	from, end int // what is inside
	statement bool
	keyword   string // of a statement
}

// text is what is inside, without white space around.
func (t tag) text(source string) string { return strings.TrimSpace(source[t.from:t.end]) }

// scan finds the tags of the template; quotes hide the ends of tags.
func (p *preparer) scan() ([]tag, error) {
	var tags []tag
	s := p.source
	for i := 0; i+1 < len(s); {
		open := strings.IndexByte(s[i:], '{')
		if open < 0 || i+open+1 >= len(s) {
			break
		}
		i += open
		t := tag{at: i}
		switch s[i+1] {
		case '#':
			end := strings.Index(s[i+2:], "#}")
			if end < 0 {
				return nil, p.fail(i, "the comment is never closed")
			}
			i += 2 + end + 2
			continue
		case '{':
			t.close = tagEnd(s, i+2, "}}")
		case '%':
			t.statement = true
			t.close = tagEnd(s, i+2, "%}")
		default:
			i++
			continue
		}
		if t.close < 0 {
			return nil, p.fail(i, "the tag is never closed")
		}
		t.from, t.end = i+2, t.close-2
		if t.from < t.end && s[t.from] == '-' {
			t.from++
		}
		if t.from < t.end && s[t.end-1] == '-' {
			t.end--
		}
		if t.statement {
			t.keyword = keyword(t.text(s))
		}
		tags = append(tags, t)
		i = t.close
	}
	return tags, nil
}

// tagEnd gives the offset behind the closing mark, or -1.
func tagEnd(s string, i int, mark string) int {
	for i < len(s) {
		if s[i] == '\'' || s[i] == '"' {
			i = stringEnd(s, i)
			continue
		}
		if strings.HasPrefix(s[i:], mark) {
			return i + len(mark)
		}
		i++
	}
	return -1
}

// stringEnd gives the offset behind the string literal at s[i:].
func stringEnd(s string, i int) int {
	quote := s[i]
	for i++; i < len(s) && s[i] != quote; i++ {
		if s[i] == '\\' {
			i++
		}
	}
	return min(i+1, len(s))
}

func keyword(s string) string {
	n := 0
	for n < len(s) && (isLetter(s[n])) {
		n++
	}
	return s[:n]
}

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' || b == '_' }

func isWord(b byte) bool { return isLetter(b) || b >= '0' && b <= '9' }

// lexeme is a name, a number, a string literal or one other character of a tag.
type lexeme struct {
	at   int
	text string
}

func (l lexeme) name() bool { return isLetter(l.text[0]) }

func (p *preparer) lex(t tag) []lexeme {
	var out []lexeme
	s := p.source[:t.end]
	for i := t.from; i < len(s); {
		from := i
		switch {
		case s[i] == '\'' || s[i] == '"':
			i = stringEnd(s, i)
		case isWord(s[i]):
			for i < len(s) && isWord(s[i]) {
				i++
			}
		default:
			i++
		}
		if text := s[from:i]; strings.TrimSpace(text) != "" {
			out = append(out, lexeme{from, text})
		}
	}
	return out
}
