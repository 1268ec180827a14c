package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

// variables are what the template sees.
func (t *Template) variables(in Input, h *hider) (map[string]jinja.Value, error) {
	messages := make([]jinja.Value, len(in.Messages))
	for i, m := range in.Messages {
		messages[i] = m.value(h)
	}
	tools := make([]jinja.Value, len(in.Tools))
	for i, tool := range in.Tools {
		v, err := parse(tool, h)
		if err != nil {
			return nil, fmt.Errorf("%w: tool %d: %w", ErrTemplate, i, err)
		}
		tools[i] = v
	}
	vars := map[string]jinja.Value{
		"messages":              jinja.NewList(messages),
		"tools":                 jinja.None(),
		"add_generation_prompt": jinja.NewBool(!in.NoGenerationPrompt),
		"bos_token":             jinja.NewString(t.opt.BOS),
		"eos_token":             jinja.NewString(t.opt.EOS),
	}
	if len(tools) > 0 {
		vars["tools"] = jinja.NewList(tools)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Kwargs)) {
		v, err := convert(in.Kwargs[name], h)
		if err != nil {
			return nil, fmt.Errorf("%w: variable %q: %w", ErrTemplate, name, err)
		}
		vars[name] = v
	}
	addFunctions(vars, in.Now)
	return vars, nil
}

func (m Message) value(h *hider) jinja.Value {
	v := jinja.NewDict()
	d := v.AsDict()
	set := func(key, s string) { d.Set(key, jinja.NewString(h.hide(s))) }
	set("role", m.Role)
	if m.NoContent {
		d.Set("content", jinja.None())
	} else {
		set("content", m.Content)
	}
	if m.Reasoning != "" {
		set("reasoning_content", m.Reasoning)
		d.Set("thinking", d.Data["reasoning_content"]) // gpt-oss
	}
	if len(m.ToolCalls) > 0 {
		calls := make([]jinja.Value, len(m.ToolCalls))
		for i, c := range m.ToolCalls {
			calls[i] = c.value(h)
		}
		d.Set("tool_calls", jinja.NewList(calls))
	}
	if m.ToolCallID != "" {
		set("tool_call_id", m.ToolCallID)
	}
	if m.Name != "" {
		set("name", m.Name)
	}
	return v
}

func (c ToolCall) value(h *hider) jinja.Value {
	function := jinja.NewDict()
	function.AsDict().Set("name", jinja.NewString(h.hide(c.Name)))
	function.AsDict().Set("arguments", c.arguments(h))
	v := jinja.NewDict()
	v.AsDict().Set("id", jinja.NewString(h.hide(c.ID)))
	v.AsDict().Set("type", jinja.NewString("function"))
	v.AsDict().Set("function", function)
	return v
}

func (c ToolCall) arguments(h *hider) jinja.Value {
	if strings.TrimSpace(c.Arguments) == "" {
		return jinja.NewDict()
	}
	if json.Valid([]byte(c.Arguments)) {
		if v, err := parse([]byte(c.Arguments), h); err == nil {
			return v
		}
	}
	return jinja.NewString(h.hide(c.Arguments))
}

// parse reads JSON and keeps the order of members; strings and keys go through h.
func parse(raw []byte, h *hider) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decode(d, h, depthLimit)
	if err == nil {
		if _, err = d.Token(); err == nil {
			err = errors.New("more than one JSON value")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return v, err
}

// Limits of the JSON of a request. Written with indentation it takes the square of its depth, and a value of two bytes takes
// a hundred in a template.
const (
	depthLimit = 200
	valueLimit = 1 << 17
)

// decode reads one value with so many levels below it at most.
func decode(d *json.Decoder, h *hider, levels int) (jinja.Value, error) {
	if h.values++; h.values > valueLimit {
		return jinja.Value{}, fmt.Errorf("more than %d JSON values", valueLimit)
	}
	token, err := d.Token()
	if err != nil {
		return jinja.Value{}, err
	}
	switch x := token.(type) {
	case json.Delim:
		if levels == 0 {
			return jinja.Value{}, fmt.Errorf("JSON nested deeper than %d levels", depthLimit)
		}
		if x == '{' {
			return decodeObject(d, h, levels-1)
		}
		return decodeArray(d, h, levels-1)
	case string:
		return jinja.NewString(h.hide(x)), nil
	}
	return jinja.FromGoValue(token), nil
}

func decodeObject(d *json.Decoder, h *hider, levels int) (jinja.Value, error) {
	v := jinja.NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return v, err
		}
		name, ok := key.(string)
		if !ok {
			return v, fmt.Errorf("%v is no name of a member", key)
		}
		name = h.hide(name)
		x, err := decode(d, h, levels)
		if err != nil {
			return v, err
		}
		v.AsDict().Set(name, x)
	}
	_, err := d.Token()
	return v, err
}

func decodeArray(d *json.Decoder, h *hider, levels int) (jinja.Value, error) {
	var items []jinja.Value
	for d.More() {
		x, err := decode(d, h, levels)
		if err != nil {
			return jinja.Value{}, err
		}
		items = append(items, x)
	}
	_, err := d.Token()
	return jinja.NewList(items), err
}

// convert makes a template value of a Go value as encoding/json makes them; the members of a map are sorted.
func convert(x any, h *hider) (jinja.Value, error) {
	raw, ok := x.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(x); err != nil {
			return jinja.Value{}, err
		}
	}
	return parse(raw, h)
}
