package server

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// TestOddRequests runs the table of testdata: odd and wrong bodies; the server lives on after each.
func TestOddRequests(t *testing.T) {
	b, err := os.ReadFile("testdata/b56_requests.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name, Recipe     string
			Body             *string
			BodyHex          string `json:"body_hex"`
			Status           int
			Mention          []string
			PromptContains   string   `json:"prompt_contains"`
			SamePromptAs     string   `json:"same_prompt_as"`
			CompletionTokens *float64 `json:"completion_tokens"`
			FinishReason     string   `json:"finish_reason"`
			Empty            *int     `json:"chunks_with_empty_choices"`
			ErrorType        string   `json:"error_type"`
			ErrorFields      []string `json:"error_fields"`
		}
	}
	if err := json.Unmarshal(b, &file); err != nil || len(file.Cases) < 40 {
		t.Fatal(len(file.Cases), err)
	}
	f := newFake("Par", "is", ".")
	r := start(t, f, Options{MaxBody: 1 << 20})
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			r.t = t
			method, path, body := "POST", chatPath, ""
			switch c.Name {
			case "wrong method":
				method = "GET"
			case "unknown path":
				path = "/v1/chat/completion"
			case "deep nesting":
				body = strings.Repeat(`{"a":`, 100000)
			case "body over the limit":
				body = say("hi", "") + strings.Repeat(" ", 1<<20)
			case "prompt longer than the context":
				body = say(strings.Repeat("word ", 2*f.context), "")
			case "prompt fits but leaves no room":
				body = say(strings.Repeat("word ", f.context-1), "") // and the role
			default:
				if c.Body != nil {
					body = *c.Body
				} else if raw, err := hex.DecodeString(c.BodyHex); err == nil && len(raw) > 0 {
					body = string(raw)
				} else {
					t.Fatalf("no recipe: %s", c.Recipe)
				}
			}
			if c.CompletionTokens != nil {
				body = strings.Replace(body, "{", `{"ignore_eos":true,`, 1)
			}
			a := r.ask(method, path, body)
			switch {
			case c.Status != 200:
				e := a.fault(t, c.Status)
				for _, m := range c.Mention {
					if !strings.Contains(e["message"].(string), m) {
						t.Errorf("message %q does not say %q", e["message"], m)
					}
				}
				if c.ErrorType != "" && e["type"] != c.ErrorType {
					t.Errorf("type %v", e["type"])
				}
				for _, k := range c.ErrorFields {
					if n, _ := e[k].(float64); n < 1 {
						t.Errorf("error.%s is %v", k, e[k])
					}
				}
			case c.Empty != nil:
				empty := 0
				for _, c := range a.chunks(t) {
					if len(c["choices"].([]any)) == 0 {
						empty++
					}
				}
				if empty != *c.Empty {
					t.Errorf("%d chunks without a choice, want %d", empty, *c.Empty)
				}
			default:
				o := a.object(t, 200)
				if n := c.CompletionTokens; n != nil && at(o, "usage", "completion_tokens") != *n {
					t.Errorf("usage %v", o["usage"])
				}
				if c.FinishReason != "" && at(o, "choices", 0, "finish_reason") != c.FinishReason {
					t.Errorf("choice %v", at(o, "choices", 0))
				}
			}
			if c.PromptContains != "" {
				said := f.lastChat()
				if !slices.ContainsFunc(said.Messages, func(m chat.Message) bool { return strings.Contains(m.Content, c.PromptContains) }) {
					t.Errorf("prompt %v", said)
				}
				if c.SamePromptAs != "" {
					r.post(chatPath, strings.Replace(body, `"developer"`, `"system"`, 1))
					if other := f.lastChat(); !reflect.DeepEqual(other, said) {
						t.Errorf("prompt %v, with system %v", said, other)
					}
				}
			}
			r.post(chatPath, say("hi", "")).object(t, 200)
		})
	}
	r.t = t
}

func TestLoneSurrogate(t *testing.T) {
	f := newFake("x")
	r := start(t, f, Options{})
	r.post(chatPath, `{"messages":[{"role":"user","content":"a\ud83d \ud83d\ude00\u0000"}]}`).object(t, 200)
	if got := f.lastChat().Messages[0].Content; got != "a\uFFFD 😀\x00" {
		t.Errorf("content %q", got)
	}
}

// TestChatStream checks the order and the shape of all chunks.
func TestChatStream(t *testing.T) {
	f := newFake("thin", "king|", "Par", "is & <b>.")
	f.think = true
	r := start(t, f, Options{})
	got := r.post(chatPath, say("two words", `,"stream":true,"stream_options":{"include_usage":true}`)).chunks(t)
	var deltas []string
	for _, c := range got {
		if c["id"] != got[0]["id"] || c["created"] != got[0]["created"] || c["model"] != "fake/model" || c["object"] != "chat.completion.chunk" {
			t.Errorf("chunk %v", c)
		}
		b, err := json.Marshal(at(c, "choices", 0))
		if err != nil {
			t.Fatal(err)
		}
		deltas = append(deltas, string(b))
	}
	unescape := strings.NewReplacer(`\u0026`, "&", `\u003c`, "<", `\u003e`, ">")
	want := []string{
		`{"delta":{"content":null,"role":"assistant"},"finish_reason":null,"index":0}`,
		`{"delta":{"reasoning_content":"thin"},"finish_reason":null,"index":0}`,
		`{"delta":{"reasoning_content":"king"},"finish_reason":null,"index":0}`,
		`{"delta":{"content":"Par"},"finish_reason":null,"index":0}`,
		`{"delta":{"content":"is & <b>."},"finish_reason":null,"index":0}`,
		`{"delta":{},"finish_reason":"stop","index":0}`,
		`null`,
	}
	for i := range deltas {
		deltas[i] = unescape.Replace(deltas[i])
	}
	if !slices.Equal(deltas, want) {
		t.Errorf("choices\n%s\nwant\n%s", strings.Join(deltas, "\n"), strings.Join(want, "\n"))
	}
	last := got[len(got)-1]
	if u := last["usage"].(map[string]any); u["prompt_tokens"] != 3.0 || u["completion_tokens"] != 4.0 || u["total_tokens"] != 7.0 {
		t.Errorf("usage %v", u)
	}
	if c, ok := last["choices"].([]any); !ok || len(c) != 0 {
		t.Errorf("usage chunk %v", last)
	}
	if n := at(got[len(got)-2], "timings", "predicted_n"); n != 4.0 {
		t.Errorf("timings of %v tokens", n)
	}
	// Not streamed: the same text.
	o := r.post(chatPath, say("two words", "")).object(t, 200)
	m := at(o, "choices", 0, "message").(map[string]any)
	if m["reasoning_content"] != "thinking" || m["content"] != "Paris & <b>." || m["role"] != "assistant" {
		t.Errorf("message %v", m)
	}
	if o["object"] != "chat.completion" || at(o, "choices", 0, "finish_reason") != "stop" || at(o, "usage", "total_tokens") != 7.0 {
		t.Errorf("answer %v", o)
	}
}

// TestCutWhileThinking: content is empty, not absent.
func TestCutWhileThinking(t *testing.T) {
	f := newFake("thin", "king|", "x")
	f.think = true
	r := start(t, f, Options{})
	o := r.post(chatPath, say("hi", `,"max_tokens":1`)).object(t, 200)
	if c, ok := at(o, "choices", 0, "message", "content").(string); !ok || c != "" || at(o, "choices", 0, "finish_reason") != "length" {
		t.Errorf("answer %v", o)
	}
}

func TestCompletion(t *testing.T) {
	f := newFake("one ", "two")
	r := start(t, f, Options{})
	o := r.post(completionPath, `{"prompt":"a b c","max_tokens":9}`).object(t, 200)
	if o["object"] != "text_completion" || at(o, "choices", 0, "text") != "one two" || at(o, "choices", 0, "finish_reason") != "stop" || at(o, "usage", "prompt_tokens") != 3.0 {
		t.Errorf("answer %v", o)
	}
	text := ""
	chunks := r.post(completionPath, `{"prompt":["a b c"],"stream":true,"stream_options":{"include_usage":true}}`).chunks(t)
	for _, c := range chunks[:len(chunks)-1] {
		text += at(c, "choices", 0, "text").(string)
	}
	if text != "one two" || at(chunks[len(chunks)-1], "usage", "total_tokens") != 5.0 {
		t.Errorf("stream %v", chunks)
	}
	for prompt, want := range map[string][]int32{`[4,0,49]`: {4, 0, 49}, `[[7]]`: {7}} {
		r.post(completionPath, `{"prompt":`+prompt+`}`).object(t, 200)
		if got := f.last().Tokens; !slices.Equal(got, want) {
			t.Errorf("%s: prompt %v", prompt, got)
		}
	}
	for body, param := range map[string]any{
		`{}`: "prompt", `{"prompt":""}`: "prompt", `{"prompt":[]}`: "prompt", `{"prompt":null}`: "prompt", `{"prompt":7}`: "prompt",
		`{"prompt":["a","b"]}`: "prompt", `{"prompt":[50]}`: "prompt[0]", `{"prompt":[1,-1]}`: "prompt[1]", `{"prompt":[1.5]}`: "prompt[0]",
		`{"prompt":"a","echo":true}`: "echo", `{"prompt":"a","suffix":"b"}`: "suffix", `{"prompt":"a","best_of":2}`: "best_of", `{"prompt":"a","logprobs":99}`: "logprobs",
	} {
		if e := r.post(completionPath, body).fault(t, 400); e["param"] != param {
			t.Errorf("%s: param %v, want %v", body, e["param"], param)
		}
	}
}

