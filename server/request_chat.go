package server

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	generation
	Chat
}

func parseChat(body []byte, defaults engine.Request) (*chatRequest, error) {
	root, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	r := &chatRequest{generation: newGeneration(defaults)}
	var toolChoice, effort string
	err = root.members(func(key string, v value) (err error) {
		switch key {
		case "messages":
			r.Messages, err = messages(v)
		case "logprobs":
			r.Logprobs, err = v.boolean()
		case "top_logprobs":
			err = r.topLogprobs(v)
		case "tools":
			r.Tools, err = tools(v)
		case "tool_choice":
			toolChoice, err = choice(v)
		case "response_format":
			err = responseFormat(v)
		case "chat_template_kwargs":
			r.Kwargs, err = kwargs(v)
		case "reasoning_effort":
			effort, err = v.text()
		case "add_generation_prompt":
			var add bool
			add, err = v.boolean()
			r.NoGenerationPrompt = !add
		default:
			err = r.field(key, v)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(r.Messages) == 0 {
		return nil, badRequest("messages", "messages is missing or empty")
	}
	if toolChoice == "none" {
		r.Tools = nil
	}
	if effort != "" {
		r.Kwargs, err = withEffort(r.Kwargs, effort)
	}
	return r, err
}

// withEffort adds a variable to those for the template; the one there stays.
func withEffort(kwargs json.RawMessage, effort string) (json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	if kwargs != nil {
		if err := json.Unmarshal(kwargs, &vars); err != nil {
			return nil, badRequest("chat_template_kwargs", "chat_template_kwargs cannot be read: %v", err)
		}
	}
	const name = "reasoning_effort"
	if _, ok := vars[name]; !ok {
		var err error
		if vars[name], err = json.Marshal(effort); err != nil {
			return nil, err
		}
	}
	return json.Marshal(vars)
}

// kwargs checks the shape and keeps the text.
func kwargs(v value) (json.RawMessage, error) {
	n := 0
	err := v.each(func(string, value) error {
		if n++; n > maxKwargs {
			return badRequest(v.path, "%s has more than %d members", v.path, maxKwargs)
		}
		return nil
	})
	return v.raw, err
}

func messages(v value) ([]chat.Message, error) {
	var list []chat.Message
	n := 0
	err := v.items(func(_ int, item value) error {
		m, err := message(item)
		if n += 1 + len(m.ToolCalls); err == nil && n > maxMessages {
			err = badRequest(v.path, "%s holds more than %d messages and calls of tools", v.path, maxMessages)
		}
		list = append(list, m)
		return err
	})
	return list, err
}

func message(v value) (chat.Message, error) {
	var m chat.Message
	m.NoContent = true
	said := false // content is there, or something that stands for it
	err := v.members(func(key string, v value) (err error) {
		switch key {
		case "role":
			m.Role, err = role(v)
		case "content":
			said, m.NoContent = true, false
			m.Content, err = content(v)
		case "reasoning_content", "reasoning":
			said = true
			m.Reasoning, err = v.text()
		case "tool_calls":
			m.ToolCalls, err = toolCalls(v)
		case "tool_call_id":
			m.ToolCallID, err = v.text()
		case "name":
			m.Name, err = v.text()
		}
		return err
	})
	if err != nil {
		return m, err
	}
	if m.Role == "" {
		return m, badRequest(v.path+".role", "%s.role is missing", v.path)
	}
	if !said && (m.Role != "assistant" || len(m.ToolCalls) == 0) {
		return m, badRequest(v.path+".content", "%s.content is missing; only an assistant's message with tool_calls may leave it out", v.path)
	}
	return m, nil
}

// role maps developer to system, the name that templates know.
func role(v value) (string, error) {
	s, err := v.text()
	switch s {
	case "system", "user", "assistant", "tool":
	case "developer":
		s = "system"
	default:
		if err == nil {
			err = badRequest(v.path, "%s is %q, must be system, developer, user, assistant or tool", v.path, shorten([]byte(s)))
		}
	}
	return s, err
}

// content is a string, or a list of text parts, which are joined.
func content(v value) (string, error) {
	if v.raw[0] == '"' {
		return v.text()
	}
	if v.raw[0] != '[' {
		return "", v.mustBe("a string or a list of parts")
	}
	var all strings.Builder
	n := 0
	err := v.items(func(_ int, item value) error {
		n++
		s, err := part(item)
		all.WriteString(s)
		return err
	})
	if err == nil && n == 0 {
		err = badRequest(v.path, "%s is an empty list of parts", v.path)
	}
	return all.String(), err
}

func part(v value) (string, error) {
	var kind, text string
	var has bool
	err := v.members(func(key string, v value) (err error) {
		switch key {
		case "type":
			kind, err = v.text()
		case "text":
			text, err = v.text()
			has = true
		}
		return err
	})
	switch {
	case err != nil:
		return "", err
	case kind != "text":
		return "", badRequest(v.path+".type", "%s is a part of type %q, only text is supported", v.path, shorten([]byte(kind)))
	case !has:
		return "", badRequest(v.path+".text", "%s.text is missing", v.path)
	}
	return text, nil
}

func toolCalls(v value) ([]chat.ToolCall, error) {
	var list []chat.ToolCall
	err := v.items(func(_ int, item value) error {
		var c chat.ToolCall
		err := item.members(func(key string, v value) (err error) {
			switch key {
			case "id":
				c.ID, err = v.text()
			case "function":
				err = function(v, &c)
			}
			return err
		})
		if err == nil && c.Name == "" {
			err = badRequest(item.path+".function.name", "%s.function.name is missing", item.path)
		}
		if err == nil && len(list) == maxMessages {
			err = badRequest(v.path, "%s holds more than %d calls", v.path, maxMessages)
		}
		list = append(list, c)
		return err
	})
	return list, err
}

func function(v value, c *chat.ToolCall) error {
	return v.members(func(key string, v value) (err error) {
		switch key {
		case "name":
			c.Name, err = v.text()
		case "arguments":
			if v.raw[0] == '{' { // some clients leave out the quoting
				c.Arguments = string(v.raw)
				return nil
			}
			c.Arguments, err = v.text()
		}
		return err
	})
}

// tools checks the shape and keeps the text, as the order of members is the client's.
func tools(v value) (json.RawMessage, error) {
	n := 0
	err := v.items(func(_ int, item value) error {
		n++
		kind := "function"
		err := item.members(func(key string, v value) (err error) {
			if key == "type" {
				kind, err = v.text()
			}
			return err
		})
		if err == nil && n > maxTools {
			err = badRequest(v.path, "%s holds more than %d tools", v.path, maxTools)
		}
		if err == nil && kind != "function" {
			err = badRequest(item.path+".type", "%s.type is %q, only function is supported", item.path, shorten([]byte(kind)))
		}
		return err
	})
	if n == 0 {
		return nil, err
	}
	return v.raw, err
}

// choice refuses what would have to be enforced: an answer that ignores it would look as if it obeyed.
func choice(v value) (string, error) {
	if v.raw[0] == '"' {
		s, err := v.text()
		if err != nil || s == "auto" || s == "none" {
			return s, err
		}
	}
	return "", badRequest(v.path, "%s is %s, only \"auto\" and \"none\" are supported", v.path, shorten(v.raw))
}

// responseFormat refuses JSON modes for the same reason.
func responseFormat(v value) error {
	return v.members(func(key string, v value) error {
		if key != "type" {
			return nil
		}
		s, err := v.text()
		if err == nil && s != "text" {
			err = badRequest(v.path, "%s is %s, only \"text\" is supported", v.path, strconv.Quote(shorten([]byte(s))))
		}
		return err
	})
}
