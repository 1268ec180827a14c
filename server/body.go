package server

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

const (
	// smallBody is what a body may have without waiting for the one place for large ones: the
	// memory of bodies is then bounded by MaxBody and this, whatever clients send at once.
	smallBody = 256 << 10
	// bodyTimeout bounds the time a client may take to send a body.
	bodyTimeout = 2 * time.Minute
)

// enter takes a place for a request. leave gives it back.
func (s *Server) enter() (leave func(), err error) {
	select {
	case s.places <- struct{}{}:
		return func() { <-s.places }, nil
	default:
		return nil, unavailable("the queue is full with %d requests, try again later", cap(s.places))
	}
}

// readBody reads a request's body. release is called once nothing refers to it any more.
func (s *Server) readBody(w http.ResponseWriter, q *http.Request) (body []byte, release func(), err error) {
	release = func() {}
	tooLarge := func() error {
		return newError(http.StatusRequestEntityTooLarge, typeInvalid, "the body is larger than %d bytes: shorten it or start the server with a larger --max-body", s.opt.MaxBody)
	}
	if q.ContentLength > s.opt.MaxBody {
		w.Header().Set("Connection", "close") // what the client is still sending is not read
		return nil, release, tooLarge()
	}
	rc := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; without one reading is only not bounded.
	begin := func() { _ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) }
	begin()
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	in := http.MaxBytesReader(w, q.Body, s.opt.MaxBody)
	var b bytes.Buffer
	_, err = io.CopyN(&b, in, smallBody)
	if err == nil {
		select {
		case s.large <- struct{}{}:
			release = func() { <-s.large }
			begin() // waiting for the place was not the client's fault
		case <-q.Context().Done():
			return nil, release, q.Context().Err()
		}
		_, err = b.ReadFrom(in)
	}
	var limit *http.MaxBytesError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return b.Bytes(), release, nil
	case errors.As(err, &limit):
		err = tooLarge()
	default:
		err = badRequest("", "the body could not be read to its end: %v", err)
	}
	release()
	return nil, func() {}, err
}
