package chat

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// How it is known which control tokens of a rendered prompt are the template's own: the prompt is rendered a second
// time with every control token inside the request's strings replaced by a private-use character, which the template
// passes on like any other. Putting the texts back gives the prompt again, and the places where they go are literal.
// Where the template looks at such a text (it cuts thinking text off an earlier answer, say), the second prompt differs;
// then only those occurrences are hidden that make no difference, and the others are the template's to consume.

// controls are the texts that must not become control tokens.
type controls struct {
	byFirst [256][]string // longest first
	// heads and tails are the proper prefixes and suffixes of the texts: at the edge of a string they might be completed
	// by what the template puts beside it.
	heads, tails map[string]bool
	longest      int
}

func newControls(texts []string) controls {
	c := controls{heads: map[string]bool{}, tails: map[string]bool{}}
	for _, t := range texts {
		if t == "" {
			continue
		}
		c.byFirst[t[0]] = append(c.byFirst[t[0]], t)
		c.longest = max(c.longest, len(t))
		for i := 1; i < len(t); i++ {
			c.heads[t[:i]], c.tails[t[i:]] = true, true
		}
	}
	for _, ts := range c.byFirst {
		slices.SortFunc(ts, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	}
	return c
}

// at gives the length of the longest text at s[i:], 0 if none.
func (c *controls) at(s string, i int) int {
	for _, t := range c.byFirst[s[i]] {
		if strings.HasPrefix(s[i:], t) {
			return len(t)
		}
	}
	return 0
}

// find gives the ranges of s to hide, in order: whole texts, and pieces of them at the edges.
func (c *controls) find(s string) [][2]int {
	var out [][2]int
	for i := 0; i < len(s); {
		n := c.at(s, i)
		if n > 0 {
			out = append(out, [2]int{i, i + n})
		}
		i += max(n, 1)
	}
	body := strings.TrimSpace(s)
	from := strings.Index(s, body)
	to := from + len(body)
	if len(out) > 0 {
		to = min(to, out[0][0])
	}
	for n := min(c.longest-1, to-from); n > 0; n-- {
		if c.tails[s[from:from+n]] {
			out = slices.Insert(out, 0, [2]int{from, from + n})
			break
		}
	}
	to = from + len(body)
	if len(out) > 0 {
		from = max(from, out[len(out)-1][1])
	}
	for n := min(c.longest-1, to-from); n > 0; n-- {
		if c.heads[s[to-n:to]] {
			return append(out, [2]int{to - n, to})
		}
	}
	return out
}

// hider replaces occurrences of control texts in the strings of a request by placeholders.
type hider struct {
	control *controls
	hidden  func(occurrence int) bool // nil: none
	count   int                       // occurrences seen
	values  int                       // JSON values read

	texts   map[string]rune
	back    map[rune]string
	taken   map[rune]bool // private-use characters of the request and the template
	nextFor rune
}

func newHider(t *Template) *hider {
	h := &hider{control: &t.control, taken: map[rune]bool{}}
	h.take(t.source)
	return h
}

// firstPlaceholder begins the private-use planes.
const firstPlaceholder = 0xF0000

func (h *hider) take(s string) {
	for i := 0; i < len(s); i++ {
		if s[i] < 0xF3 { // a lead byte of these planes
			continue
		}
		if r, _ := utf8.DecodeRuneInString(s[i:]); r >= firstPlaceholder {
			h.taken[r] = true
		}
	}
}

// again gives a hider for the same request that hides the chosen occurrences.
func (h *hider) again(hidden func(int) bool) *hider {
	return &hider{control: h.control, hidden: hidden, taken: h.taken,
		texts: map[string]rune{}, back: map[rune]string{}, nextFor: firstPlaceholder}
}

// hide gives s as the template should see it. A hider sees the strings of a request in the same order every time.
func (h *hider) hide(s string) string {
	if h.hidden == nil {
		h.take(s)
	}
	ranges := h.control.find(s)
	if len(ranges) == 0 {
		return s
	}
	var b strings.Builder
	from := 0
	for _, r := range ranges {
		if h.hidden != nil && h.hidden(h.count) {
			if p, ok := h.placeholder(s[r[0]:r[1]]); ok {
				b.WriteString(s[from:r[0]])
				b.WriteRune(p)
				from = r[1]
			}
		}
		h.count++
	}
	b.WriteString(s[from:])
	return b.String()
}

func (h *hider) placeholder(text string) (rune, bool) {
	if p, ok := h.texts[text]; ok {
		return p, true
	}
	for h.taken[h.nextFor] {
		h.nextFor++
	}
	p := h.nextFor
	if p > utf8.MaxRune {
		return 0, false
	}
	h.nextFor++
	h.texts[text], h.back[p] = p, text
	return p, true
}

// restore puts the texts back in place of the placeholders and gives their ranges.
func (h *hider) restore(s string) Prompt {
	var p Prompt
	var b strings.Builder
	from := 0
	for i, r := range s {
		if r < firstPlaceholder {
			continue
		}
		if text, ok := h.back[r]; ok {
			b.WriteString(s[from:i])
			p.Literal = append(p.Literal, [2]int{b.Len(), b.Len() + len(text)})
			b.WriteString(text)
			from = i + utf8.RuneLen(r)
		}
	}
	b.WriteString(s[from:])
	p.Text = b.String()
	return p
}

// renderLimit bounds the renderings spent on one prompt.
const renderLimit = 100

// locate finds the literal ranges of text, the prompt as rendered without hiding.
func (t *Template) locate(in Input, text string, plain *hider) (Prompt, error) {
	all, err := t.hiding(in, plain, func(int) bool { return true })
	if err == nil && all.Text == text {
		return all, nil
	}
	s := search{t: t, in: in, text: text, plain: plain, hidden: make([]bool, plain.count), best: Prompt{Text: text}}
	if s.try(0, plain.count) {
		return s.best, nil
	}
	// Too many to tell apart: what the template makes of the hidden texts is safe, if not the same.
	return all, err
}

func (t *Template) hiding(in Input, plain *hider, hidden func(int) bool) (Prompt, error) {
	h := plain.again(hidden)
	s, err := t.render(in, h)
	if err != nil {
		return Prompt{}, err
	}
	return h.restore(s), nil
}

// search hides as many occurrences as make no difference, by halves.
type search struct {
	t      *Template
	in     Input
	text   string
	plain  *hider
	hidden []bool
	best   Prompt // with all of hidden
	spent  int
}

// try adds the occurrences [from, to), whole or in parts; false: the limit is reached.
func (s *search) try(from, to int) bool {
	if s.spent++; s.spent > renderLimit {
		return false
	}
	for i := from; i < to; i++ {
		s.hidden[i] = true
	}
	p, err := s.t.hiding(s.in, s.plain, func(i int) bool { return s.hidden[i] })
	if err == nil && p.Text == s.text {
		s.best = p
		return true
	}
	for i := from; i < to; i++ {
		s.hidden[i] = false
	}
	if to-from == 1 {
		return true
	}
	mid := (from + to) / 2
	return s.try(from, mid) && s.try(mid, to)
}
