package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// value is a piece of a body that is valid JSON, and where it stands in it ("messages[0].content").
// Walking it copies nothing but the strings asked for: a body may be megabytes of fields that
// nobody reads.
type value struct {
	raw  []byte // without space around it
	path string
}

// parseObject checks that body is one JSON object.
func parseObject(body []byte) (value, error) {
	if !utf8.Valid(body) {
		return value{}, badRequest("", "the body is not valid UTF-8")
	}
	if !json.Valid(body) {
		var any json.RawMessage
		err := json.Unmarshal(body, &any)
		var at *json.SyntaxError
		if errors.As(err, &at) {
			return value{}, badRequest("", "the body is not JSON: %v, at byte %d of %d", err, at.Offset, len(body))
		}
		return value{}, badRequest("", "the body is not JSON: %v", err)
	}
	v := value{raw: bytes.TrimSpace(body)}
	if v.raw[0] != '{' {
		return value{}, badRequest("", "the body must be a JSON object, not %s", v.kind())
	}
	return v, nil
}

// kind names the type of v for messages.
func (v value) kind() string {
	switch v.raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func (v value) isNull() bool { return v.raw[0] == 'n' }

func (v value) mustBe(what string) error {
	return badRequest(v.path, "%s must be %s, not %s", v.path, what, v.kind())
}

// members calls fn for each member of an object, in order; null members are left out, as absent.
func (v value) members(fn func(key string, member value) error) error {
	return v.each(func(key string, member value) error {
		if member.isNull() {
			return nil
		}
		return fn(key, member)
	})
}

func (v value) each(fn func(key string, member value) error) error {
	if v.raw[0] != '{' {
		return v.mustBe("an object")
	}
	for i := skipSpace(v.raw, 1); v.raw[i] != '}'; {
		end := skipValue(v.raw, i)
		key, err := unquote(v.raw[i:end])
		if err != nil {
			return badRequest(v.path, "%s has a bad key: %v", v.path, err)
		}
		i = skipSpace(v.raw, skipSpace(v.raw, end)+1) // past the colon
		end = skipValue(v.raw, i)
		member := value{raw: v.raw[i:end], path: key}
		if v.path != "" {
			member.path = v.path + "." + key
		}
		if err := fn(key, member); err != nil {
			return err
		}
		i = skipComma(v.raw, end)
	}
	return nil
}

// items calls fn for each item of an array.
func (v value) items(fn func(i int, item value) error) error {
	if v.raw[0] != '[' {
		return v.mustBe("an array")
	}
	n := 0
	for i := skipSpace(v.raw, 1); v.raw[i] != ']'; n++ {
		end := skipValue(v.raw, i)
		item := value{raw: v.raw[i:end], path: v.path + "[" + strconv.Itoa(n) + "]"}
		if err := fn(n, item); err != nil {
			return err
		}
		i = skipComma(v.raw, end)
	}
	return nil
}

// text is the string v; lone surrogates become U+FFFD.
func (v value) text() (string, error) {
	if v.raw[0] != '"' {
		return "", v.mustBe("a string")
	}
	return unquote(v.raw)
}

func (v value) boolean() (bool, error) {
	if c := v.raw[0]; c != 't' && c != 'f' {
		return false, v.mustBe("a boolean")
	}
	return v.raw[0] == 't', nil
}

func (v value) isNumber() bool { return v.kind() == "a number" }

func (v value) float() (float32, error) {
	if !v.isNumber() {
		return 0, v.mustBe("a number")
	}
	f, err := strconv.ParseFloat(string(v.raw), 32)
	if err != nil {
		return 0, badRequest(v.path, "%s is out of range: %s", v.path, shorten(v.raw))
	}
	return float32(f), nil
}

// integer also takes 3.0 and 1e2, which some clients send.
func (v value) integer() (int64, error) {
	if !v.isNumber() {
		return 0, v.mustBe("an integer")
	}
	if n, err := strconv.ParseInt(string(v.raw), 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(string(v.raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		return 0, badRequest(v.path, "%s must be an integer, not %s", v.path, shorten(v.raw))
	}
	return int64(f), nil
}

func shorten(raw []byte) string {
	if len(raw) > 40 {
		return fmt.Sprintf("%s... (%d bytes)", raw[:40], len(raw))
	}
	return string(raw)
}

func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && strings.IndexByte(" \t\r\n", b[i]) >= 0 {
		i++
	}
	return i
}

// skipComma returns where the next item starts, or the closing bracket stands.
func skipComma(b []byte, i int) int {
	if i = skipSpace(b, i); b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}

// skipValue returns the end of the value that starts at i. It does not recurse: depth is the client's choice.
func skipValue(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case ',', ':', ' ', '\t', '\r', '\n':
			continue
		default:
			for i+1 < len(b) && strings.IndexByte(",:]} \t\r\n", b[i+1]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}