// TestFields checks that each field reaches the engine.
func TestFields(t *testing.T) {
	f := newFake("x")
	def := engine.Request{MaxTokens: 50, Stop: []string{"."}, Sampling: engine.Sampling{Temperature: 0.25, TopK: 7, TopP: 0.5, MinP: 0.125, RepeatLastN: 3, Seed: 11}}
	r := start(t, f, Options{Default: &def})
	r.post(chatPath, say("hi", "")).object(t, 200)
	if got := f.last(); !reflect.DeepEqual(got.Sampling, def.Sampling) || got.MaxTokens != 50 || !slices.Equal(got.Stop, def.Stop) || got.IgnoreEOS || got.Logprobs {
		t.Errorf("defaults: %+v", got)
	}
	r.post(chatPath, say("hi", `,"temperature":1.5,"top_k":9,"top_p":0.75,"min_p":0.25,"repeat_penalty":1.25,"repeat_last_n":-1,"presence_penalty":-0.5,
		"frequency_penalty":0.5,"seed":42,"logit_bias":{"3":-100,"4":0.5},"max_tokens":6,"stop":["a","b"],"ignore_eos":true,"logprobs":true,"top_logprobs":5`)).object(t, 200)
	want := engine.Request{Tokens: make([]int32, 2), MaxTokens: 6, Stop: []string{"a", "b"}, IgnoreEOS: true, Logprobs: true, Sampling: engine.Sampling{
		Temperature: 1.5, TopK: 9, TopP: 0.75, MinP: 0.25, RepeatPenalty: 1.25, RepeatLastN: -1, PresencePenalty: -0.5, FrequencyPenalty: 0.5, Seed: 42,
		LogitBias: map[int32]float32{3: -100, 4: 0.5}, TopLogprobs: 5}}
	if got := f.last(); !reflect.DeepEqual(got, want) {
		t.Errorf("request\n%+v\nwant\n%+v", got, want)
	}
	r.post(chatPath, say("hi", `,"stop":"z","seed":null,"top_logprobs":3,"max_completion_tokens":1e2`)).object(t, 200)
	if got := f.last(); !slices.Equal(got.Stop, []string{"z"}) || got.Sampling.Seed != 11 || got.Sampling.TopLogprobs != 0 || got.MaxTokens != 100 {
		t.Errorf("request %+v", got)
	}
	for more, limit := range map[string]int{`"max_tokens":70`: 70, `"max_tokens":70,"max_completion_tokens":60`: 60, `"max_tokens":60,"max_completion_tokens":70`: 60} {
		r.post(chatPath, say("hi", ","+more)).object(t, 200)
		if got := f.last().MaxTokens; got != limit {
			t.Errorf("%s: a limit of %d tokens, want %d", more, got, limit)
		}
	}
	r.post(chatPath, `{"messages":[{"role":"assistant","reasoning_content":"r","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"b":1,"a":2}}}]},
		{"role":"tool","tool_call_id":"c","name":"f","content":"4"}],"tools":[{"type":"function","function":{"z":1,"a":2}}],"chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false}`).object(t, 200)
	said := Chat{
		Messages: []chat.Message{
			{Role: "assistant", NoContent: true, Reasoning: "r", ToolCalls: []chat.ToolCall{{ID: "c", Name: "f", Arguments: `{"b":1,"a":2}`}}},
			{Role: "tool", Content: "4", ToolCallID: "c", Name: "f"},
		},
		Tools: json.RawMessage(`[{"type":"function","function":{"z":1,"a":2}}]`), Kwargs: json.RawMessage(`{"enable_thinking":false}`), NoGenerationPrompt: true,
	}
	if got := f.lastChat(); !reflect.DeepEqual(got, said) {
		t.Errorf("chat\n%+v\nwant\n%+v", got, said)
	}
	for more, kwargs := range map[string]string{
		``: `{"reasoning_effort":"low"}`, `,"chat_template_kwargs":{"a":[1, 2]}`: `{"a":[1,2],"reasoning_effort":"low"}`,
		`,"chat_template_kwargs":{"reasoning_effort":"high"}`: `{"reasoning_effort":"high"}`,
	} {
		r.post(chatPath, say("hi", `,"tools":[{"type":"function"}],"tool_choice":"none","reasoning_effort":"low"`+more)).object(t, 200)
		if got := f.lastChat(); got.Tools != nil || string(got.Kwargs) != kwargs {
			t.Errorf("%s: chat %+v, variables %s", more, got, got.Kwargs)
		}
	}
}

