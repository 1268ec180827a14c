package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// stream writes server-sent events. Until the first one, comments keep the connection alive:
// proxies and clients give up on silence, and reading a long prompt from disk is silent.
type stream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	gone  func() // called when the client cannot be written to
	quiet chan struct{}
	ended chan struct{} // the comments' goroutine is over

	mu    sync.Mutex
	begun bool // an event was sent
	buf   bytes.Buffer
	err   error
}

// newStream sends the headers at once and a comment every so often until the first event.
func newStream(w http.ResponseWriter, every time.Duration, gone func()) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w), gone: gone, quiet: make(chan struct{}), ended: make(chan struct{})}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would hold tokens back
	w.WriteHeader(http.StatusOK)
	s.mu.Lock()
	s.write(nil)
	s.mu.Unlock()
	go s.comments(every)
	return s
}

func (s *stream) comments(every time.Duration) {
	defer close(s.ended)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.quiet:
			return
		case <-tick.C:
			s.mu.Lock()
			if !s.begun {
				s.write([]byte(": keep-alive\n\n"))
			}
			s.mu.Unlock()
		}
	}
}

// send writes v as one event and returns the first error of the stream.
func (s *stream) send(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	s.buf.WriteString("data: ")
	enc := json.NewEncoder(&s.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	s.buf.WriteByte('\n') // Encode ended the line
	return s.event(s.buf.Bytes())
}

// done ends a stream that holds the whole answer.
func (s *stream) done() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.event([]byte("data: [DONE]\n\n"))
}

func (s *stream) event(b []byte) error {
	if !s.begun {
		s.begun = true
		close(s.quiet)
	}
	s.write(b)
	return s.err
}

// write needs mu.
func (s *stream) write(b []byte) {
	if s.err != nil {
		return
	}
	// Not every ResponseWriter has deadlines; without one the write is only not bounded.
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, s.err = s.w.Write(b); s.err == nil {
		s.err = s.rc.Flush()
	}
	if s.err != nil {
		s.gone()
	}
}

// close ends the comments. The handler must not return before.
func (s *stream) close() {
	s.mu.Lock()
	if !s.begun {
		s.begun = true
		close(s.quiet)
	}
	s.mu.Unlock()
	<-s.ended
	_ = s.rc.SetWriteDeadline(time.Time{})
}
