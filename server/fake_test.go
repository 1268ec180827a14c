package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/epq-uring/epq-uring/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an engine whose answer is a script: one token for each piece. It answers one request at a
// time, as a real one does, and keeps what it was asked.
type fake struct {
	script  []string
	context int
	think   bool                                       // the answer goes through a splitter
	before  func(ctx context.Context, token int) error // called before each token; 0: while the prompt is read
	logprob func(token int32) engine.TokenLogprob
	refuse  error // of EncodeChat

	slot chan struct{}

	mu       sync.Mutex
	chats    []Chat
	requests []engine.Request
}

func newFake(script ...string) *fake {
	return &fake{script: script, context: 1000, slot: make(chan struct{}, 1)}
}

func (f *fake) Vocab() int        { return 50 }
func (f *fake) Context() int      { return f.context }
func (f *fake) ModelName() string { return "fake/model" }

func (f *fake) Token(id int32) string { return f.script[int(id)%len(f.script)] }

func (f *fake) Encode(text string) ([]int32, error) { return f.words(text), nil }

func (f *fake) words(text string) []int32 { return make([]int32, len(strings.Fields(text))) }

func (f *fake) EncodeChat(c Chat) (Prompt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return Prompt{}, f.refuse
	}
	c.Tools, c.Kwargs = bytes.Clone(c.Tools), bytes.Clone(c.Kwargs)
	f.chats = append(f.chats, c)
	p := Prompt{Tokens: []int32{}}
	for _, m := range c.Messages {
		p.Tokens = append(p.Tokens, f.words(m.Role+" "+m.Content)...)
	}
	if f.think {
		p.Splitter = &thinkSplitter{}
	}
	return p, nil
}

func (f *fake) lastChat() Chat {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chats[len(f.chats)-1]
}

func (f *fake) last() engine.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[len(f.requests)-1]
}

func (f *fake) Generate(ctx context.Context, r engine.Request, fn func(engine.Event) error) (engine.Result, error) {
	f.mu.Lock()
	f.requests = append(f.requests, r)
	f.mu.Unlock()
	select {
	case f.slot <- struct{}{}:
		defer func() { <-f.slot }()
	case <-ctx.Done():
		return engine.Result{}, ctx.Err()
	}
	result := engine.Result{PromptTokens: len(r.Tokens), Finish: "length"}
	stop := engine.NewStopper(r.Stop)
	emit := func(ev engine.Event) error {
		result.Text += ev.Text
		return fn(ev)
	}
	if err := f.wait(ctx, 0); err != nil {
		return result, err
	}
	if err := fn(engine.Event{Processed: len(r.Tokens), Total: len(r.Tokens)}); err != nil {
		return result, err
	}
	for i := 0; r.MaxTokens < 0 || i < r.MaxTokens; i++ {
		if i >= len(f.script) && !r.IgnoreEOS {
			result.Finish = "stop"
			break
		}
		if err := f.wait(ctx, i+1); err != nil {
			return result, err
		}
		id := int32(i % len(f.script))
		result.Tokens = append(result.Tokens, id)
		ev := engine.Event{Tokens: []int32{id}}
		if r.Logprobs && f.logprob != nil {
			ev.Logprobs = []engine.TokenLogprob{f.logprob(id)}
		}
		ev.Text, result.StopString = stop.Push(f.script[id])
		if err := emit(ev); err != nil {
			return result, err
		}
		if result.StopString != "" {
			result.Finish = "stop"
			return result, nil
		}
	}
	return result, emit(engine.Event{Text: stop.Flush()})
}

func (f *fake) wait(ctx context.Context, token int) error {
	if f.before != nil {
		if err := f.before(ctx, token); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// thinkSplitter takes all up to "|" for thinking text.
type thinkSplitter struct{ over bool }

func (t *thinkSplitter) Push(text string) (string, string) {
	if t.over {
		return "", text
	}
	r, c, over := strings.Cut(text, "|")
	t.over = over
	return r, c
}

func (t *thinkSplitter) Flush() (string, string) { return "", "" }

// running is a server on a port of its own.
type running struct {
	*Server
	t      *testing.T
	url    string
	client *http.Client
	served chan error
}

func start(t *testing.T, e Engine, opt Options) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{New(e, opt), t, "http://" + l.Addr().String(), &http.Client{Transport: &http.Transport{}}, make(chan error, 1)}
	go func() { r.served <- r.Serve(l) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-r.served; err != nil {
			t.Error("serve:", err)
		}
	})
	return r
}

const (
	chatPath       = chatRoute
	completionPath = completionRoute
)

// do sends a request; the caller closes the answer's body.
func (r *running) do(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	return r.client.Do(q)
}

type answer struct {
	status int
	header http.Header
	text   string
}

func (r *running) ask(method, path, body string, headers ...string) answer {
	r.t.Helper()
	p, err := r.do(context.Background(), method, path, body, headers...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Body.Close()
	b, err := io.ReadAll(p.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{p.StatusCode, p.Header, string(b)}
}

func (r *running) post(path, body string) answer {
	r.t.Helper()
	return r.ask("POST", path, body)
}

// object reads a JSON answer of the wanted status.
func (a answer) object(t *testing.T, status int) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(a.text), &o); err != nil || a.status != status {
		t.Fatalf("status %d, want %d: %s (%v)", a.status, status, a.text, err)
	}
	if !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		t.Errorf("content type %q", a.header.Get("Content-Type"))
	}
	return o
}

// fault reads an error object of the wanted status and checks its shape.
func (a answer) fault(t *testing.T, status int) map[string]any {
	t.Helper()
	e, _ := a.object(t, status)["error"].(map[string]any)
	for _, k := range []string{"message", "type", "param", "code"} {
		if _, ok := e[k]; !ok {
			t.Fatalf("no error.%s: %s", k, a.text)
		}
	}
	if m := e["message"].(string); len(m) < 6 || strings.Contains(m, "\n") {
		t.Errorf("message %q", m)
	}
	return e
}

// at follows keys and indices into a JSON value.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// events splits a stream into its data lines and the number of comments.
func events(t *testing.T, text string) (data []string, comments int) {
	t.Helper()
	for _, e := range strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		switch d, ok := strings.CutPrefix(e, "data: "); {
		case ok && !strings.Contains(d, "\n"):
			data = append(data, d)
		case strings.HasPrefix(e, ":"):
			comments++
		default:
			t.Fatalf("event %q", e)
		}
	}
	return data, comments
}

// chunks reads a stream that ends as it should.
func (a answer) chunks(t *testing.T) []map[string]any {
	t.Helper()
	data, _ := events(t, a.text)
	if a.status != 200 || data[len(data)-1] != "[DONE]" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("status %d: %s", a.status, a.text)
	}
	var out []map[string]any
	for _, d := range data[:len(data)-1] {
		var c map[string]any
		if err := json.Unmarshal([]byte(d), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

func say(content string, more string) string {
	b, _ := json.Marshal(content) // a string always has a form
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%s}]%s}`, b, more)
}

// line reads the next line of a stream that is not blank.
func line(t *testing.T, b *bufio.Reader) string {
	t.Helper()
	for {
		s, err := b.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if s = strings.TrimSpace(s); s != "" {
			return s
		}
	}
}