// TestWrongFields checks the path in each refusal.
func TestWrongFields(t *testing.T) {
	r := start(t, newFake("x"), Options{})
	for more, param := range map[string]string{
		`"n":2`: "n", `"temperature":-1`: "temperature", `"temperature":1e400`: "temperature", `"top_p":1.5`: "top_p", `"top_k":1.5`: "top_k", `"top_k":99999999999`: "top_k",
		`"min_p":-1`: "min_p", `"seed":"a"`: "seed", `"stop":7`: "stop", `"stop":["a",7]`: "stop[1]", `"stream":"yes"`: "stream", `"stream_options":[]`: "stream_options",
		`"stream_options":{"include_usage":1}`: "stream_options.include_usage", `"max_completion_tokens":0`: "max_completion_tokens", `"logit_bias":{"x":1}`: "logit_bias",
		`"logit_bias":{"50":1}`: "logit_bias", `"logit_bias":{"1":"a"}`: "logit_bias.1", `"logprobs":3`: "logprobs", `"top_logprobs":21`: "top_logprobs", `"tool_choice":"required"`: "tool_choice",
		`"response_format":{"type":"json_object"}`: "response_format.type", `"tools":{}`: "tools", `"tools":[{"type":"custom"}]`: "tools[0].type",
		`"chat_template_kwargs":[]`: "chat_template_kwargs", `"stop":"` + strings.Repeat("a", maxStopBytes+1) + `"`: "stop", `"stop":[` + strings.Repeat(`"a",`, maxStops) + `"a"]`: "stop",
		`"messages":[` + strings.Repeat(`{"role":"user","content":""},`, maxMessages) + `{"role":"user","content":""}]`:                                 "messages",
		`"messages":[{"role":"assistant","tool_calls":[` + strings.Repeat(`{"function":{"name":"f"}},`, maxMessages) + `{"function":{"name":"f"}}]}]`:   "messages[0].tool_calls",
		`"messages":[{"role":"assistant","tool_calls":[` + strings.Repeat(`{"function":{"name":"f"}},`, maxMessages-1) + `{"function":{"name":"f"}}]}]`: "messages",
		`"tools":[` + strings.Repeat(`{},`, maxTools) + `{}]`:                                                                                           "tools", `"chat_template_kwargs":{` + strings.Repeat(`"a":null,`, maxKwargs) + `"b":1}`: "chat_template_kwargs",
		`"messages":[{"role":"user","content":[{"type":"text"}]}]`: "messages[0].content[0].text", `"messages":[{"role":"user","content":"a"},{"content":"a"}]`: "messages[1].role",
		`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}]`: "messages[0].content[1].type", `"messages":[7]`: "messages[0]",
		`"messages":[{"role":"assistant","tool_calls":[{"id":"a"}]}]`: "messages[0].tool_calls[0].function.name", `"messages":[{"role":"assistant","tool_calls":[]}]`: "messages[0].content",
	} {
		body := say("hi", ","+more)
		if strings.HasPrefix(more, `"messages"`) {
			body = "{" + more + "}"
		}
		if e := r.post(chatPath, body).fault(t, 400); e["param"] != param {
			t.Errorf("%.100s: param %v, want %v: %v", more, e["param"], param, e["message"])
		}
	}
	var bias strings.Builder
	for id := range maxBias {
		fmt.Fprintf(&bias, `"%d":0,`, id)
	}
	if e := r.post(chatPath, say("hi", `,"logit_bias":{`+bias.String()+`"-1":0}`)).fault(t, 400); e["message"] != fmt.Sprintf("logit_bias names more than %d tokens", maxBias) {
		t.Errorf("many biases: %v", e)
	}
}

func TestRefusedByTemplate(t *testing.T) {
	f := newFake("x")
	r := start(t, f, Options{})
	for _, f.refuse = range []error{
		fmt.Errorf("%w: roles must alternate", chat.ErrTemplate), fmt.Errorf("%w: roles must alternate", ErrMessages),
		fmt.Errorf("%w: %w", ErrMessages, fmt.Errorf("%w: roles must alternate", chat.ErrTemplate)),
	} {
		e := r.post(chatPath, say("hi", "")).fault(t, 400)
		if e["message"] != "the messages cannot be rendered: roles must alternate" || e["param"] != "messages" {
			t.Errorf("error %v", e)
		}
	}
	f.refuse = fmt.Errorf("%w: line 1, column 6: unknown filter", chat.ErrSyntax)
	if e := r.post(chatPath, say("hi", "")).fault(t, 400); e["message"] != "the messages cannot be rendered: template cannot be used: line 1, column 6: unknown filter" {
		t.Errorf("error %v", e)
	}
}

