// Package server speaks HTTP: the chat, completion and model routes of OpenAI's API, as local
// clients use them.
//
// A request takes a place (or is told to come back), is read, checked and turned into tokens, and
// then waits for the engine. From there on its only owner is its handler: when the client goes, the
// context ends and with it the work.
package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/epq-uring/epq-uring/engine"
)

// Options of a server. The zero value of a field means its default.
type Options struct {
	APIKeys         []string        // one of them must come with each request but /health; empty: none needed
	CORS            []string        // origins of web pages that may call; "*": all
	MaxBody         int64           // bytes of a request's body; 16 MiB
	Parallel        int             // requests the engine answers side by side; 1
	Queue           int             // requests that may wait beside them; 64; negative: none
	KeepAlive       time.Duration   // between comments in a stream that has no token yet; 10 s
	Default         *engine.Request // for what a request leaves out; engine.DefaultSampling, to the end of the context
	TLSCert, TLSKey string          // PEM files; both or none
	Log             zerolog.Logger  // faults of the server's own; the zero value is silent
}

func (o Options) withDefaults() Options {
	if o.MaxBody <= 0 {
		o.MaxBody = 16 << 20
	}
	if o.Parallel <= 0 {
		o.Parallel = 1
	}
	if o.Queue == 0 {
		o.Queue = 64
	}
	if o.KeepAlive <= 0 {
		o.KeepAlive = 10 * time.Second
	}
	if o.Default == nil {
		o.Default = &engine.Request{MaxTokens: -1, Sampling: engine.DefaultSampling()}
	}
	return o
}

// Server answers HTTP requests with one model.
type Server struct {
	opt     Options
	engine  atomic.Pointer[Engine] // nil: still loading
	started int64                  // unix seconds
	keys    [][sha256.Size]byte
	handler http.Handler
	http    http.Server

	places chan struct{} // one per request being answered or waiting
	large  chan struct{} // held by the one request that may have a large body in memory

	closing atomic.Bool
	cancel  context.CancelFunc // ends all running requests
	stopped chan struct{}      // closed when Shutdown is over
	once    sync.Once
	fresh   freshConns
}

// New makes a server. With a nil engine it says that it is loading until Ready.
func New(e Engine, opt Options) *Server {
	opt = opt.withDefaults()
	s := &Server{
		opt:     opt,
		started: time.Now().Unix(),
		places:  make(chan struct{}, opt.Parallel+max(opt.Queue, 0)),
		large:   make(chan struct{}, 1),
		stopped: make(chan struct{}),
	}
	if e != nil {
		s.Ready(e)
	}
	for _, k := range opt.APIKeys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	s.handler = s.routes()
	var base context.Context
	base, s.cancel = context.WithCancel(context.Background())
	s.http = http.Server{
		Handler:           s.handler,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnState:         s.fresh.track,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          errorLog(opt.Log),
	}
	return s
}

// Ready gives the server its model: requests are answered from now on.
func (s *Server) Ready(e Engine) { s.engine.Store(&e) }

// Handler answers requests without a listener of the server's own.
func (s *Server) Handler() http.Handler { return s.handler }

// Serve answers requests that come in at l. After Shutdown it returns nil, once that is over.
func (s *Server) Serve(l net.Listener) error {
	var err error
	if s.opt.TLSCert != "" || s.opt.TLSKey != "" {
		err = s.http.ServeTLS(l, s.opt.TLSCert, s.opt.TLSKey)
	} else {
		err = s.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		<-s.stopped
		return nil
	}
	return err
}

// Shutdown takes no new requests and waits until those that run or wait are answered. When ctx
// ends first, they are cut off and its error comes back.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.Store(true)
	s.fresh.close()
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.cancel()
		_ = s.http.Close() // the connections are given up; Shutdown's error says why
	}
	s.once.Do(func() {
		s.cancel()
		close(s.stopped)
	})
	return err
}

// route is what one path answers to.
type route struct {
	path, method string
	open         bool // no key needed
	fn           func(http.ResponseWriter, *http.Request, Engine)
}

// The routes that generate.
const (
	chatRoute       = "/v1/chat/completions"
	completionRoute = "/v1/completions"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range []route{
		{chatRoute, "POST", false, s.generate(s.readChat)},
		{completionRoute, "POST", false, s.generate(s.readCompletion)},
		{"/v1/models", "GET", false, s.models},
		{"/v1/models/{id...}", "GET", false, s.model},
		{"/health", "GET", true, s.health},
		{"/v1/health", "GET", true, s.health},
	} {
		mux.HandleFunc(r.path, func(w http.ResponseWriter, q *http.Request) { s.serve(w, q, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		writeError(w, newError(http.StatusNotFound, typeNotFound, "no such route: %s", shorten([]byte(q.URL.Path))))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		defer s.recover(w, q)
		if s.crossOrigin(w, q) {
			mux.ServeHTTP(w, q)
		}
	})
}

func (s *Server) serve(w http.ResponseWriter, q *http.Request, r route) {
	if q.Method != r.method && (q.Method != http.MethodHead || r.method != http.MethodGet) {
		w.Header().Set("Allow", r.method)
		writeError(w, newError(http.StatusMethodNotAllowed, typeInvalid, "%s %s: the method must be %s", q.Method, r.path, r.method))
		return
	}
	if !r.open && !s.authorised(q) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, newError(http.StatusUnauthorized, typeAuth, "the API key is missing or wrong: send it as \"Authorization: Bearer KEY\"").coded("invalid_api_key"))
		return
	}
	if s.closing.Load() {
		w.Header().Set("Connection", "close")
		writeError(w, unavailable("the server is shutting down"))
		return
	}
	e := s.engine.Load()
	if e == nil {
		writeError(w, unavailable("the model is loading"))
		return
	}
	r.fn(w, q, *e)
}

// recover turns a panic of one request into its error; the others go on.
func (s *Server) recover(w http.ResponseWriter, q *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	s.opt.Log.Error().Str("path", q.URL.Path).Interface("fault", p).Bytes("stack", debug.Stack()).Msg("request failed")
	if w.Header().Get("Content-Type") != "" {
		panic(http.ErrAbortHandler) // an answer that has begun must not look finished
	}
	writeError(w, newError(http.StatusInternalServerError, typeServer, "the server failed on this request"))
}

// authorised compares in constant time, so that the time tells nothing of the keys.
func (s *Server) authorised(q *http.Request) bool {
	if len(s.keys) == 0 {
		return true
	}
	key, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
	if !ok {
		key = q.Header.Get("X-Api-Key")
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(key)))
	found := 0
	for i := range s.keys {
		found |= subtle.ConstantTimeCompare(s.keys[i][:], sum[:])
	}
	return found == 1
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request, _ Engine) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (s *Server) modelObject(e Engine) modelObject {
	return modelObject{ID: e.ModelName(), Object: "model", Created: s.started, OwnedBy: "epq-uring"}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request, e Engine) {
	writeJSON(w, http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{s.modelObject(e)}})
}

func (s *Server) model(w http.ResponseWriter, q *http.Request, e Engine) {
	if id := q.PathValue("id"); id != e.ModelName() {
		writeError(w, newError(http.StatusNotFound, typeInvalid, "no model %q, this server has %q", shorten([]byte(id)), e.ModelName()).at("model").coded("model_not_found"))
		return
	}
	writeJSON(w, http.StatusOK, s.modelObject(e))
}
