package chat

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// jsonWriter writes JSON as Python's json.dumps does, which is what models were trained on.
type jsonWriter struct {
	strings.Builder
	item, key string // separators
	indent    string // of one level; line breaks only if lines
	lines     bool
	sorted    bool
	ascii     bool
}

// toJSON is the filter tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False).
func toJSON(args []jinja.Value, kwargs arguments) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errors.New("tojson: nothing to write")
	}
	w := jsonWriter{item: ", ", key: ": "}
	indent, ok := kwargs["indent"]
	if !ok && len(args) > 1 && args[1].IsInt() {
		indent = args[1]
	}
	switch {
	case indent.IsInt():
		w.lines, w.item = true, ","
		w.indent = strings.Repeat(" ", int(min(max(indent.AsInt(), 0), 64)))
	case indent.IsString():
		w.lines, w.item, w.indent = true, ",", indent.AsString()
	}
	if s := kwargs["separators"]; s.IsList() {
		list := s.AsList().Items
		if len(list) != 2 || !list[0].IsString() || !list[1].IsString() {
			return jinja.Value{}, errors.New("tojson: separators must be two strings")
		}
		w.item, w.key = list[0].AsString(), list[1].AsString()
	}
	w.sorted = kwargs["sort_keys"].IsTruthy()
	w.ascii = kwargs["ensure_ascii"].IsTruthy()
	if err := w.value(args[0], 0); err != nil {
		return jinja.Value{}, err
	}
	return jinja.NewString(w.String()), nil
}

func (w *jsonWriter) value(v jinja.Value, level int) error {
	switch {
	case v.IsNone():
		w.WriteString("null")
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		w.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		w.WriteString(pythonFloat(v.AsFloat()))
	case v.IsString():
		w.text(v.AsString())
	case v.IsList():
		return w.list(v.AsList().Items, level)
	case v.IsDict():
		return w.dict(v.AsDict(), level)
	case v.IsUndefined():
		return errors.New("tojson: the value is undefined")
	default:
		return fmt.Errorf("tojson: %s cannot be written", v)
	}
	return nil
}

func (w *jsonWriter) list(items []jinja.Value, level int) error {
	if len(items) == 0 {
		w.WriteString("[]")
		return nil
	}
	w.WriteByte('[')
	for i, x := range items {
		w.separate(i, level+1)
		if err := w.value(x, level+1); err != nil {
			return err
		}
	}
	w.newline(level)
	w.WriteByte(']')
	return nil
}

func (w *jsonWriter) dict(d *jinja.Dict, level int) error {
	if d.Len() == 0 {
		w.WriteString("{}")
		return nil
	}
	keys := d.Keys
	if w.sorted {
		keys = slices.Sorted(slices.Values(keys))
	}
	w.WriteByte('{')
	for i, k := range keys {
		w.separate(i, level+1)
		w.text(k)
		w.WriteString(w.key)
		if err := w.value(d.Data[k], level+1); err != nil {
			return err
		}
	}
	w.newline(level)
	w.WriteByte('}')
	return nil
}

func (w *jsonWriter) separate(i, level int) {
	if i > 0 {
		w.WriteString(w.item)
	}
	w.newline(level)
}

func (w *jsonWriter) newline(level int) {
	if w.lines {
		w.WriteByte('\n')
		for range level {
			w.WriteString(w.indent)
		}
	}
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	from := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if esc := w.escape(r); esc != "" {
			w.WriteString(s[from:i])
			w.WriteString(esc)
			from = i + n
		}
		i += n
	}
	w.WriteString(s[from:])
	w.WriteByte('"')
}

// escape gives what stands for r, "" where r stands for itself.
func (w *jsonWriter) escape(r rune) string {
	switch r {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	}
	switch {
	case r < 0x20 || w.ascii && r > 0x7F && r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	case w.ascii && r >= 0x10000:
		r -= 0x10000
		return fmt.Sprintf(`\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
	}
	return ""
}

// pythonFloat writes the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