func TestLogprobs(t *testing.T) {
	f := newFake("a", "\xe6\x97", "b")
	inf := float32(math.Inf(-1))
	var broken atomic.Bool
	f.logprob = func(id int32) engine.TokenLogprob {
		if broken.Load() {
			return engine.TokenLogprob{Logprob: float32(math.NaN())}
		}
		return engine.TokenLogprob{Token: id, Logprob: -0.5, Top: []engine.TokenLogprob{{Token: id, Logprob: -0.5}, {Token: 2, Logprob: inf}}}
	}
	r := start(t, f, Options{})
	body := say("hi", `,"logprobs":true,"top_logprobs":2,"stop":"bc"`)
	whole := at(r.post(chatPath, body).object(t, 200), "choices", 0, "logprobs", "content").([]any)
	if len(whole) != 3 || at(whole, 0, "token") != "a" || at(whole, 0, "logprob") != -0.5 || at(whole, 0, "top_logprobs", 1, "logprob") != -9999.0 {
		t.Fatalf("logprobs %v", whole)
	}
	if at(whole, 1, "token") != `bytes:\xe6\x97` || at(whole, 1, "bytes", 1) != float64(0x97) {
		t.Errorf("half a character: %v", at(whole, 1))
	}
	// Streamed: the same list, though the last token's text is held back for the stop string.
	var parts []any
	for _, c := range r.post(chatPath, strings.Replace(body, "{", `{"stream":true,`, 1)).chunks(t) {
		if l, ok := at(c, "choices", 0, "logprobs", "content").([]any); ok {
			parts = append(parts, l...)
		}
	}
	if !reflect.DeepEqual(parts, whole) {
		t.Errorf("streamed %v, whole %v", parts, whole)
	}
	l := at(r.post(completionPath, `{"prompt":"p","logprobs":2}`).object(t, 200), "choices", 0, "logprobs")
	if at(l, "tokens", 0) != "a" || at(l, "token_logprobs", 2) != -0.5 || at(l, "text_offset", 2) != 3.0 || at(l, "top_logprobs", 0, "b") != -9999.0 {
		t.Errorf("logprobs %v", l)
	}
	broken.Store(true)
	if e := r.post(chatPath, body).fault(t, 500); !strings.Contains(e["message"].(string), "not finite") {
		t.Errorf("NaN: %v", e)
	}
}

func TestModels(t *testing.T) {
	r := start(t, newFake("x"), Options{})
	l := r.ask("GET", "/v1/models", "").object(t, 200)
	if at(l, "data", 0, "id") != "fake/model" || at(l, "data", 0, "object") != "model" || l["object"] != "list" {
		t.Errorf("models %v", l)
	}
	if m := r.ask("GET", "/v1/models/fake/model", "").object(t, 200); m["id"] != "fake/model" {
		t.Errorf("model %v", m)
	}
	if e := r.ask("GET", "/v1/models/other", "").fault(t, 404); e["code"] != "model_not_found" {
		t.Errorf("error %v", e)
	}
	for _, path := range []string{"/health", "/v1/health"} {
		if o := r.ask("GET", path, "").object(t, 200); o["status"] != "ok" {
			t.Errorf("%s: %v", path, o)
		}
	}
}

func TestRoutes(t *testing.T) {
	r := start(t, newFake("x"), Options{})
	for _, path := range []string{"/", "/v1/nothing", "/v1/chat", "/v1/chat/completions/x"} {
		r.ask("GET", path, "").fault(t, 404)
	}
	for path, allow := range map[string]string{chatPath: "POST", completionPath: "POST", "/v1/models": "GET", "/health": "GET"} {
		a := r.ask("DELETE", path, "")
		a.fault(t, 405)
		if a.header.Get("Allow") != allow {
			t.Errorf("%s: Allow %q", path, a.header.Get("Allow"))
		}
	}
}

