package chat

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// Limits of a template, which keep the Jinja library's recursion within the stack.
const (
	sourceLimit = 1 << 20 // bytes
	tagLimit    = 1 << 16 // bytes of one tag
	nestLimit   = 100     // brackets in a tag, blocks in each other
)

// filters and tests are those of the Jinja library: it looks them up while rendering, a misspelt one must fail at load.
var (
	filters = words(`abs batch capitalize count d default dictsort e escape first float fromjson from_json indent int items
		join last length list lower map max min reject rejectattr replace reverse round safe select selectattr sort string
		sum title tojson trim unique upper wordcount`)
	tests = words(`boolean callable defined eq equalto even false float ge greaterthan gt in integer iterable le lessthan
		lower lt mapping ne none number odd sameas sequence string true undefined upper`)
	// blocks maps what opens a block to what closes it.
	blocks = map[string]string{"if": "endif", "for": "endfor", "set": "endset", "macro": "endmacro", "call": "endcall",
		"filter": "endfilter", "raw": "endraw", "generation": "endgeneration"}
)

func words(s string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(s) {
		m[w] = true
	}
	return m
}

// preparer checks a template and collects what to change in it.
type preparer struct {
	source string
	open   []tag // blocks
	edits  []edit
}

// edit replaces n bytes at an offset of the source.
type edit struct {
	at, n int
	text  string
}

// prepare compiles a template. It checks what the Jinja library does not, and turns calls of what it lacks into calls of
// the functions of this package: tojson as Python writes it, split with a limit, raise_exception and range that know
// their place, a limit on the depth of macros.
func prepare(source string) (*jinja.Template, error) {
	p := &preparer{source: source}
	if len(source) > sourceLimit {
		return nil, fmt.Errorf("%w: it has %d bytes, the limit is %d", ErrSyntax, len(source), sourceLimit)
	}
	tags, err := p.scan()
	if err != nil {
		return nil, err
	}
	for _, t := range tags {
		if err := p.tag(t); err != nil {
			return nil, err
		}
	}
	if len(p.open) > 0 {
		t := p.open[len(p.open)-1]
		return nil, p.fail(t.at, "%s is never closed", t.keyword)
	}
	t, err := jinja.Compile(p.apply())
	if err != nil {
		return nil, p.locate(tags, err)
	}
	return t, nil
}

// place is the line and column of an offset, both from 1.
func (p *preparer) place(at int) string {
	before := p.source[:at]
	line := strings.Count(before, "\n") + 1
	column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

func (p *preparer) fail(at int, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrSyntax, p.place(at), fmt.Sprintf(format, args...))
}

// tag checks one tag.
func (p *preparer) tag(t tag) error {
	if raw := len(p.open) > 0 && p.open[len(p.open)-1].keyword == "raw"; raw && t.keyword != "endraw" {
		return nil
	}
	if t.end-t.from > tagLimit {
		return p.fail(t.at, "the tag has %d bytes, the limit is %d", t.end-t.from, tagLimit)
	}
	if t.statement {
		if err := p.statement(t); err != nil {
			return err
		}
	} else if t.text(p.source) == "" {
		return p.fail(t.at, "the tag is empty")
	}
	return p.expression(t)
}

func (p *preparer) statement(t tag) error {
	top := ""
	if len(p.open) > 0 {
		top = p.open[len(p.open)-1].keyword
	}
	rest := strings.TrimSpace(strings.TrimPrefix(t.text(p.source), t.keyword))
	switch t.keyword {
	case "if", "elif", "for", "macro", "call", "filter":
		if rest == "" {
			return p.fail(t.at, "%s lacks its expression", t.keyword)
		}
	}
	switch t.keyword {
	case "break", "continue":
		return nil
	case "elif", "else":
		if top != "if" && (top != "for" || t.keyword == "elif") {
			return p.fail(t.at, "%s without if", t.keyword)
		}
		return nil
	case "set":
		if strings.Contains(rest, "=") {
			return nil
		}
	case "macro":
		p.edits = append(p.edits, edit{at: t.close, text: "{{" + checkDepth + "()}}"})
	}
	if blocks[t.keyword] != "" {
		if len(p.open) == nestLimit {
			return p.fail(t.at, "blocks are nested more than %d deep", nestLimit)
		}
		p.open = append(p.open, t)
		return nil
	}
	if !strings.HasPrefix(t.keyword, "end") {
		return p.fail(t.at, "unknown statement %q", t.keyword)
	}
	if top == "" || blocks[top] != t.keyword {
		return p.fail(t.at, "%s closes nothing", t.keyword)
	}
	p.open = p.open[:len(p.open)-1]
	return nil
}

