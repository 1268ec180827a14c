package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/engine"
)

// Error types, as clients know them from OpenAI and llama.cpp.
const (
	typeInvalid     = "invalid_request_error"
	typeContext     = "exceed_context_size_error"
	typeAuth        = "authentication_error"
	typePermission  = "permission_error"
	typeNotFound    = "not_found_error"
	typeUnavailable = "unavailable_error"
	typeServer      = "server_error"
)

// apiError is what a client gets to see when it does not get what it asked for.
type apiError struct {
	status     int
	retryAfter int // seconds; 0: no such header

	Message      string  `json:"message"`
	Type         string  `json:"type"`
	Param        *string `json:"param"` // the field that is wrong, as a path
	Code         *string `json:"code"`
	PromptTokens int     `json:"n_prompt_tokens,omitempty"`
	Context      int     `json:"n_ctx,omitempty"`
}

func (e *apiError) Error() string { return e.Message }

func newError(status int, kind, format string, args ...any) *apiError {
	return &apiError{status: status, Type: kind, Message: fmt.Sprintf(format, args...)}
}

func badRequest(param, format string, args ...any) *apiError {
	return newError(http.StatusBadRequest, typeInvalid, format, args...).at(param)
}

func (e *apiError) at(param string) *apiError {
	if param != "" {
		e.Param = &param
	}
	return e
}

func (e *apiError) coded(code string) *apiError {
	e.Code = &code
	return e
}

// unavailable asks the client to come back.
func unavailable(format string, args ...any) *apiError {
	e := newError(http.StatusServiceUnavailable, typeUnavailable, format, args...)
	e.retryAfter = 5
	return e
}

func contextError(c *engine.ContextError) *apiError {
	has := "has"
	if c.AtLeast {
		has = "has at least"
	}
	e := badRequest("", "the prompt %s %d tokens and leaves no room in the context of %d: shorten it or start the server with a larger -c", has, c.PromptTokens, c.Context)
	e.Type, e.PromptTokens, e.Context = typeContext, c.PromptTokens, c.Context
	return e.coded("context_length_exceeded")
}

// asAPIError says what an error of the engine means to the client.
func asAPIError(err error) *apiError {
	var api *apiError
	var full *engine.ContextError
	var sampling *engine.SamplingError
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &full):
		return contextError(full)
	case errors.As(err, &sampling):
		return badRequest(sampling.Param, "%s %s", sampling.Param, sampling.Why)
	case errors.Is(err, ErrMessages), errors.Is(err, chat.ErrTemplate), errors.Is(err, chat.ErrSyntax):
		return badRequest("messages", "the messages cannot be rendered: %s", reason(err))
	case errors.Is(err, engine.ErrBusy):
		return unavailable("the queue is full, try again later")
	case errors.Is(err, engine.ErrClosed), errors.Is(err, context.Canceled):
		return unavailable("the server is shutting down")
	}
	return newError(http.StatusInternalServerError, typeServer, "%v", err)
}

// reason is an error's text without the names of our packages, which mean nothing to a client.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), ErrMessages.Error()+": ")
	return strings.TrimPrefix(strings.TrimPrefix(text, chat.ErrTemplate.Error()+": "), "chat: ")
}

type errorBody struct {
	Error *apiError `json:"error"`
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	writeJSON(w, e.status, errorBody{e})
}

// writeTimeout bounds one write, so that a client that does not read holds nothing for long.
const writeTimeout = time.Minute

func writeJSON(w http.ResponseWriter, status int, v any) {
	rc := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; without one the write is only not bounded.
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client has gone; there is no one left to tell
	_ = rc.SetWriteDeadline(time.Time{})
}