func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("# ours\n\n one \r\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadAPIKeys(file)
	if err != nil || !slices.Equal(keys, []string{"one", "two"}) {
		t.Fatal(keys, err)
	}
	r := start(t, newFake("x"), Options{APIKeys: keys})
	for _, h := range [][]string{{}, {"Authorization", "Bearer three"}, {"Authorization", "one"}, {"Authorization", "Bearer "}} {
		if e := r.ask("GET", "/v1/models", "", h...).fault(t, 401); e["code"] != "invalid_api_key" {
			t.Errorf("%v: %v", h, e)
		}
	}
	for _, h := range [][]string{{"Authorization", "Bearer one"}, {"X-Api-Key", "two"}} {
		r.ask("POST", chatPath, say("hi", ""), h...).object(t, 200)
	}
	r.ask("GET", "/health", "").object(t, 200)
	if err := os.WriteFile(file, []byte("# none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAPIKeys(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file without keys: %v", err)
	}
	if _, err := ReadAPIKeys(file + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestCORS(t *testing.T) {
	r := start(t, newFake("x"), Options{CORS: []string{"https://page.example"}})
	own := r.url
	for origin, want := range map[string]struct {
		status int
		allow  string
	}{
		"https://page.example":  {200, "https://page.example"},
		"https://other.example": {403, ""},
		"null":                  {403, ""},
		"http://localhost:3000": {200, ""},
		"app://editor":          {200, ""},
		own:                     {200, ""},
	} {
		a := r.ask("POST", chatPath, say("hi", ""), "Origin", origin)
		if a.status != want.status || a.header.Get("Access-Control-Allow-Origin") != want.allow {
			t.Errorf("%s: status %d, allowed %q", origin, a.status, a.header.Get("Access-Control-Allow-Origin"))
		}
	}
	a := r.ask("OPTIONS", chatPath, "", "Origin", "https://page.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	if a.status != 204 || a.header.Get("Access-Control-Allow-Headers") != "authorization" || !strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("preflight: %+v", a)
	}
	all := start(t, newFake("x"), Options{CORS: []string{"*"}})
	if a := all.ask("GET", "/v1/models", "", "Origin", "https://other.example"); a.status != 200 || a.header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("all: %+v", a)
	}
}

func TestLoading(t *testing.T) {
	r := start(t, nil, Options{})
	for _, path := range []string{"/health", "/v1/models"} {
		if a := r.ask("GET", path, ""); a.fault(t, 503)["type"] != typeUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	r.Ready(newFake("x"))
	r.ask("GET", "/health", "").object(t, 200)
	r.post(chatPath, say("hi", "")).object(t, 200)
}

func TestBodyLimit(t *testing.T) {
	r := start(t, newFake("x"), Options{MaxBody: 2 << 20})
	long := say("hi", strings.Repeat(" ", 1<<20)) // more than a small one
	done := make(chan error)
	for range 4 {
		go func() {
			a, err := r.do(context.Background(), "POST", chatPath, long)
			if err == nil {
				a.Body.Close()
				if a.StatusCode != 200 {
					err = fmt.Errorf("status %d", a.StatusCode)
				}
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error("large bodies at once:", err)
		}
	}
	// Without a length in front the limit is found while reading.
	q, err := http.NewRequest("POST", r.url+chatPath, struct{ *strings.Reader }{strings.NewReader(say("hi", strings.Repeat(" ", 3<<20)))})
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	p.Body.Close()
	if p.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", p.StatusCode)
	}
	r.post(chatPath, long).object(t, 200) // the place for large bodies is free again
}

func TestPanicIsOneRequestsOnly(t *testing.T) {
	f := newFake("a", "b")
	var fail atomic.Int32
	f.before = func(_ context.Context, token int) error {
		if token > 0 && token == int(fail.Load()) {
			panic("broken")
		}
		return nil
	}
	r := start(t, f, Options{})
	fail.Store(2)
	r.post(chatPath, say("hi", "")).fault(t, 500)
	p, err := r.do(context.Background(), "POST", chatPath, say("hi", `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Body.Close()
	if b, err := readAll(p); err == nil || strings.Contains(b, "[DONE]") {
		t.Errorf("a broken stream looks finished: %q", b)
	}
	fail.Store(0)
	r.post(chatPath, say("hi", "")).object(t, 200)
}