// expression checks the names in a tag.
func (p *preparer) expression(t tag) error {
	nest, last := 0, lexeme{}
	lexemes := p.lex(t)
	for i, l := range lexemes {
		switch l.text {
		case "(", "[", "{":
			if nest++; nest > nestLimit {
				return p.fail(l.at, "brackets are nested more than %d deep", nestLimit)
			}
		case ")", "]", "}":
			nest--
		}
		called := i+1 < len(lexemes) && lexemes[i+1].text == "("
		if l.name() {
			if err := p.nameAfter(last, l, called); err != nil {
				return err
			}
		}
		if last.text == "|" && l.text == "map" && called && i+2 < len(lexemes) && lexemes[i+2].text != "attribute" {
			return p.fail(l.at, "map with a filter is not supported, only map(attribute=...)")
		}
		if l.text != "not" || last.text != "is" { // after "is not" comes a test all the same
			last = l
		}
	}
	if t.keyword == "filter" && len(lexemes) > 1 && !filters[lexemes[1].text] {
		return p.fail(lexemes[1].at, "unknown filter %q", lexemes[1].text)
	}
	return nil
}

// nameAfter checks a name by what stands before it.
func (p *preparer) nameAfter(last, l lexeme, called bool) error {
	if strings.HasPrefix(l.text, reserved) {
		return p.fail(l.at, "names that begin with %s are reserved", reserved)
	}
	switch {
	case last.text == "|" && !filters[l.text]:
		return p.fail(l.at, "unknown filter %q", l.text)
	case last.text == "|" && l.text == "tojson":
		p.edits = append(p.edits, edit{l.at, len(l.text), filterJSON})
	case last.text == "is" && l.text != "not" && !tests[l.text]:
		return p.fail(l.at, "unknown test %q", l.text)
	case last.text == "." && called && (l.text == "split" || l.text == "rsplit"):
		p.edits = append(p.edits, edit{last.at, l.at + len(l.text) - last.at, "|" + reserved + l.text})
	case last.text != "." && last.text != "|" && called && (l.text == "range" || l.text == "raise_exception"):
		p.edits = append(p.edits, edit{l.at, len(l.text), l.text}, edit{at: p.after(l, "("),
			text: fmt.Sprintf("%s='%s',", position, p.place(l.at))})
	}
	return nil
}

// after gives the offset behind the first s after l.
func (p *preparer) after(l lexeme, s string) int {
	return l.at + strings.Index(p.source[l.at:], s) + len(s)
}

func (p *preparer) apply() string {
	slices.SortStableFunc(p.edits, func(a, b edit) int { return a.at - b.at })
	var b strings.Builder
	from := 0
	for _, e := range p.edits {
		b.WriteString(p.source[from:e.at])
		b.WriteString(e.text)
		from = e.at + e.n
	}
	b.WriteString(p.source[from:])
	return b.String()
}

// locate finds the tag that the Jinja library does not compile, by compiling each alone.
func (p *preparer) locate(tags []tag, err error) error {
	for _, t := range tags {
		alone := p.source[t.at:t.close]
		if t.statement {
			end, ok := blocks[t.keyword]
			switch {
			case t.keyword == "elif":
				alone, end = "{% if "+strings.TrimPrefix(t.text(p.source), "elif")+"%}", "endif"
			case !ok || t.keyword == "raw", t.keyword == "set" && strings.Contains(alone, "="):
				end = "set x=1" // nothing to close
			}
			alone += "{% " + end + " %}"
		}
		if !strings.HasPrefix(t.keyword, "e") || t.keyword == "elif" {
			if _, err := jinja.Compile(alone); err != nil {
				return p.fail(t.at, "%s", trimError(err))
			}
		}
	}
	return fmt.Errorf("%w: %s", ErrSyntax, trimError(err))
}

// trimError drops the library's own prefix and line, which counts within the tag.
func trimError(err error) string {
	s := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "jinja parse: "), "jinja scan: ")
	return strings.TrimPrefix(s, "line 1: ")
}
