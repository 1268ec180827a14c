package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/engine"
)

func readAll(p *http.Response) (string, error) {
	b, err := io.ReadAll(p.Body)
	return string(b), err
}

// TestKeepAlive: headers at once, comments until the first token, none after it and none in
// answers that are not streamed.
func TestKeepAlive(t *testing.T) {
	f := newFake("a", "b")
	heard := make(chan struct{})
	f.before = func(ctx context.Context, token int) error {
		if token == 0 {
			<-heard // the prompt takes until three comments came
		}
		return nil
	}
	if d := (Options{}).withDefaults().KeepAlive; d < time.Second || d >= 15*time.Second {
		t.Errorf("a comment every %v: clients give up after 15 s of silence", d)
	}
	r := start(t, f, Options{KeepAlive: time.Millisecond})
	p, err := r.do(context.Background(), "POST", chatPath, say("hi", `,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Body.Close()
	in := bufio.NewReader(p.Body)
	for range 3 {
		if l := line(t, in); l != ": keep-alive" {
			t.Fatalf("line %q", l)
		}
	}
	close(heard)
	rest, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	_, stream, _ := strings.Cut(string(rest), "data: ")
	if data, comments := events(t, "data: "+stream); comments != 0 || data[len(data)-1] != "[DONE]" {
		t.Errorf("after the first token: %q", rest)
	}
	if a := r.post(chatPath, say("hi", "")); a.text[0] != '{' {
		t.Errorf("not streamed: %q", a.text)
	}
}

// TestFaultInStream: an error becomes an event, and nothing that looks like an end follows.
func TestFaultInStream(t *testing.T) {
	f := newFake("a", "b", "c")
	f.before = func(_ context.Context, token int) error {
		if token == 3 {
			return errors.New("engine: model.gguf: expert 5 of layer 2 cannot be read")
		}
		return nil
	}
	r := start(t, f, Options{})
	data, _ := events(t, r.post(chatPath, say("hi", `,"stream":true`)).text)
	last := data[len(data)-1]
	if len(data) != 4 || !strings.HasPrefix(last, `{"error":{"message":"engine: model.gguf: expert 5`) {
		t.Errorf("events %q", data)
	}
	for _, d := range data {
		if strings.Contains(d, `"stop"`) || strings.Contains(d, `"length"`) || d == "[DONE]" {
			t.Errorf("looks finished: %s", d)
		}
	}
	if e := r.post(chatPath, say("hi", "")).fault(t, 500); !strings.Contains(e["message"].(string), "expert 5") {
		t.Errorf("not streamed: %v", e)
	}
}

// TestClientGone: in the prompt, in the queue, after the first token, streamed or not, the work
// stops and the next request is answered.
func TestClientGone(t *testing.T) {
	for name, c := range map[string]struct {
		token int // before which the client goes; 0: while the prompt is read
		more  string
	}{
		"prompt, streamed": {0, `,"stream":true`},
		"prompt":           {0, ""},
		"token, streamed":  {1, `,"stream":true`},
		"token":            {1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake("a", "b")
			arrived, ended := make(chan struct{}), make(chan struct{})
			var free atomic.Bool
			f.before = func(ctx context.Context, token int) error {
				if free.Load() || token != c.token {
					return nil
				}
				close(arrived)
				<-ctx.Done() // without a context that ends, the test does not
				close(ended)
				return ctx.Err()
			}
			r := start(t, f, Options{})
			ctx, leave := context.WithCancel(context.Background())
			over := make(chan error)
			go func() {
				p, err := r.do(ctx, "POST", chatPath, say("hi", c.more))
				if err == nil {
					_, err = readAll(p)
					p.Body.Close()
				}
				over <- err
			}()
			<-arrived
			leave()
			<-ended
			if err := <-over; !errors.Is(err, context.Canceled) {
				t.Errorf("the client got %v", err)
			}
			free.Store(true)
			r.post(chatPath, say("hi", "")).object(t, 200)
		})
	}
}

// TestOthersCancel: while A streams, others wait and go; A's text is whole.
func TestOthersCancel(t *testing.T) {
	const others = 100
	script := strings.Split(strings.Repeat("word ", others), " ")
	f := newFake(script...)
	step := make(chan struct{})
	f.before = func(ctx context.Context, token int) error {
		if token > 0 {
			<-step
		}
		return nil
	}
	r := start(t, f, Options{})
	a := make(chan answer)
	go func() { a <- r.post(chatPath, say("A", `,"stream":true`)) }()
	step <- struct{}{}
	for range others - 1 {
		ctx, leave := context.WithCancel(context.Background())
		p, err := r.do(ctx, "POST", chatPath, say("B", `,"stream":true`)) // headers come while it waits
		if err != nil {
			t.Fatal(err)
		}
		leave()
		p.Body.Close()
		step <- struct{}{}
	}
	close(step)
	text := ""
	for _, c := range (<-a).chunks(t) {
		if s, ok := at(c, "choices", 0, "delta", "content").(string); ok {
			text += s
		}
	}
	if want := strings.Join(script, ""); text != want {
		t.Errorf("A got %q, want %q", text, want)
	}
}

func TestQueueFull(t *testing.T) {
	f := newFake("a")
	hold := make(chan struct{})
	f.before = func(context.Context, int) error { <-hold; return nil }
	r := start(t, f, Options{Queue: 1})
	waiting := make(chan *http.Response)
	for range 2 { // one runs, one waits; both have headers
		go func() {
			p, err := r.do(context.Background(), "POST", chatPath, say("hi", `,"stream":true`))
			if err != nil {
				t.Error(err)
			}
			waiting <- p
		}()
	}
	first, second := <-waiting, <-waiting
	a := r.post(chatPath, say("hi", ""))
	if e := a.fault(t, 503); a.header.Get("Retry-After") == "" || e["type"] != typeUnavailable {
		t.Errorf("%+v", a)
	}
	r.ask("GET", "/health", "").object(t, 200) // still answers
	close(hold)
	for _, p := range []*http.Response{first, second} {
		if s, err := readAll(p); err != nil || !strings.HasSuffix(s, "data: [DONE]\n\n") {
			t.Errorf("%q, %v", s, err)
		}
		p.Body.Close()
	}
	r.post(chatPath, say("hi", "")).object(t, 200)
}

func TestEngineRefuses(t *testing.T) {
	f := newFake("a")
	var refusal atomic.Value
	f.before = func(context.Context, int) error { return refusal.Load().(func() error)() }
	r := start(t, f, Options{})
	for _, c := range []struct {
		err    error
		status int
	}{
		{engine.ErrBusy, 503}, {engine.ErrClosed, 503}, {engine.ErrNaN, 500},
		{&engine.ContextError{PromptTokens: 9, Context: 8}, 400}, {&engine.SamplingError{Param: "top_p", Why: "is 2"}, 400},
	} {
		refusal.Store(func() error { return c.err })
		if a := r.post(chatPath, say("hi", "")); (a.fault(t, c.status)["type"] == typeUnavailable) != (a.header.Get("Retry-After") != "") {
			t.Errorf("%v: %+v", c.err, a)
		}
	}
	// What does not fit is the field that the route has.
	refusal.Store(func() error { return &engine.ContextError{PromptTokens: 9, Context: 8} })
	long := strings.Repeat("0,", f.context) + "0"
	for body, param := range map[string]string{`{"prompt":"a"}`: "prompt", `{"prompt":[` + long + `]}`: "prompt", say("hi", ""): "messages"} {
		path := completionPath
		if param == "messages" {
			path = chatPath
		}
		if e := r.post(path, body).fault(t, 400); e["param"] != param || e["type"] != typeContext {
			t.Errorf("%.40s: %v", body, e)
		}
	}
}

// TestShutdown: a running stream and one that waits finish, new work is refused, an unused
// connection does not hold it up, and Serve returns once all is over.
func TestShutdown(t *testing.T) {
	f := newFake("a", "b", "c")
	arrived, hold := make(chan struct{}, 1), make(chan struct{})
	f.before = func(_ context.Context, token int) error {
		if token == 2 {
			arrived <- struct{}{}
			<-hold
		}
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{New(f, Options{}), t, "http://" + l.Addr().String(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, make(chan error, 1)}
	go func() { r.served <- r.Serve(l) }()
	answers := make(chan answer, 2)
	go func() { answers <- r.post(chatPath, say("hi", `,"stream":true`)) }()
	<-arrived
	waits, err := r.do(context.Background(), "POST", chatPath, say("hi", `,"stream":true`)) // its headers are here: it waits
	if err != nil {
		t.Fatal(err)
	}
	unused, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer unused.Close()
	over := make(chan error, 1)
	go func() { over <- r.Shutdown(context.Background()) }()
	if n, err := unused.Read(make([]byte, 1)); n != 0 || err == nil { // returns when the server closes it
		t.Errorf("read %d, %v", n, err)
	}
	// On a connection that was open before, a request is refused too.
	q, _ := http.NewRequest("POST", r.url+chatPath, strings.NewReader(say("hi", "")))
	rec := newRecorder()
	r.Handler().ServeHTTP(rec, q)
	if rec.status != 503 {
		t.Errorf("new work: status %d", rec.status)
	}
	select {
	case err := <-over:
		t.Fatalf("over before the streams: %v", err)
	case err := <-r.served:
		t.Fatalf("Serve returned before the streams: %v", err)
	default:
	}
	close(hold)
	if c := (<-answers).chunks(t); at(c[len(c)-1], "choices", 0, "finish_reason") != "stop" {
		t.Errorf("the running stream: %v", c)
	}
	if s, err := readAll(waits); err != nil || !strings.HasSuffix(s, "data: [DONE]\n\n") {
		t.Errorf("the waiting stream: %q %v", s, err)
	}
	waits.Body.Close()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

// TestShutdownAtOnce: a context that has ended cuts running streams off.
func TestShutdownAtOnce(t *testing.T) {
	f := newFake("a", "b")
	arrived, ended := make(chan struct{}), make(chan struct{})
	f.before = func(ctx context.Context, token int) error {
		if token == 1 {
			close(arrived)
			<-ctx.Done()
			close(ended)
		}
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{New(f, Options{}), t, "http://" + l.Addr().String(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, make(chan error, 1)}
	go func() { r.served <- r.Serve(l) }()
	got := make(chan string)
	go func() {
		p, err := r.do(context.Background(), "POST", chatPath, say("hi", `,"stream":true`))
		if err != nil {
			got <- ""
			return
		}
		defer p.Body.Close()
		s, _ := readAll(p) // cut off
		got <- s
	}()
	<-arrived
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shutdown: %v", err)
	}
	<-ended
	if s := <-got; strings.Contains(s, "[DONE]") {
		t.Errorf("looks finished: %q", s)
	}
	if err := <-r.served; err != nil {
		t.Error(err)
	}
}

// recorder is a ResponseWriter without a connection.
type recorder struct {
	header http.Header
	status int
}

func newRecorder() *recorder                    { return &recorder{header: http.Header{}} }
func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }
