package chat

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Names that prepare writes into templates; templates must not use the prefix.
const (
	reserved   = "epq_"
	filterJSON = reserved + "tojson"
	checkDepth = reserved + "depth"
	position   = reserved + "at"
)

const (
	rangeLimit = 100_000 // numbers of one range, as in Jinja's sandbox
	stackLimit = 10_000  // frames of the Go stack: about five hundred macros inside each other
	stackCheck = 16      // calls of macros between two looks at the stack, which take long
)

type arguments = map[string]jinja.Value

func addFunctions(vars map[string]jinja.Value, now time.Time) {
	add := func(name string, fn func([]jinja.Value, arguments) (jinja.Value, error)) {
		vars[name] = jinja.NewCallable(name, fn)
	}
	add("raise_exception", raise)
	add("range", numbers)
	add("strftime_now", func(args []jinja.Value, _ arguments) (jinja.Value, error) {
		if len(args) != 1 || !args[0].IsString() {
			return jinja.Value{}, errors.New("strftime_now: want one format")
		}
		return jinja.NewString(strftime(args[0].AsString(), now)), nil
	})
	add(filterJSON, toJSON)
	add(reserved+"split", func(args []jinja.Value, _ arguments) (jinja.Value, error) { return split(args, false) })
	add(reserved+"rsplit", func(args []jinja.Value, _ arguments) (jinja.Value, error) { return split(args, true) })
	add(checkDepth, depth())
}

// at names the place of a call in the template, which prepare adds to calls that may fail.
func at(kwargs arguments) string {
	if p, ok := kwargs[position]; ok && p.IsString() {
		return p.AsString() + ": "
	}
	return ""
}

// raise is raise_exception: the template refuses the request.
func raise(args []jinja.Value, kwargs arguments) (jinja.Value, error) {
	message := "raise_exception"
	if len(args) > 0 && args[0].IsString() {
		message = args[0].AsString()
	}
	return jinja.Value{}, fmt.Errorf("%s%s", at(kwargs), message)
}

// numbers is range, with a limit.
func numbers(args []jinja.Value, kwargs arguments) (jinja.Value, error) {
	n := [3]int64{0, 0, 1} // start, stop, step
	for i, a := range args {
		if i >= len(n) || !a.IsInt() {
			return jinja.Value{}, fmt.Errorf("%srange: want one to three whole numbers", at(kwargs))
		}
		n[i] = a.AsInt()
	}
	switch len(args) {
	case 0:
		return jinja.Value{}, fmt.Errorf("%srange: want one to three whole numbers", at(kwargs))
	case 1:
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		return jinja.Value{}, fmt.Errorf("%srange: the step is 0", at(kwargs))
	}
	var items []jinja.Value
	for x := n[0]; n[2] > 0 && x < n[1] || n[2] < 0 && x > n[1]; {
		if len(items) == rangeLimit {
			return jinja.Value{}, fmt.Errorf("%srange: more than %d numbers", at(kwargs), rangeLimit)
		}
		items = append(items, jinja.NewInt(x))
		next := x + n[2]
		if (next > x) != (n[2] > 0) { // past the largest number
			break
		}
		x = next
	}
	return jinja.NewList(items), nil
}

// split is the method of strings: split(sep=None, maxsplit=-1), from the right for rsplit.
func split(args []jinja.Value, right bool) (jinja.Value, error) {
	if !args[0].IsString() {
		return jinja.Value{}, errors.New("split: not a string")
	}
	s, most := args[0].AsString(), -1
	if len(args) > 2 && args[2].IsInt() {
		most = int(min(args[2].AsInt(), int64(len(s))))
	}
	var parts []string
	switch {
	case len(args) < 2 || args[1].IsNone():
		parts = strings.Fields(s)
	case !args[1].IsString() || args[1].AsString() == "":
		return jinja.Value{}, errors.New("split: the separator must be a string that is not empty")
	case most < 0:
		parts = strings.Split(s, args[1].AsString())
	case right:
		for sep := args[1].AsString(); most > 0; most-- {
			i := strings.LastIndex(s, sep)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(sep):])
			s = s[:i]
		}
		parts = append(parts, s)
		slices.Reverse(parts)
	default:
		parts = strings.SplitN(s, args[1].AsString(), most+1)
	}
	items := make([]jinja.Value, len(parts))
	for i, p := range parts {
		items[i] = jinja.NewString(p)
	}
	return jinja.NewList(items), nil
}

// depth makes the function that every macro calls first: it fails where macros call themselves without end, which would
// end the process. Its output is empty.
func depth() func([]jinja.Value, arguments) (jinja.Value, error) {
	calls := 0
	return func([]jinja.Value, arguments) (jinja.Value, error) {
		var pc [1]uintptr
		if calls++; calls%stackCheck == 0 && runtime.Callers(stackLimit, pc[:]) > 0 {
			return jinja.Value{}, errors.New("macros are nested too deep")
		}
		return jinja.NewString(""), nil
	}
}

// strftime formats a time as Python does in the C locale; unknown directives stay.
func strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		s, ok := directive(format[i], t)
		switch {
		case !ok && pad:
			s = "%" + format[i:i+1]
		case !ok:
			s = "%-" + format[i:i+1]
		case !pad:
			s = strings.TrimLeft(s[:len(s)-1], "0") + s[len(s)-1:]
		}
		b.WriteString(s)
	}
	return b.String()
}

// layouts are Go's for Python's directives.
var layouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'j': "002",
	'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'Z': "MST", 'z': "-0700",
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'x': "01/02/06", 'X': "15:04:05",
	'c': "Mon Jan _2 15:04:05 2006",
}

func directive(c byte, t time.Time) (string, bool) {
	switch c {
	case '%':
		return "%", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	}
	layout, ok := layouts[c]
	if !ok {
		return "", false
	}
	return t.Format(layout), true
}
