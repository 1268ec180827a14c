package server

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"
)

// freshConns are connections that have not sent anything yet. Browsers open some in advance, and
// http.Server.Shutdown would wait seconds for their first request.
type freshConns struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

func (f *freshConns) track(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if state != http.StateNew {
		delete(f.conns, c)
		return
	}
	if f.closed {
		_ = c.Close() // nothing was asked on it
		return
	}
	if f.conns == nil {
		f.conns = map[net.Conn]struct{}{}
	}
	f.conns[c] = struct{}{}
}

func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	clear(f.conns)
}

// errorLog takes what net/http reports of connections: clients' faults, for the curious only.
func errorLog(l zerolog.Logger) *log.Logger {
	return log.New(writerFunc(func(b []byte) (int, error) {
		l.Debug().Msg(strings.TrimSpace(string(b)))
		return len(b), nil
	}), "", 0)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// crossOrigin answers for web pages of other origins and reports whether the request goes on.
// Any page in a browser can send a POST to a local server and make it work for hours, even where
// it may not read the answer; so pages from elsewhere that are not listed are turned away.
func (s *Server) crossOrigin(w http.ResponseWriter, q *http.Request) bool {
	origin := q.Header.Get("Origin")
	if origin == "" {
		return true
	}
	listed := slices.Contains(s.opt.CORS, "*") || slices.Contains(s.opt.CORS, origin)
	if listed {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Add("Vary", "Origin")
	}
	preflight := q.Method == http.MethodOptions && q.Header.Get("Access-Control-Request-Method") != ""
	switch {
	case listed && preflight:
		h := w.Header()
		h.Set("Access-Control-Allow-Methods", "GET, POST")
		if asked := q.Header.Get("Access-Control-Request-Headers"); asked != "" {
			h.Set("Access-Control-Allow-Headers", asked)
		}
		h.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return false
	case listed || friendly(origin, q.Host):
		return true
	}
	writeError(w, newError(http.StatusForbidden, typePermission, "web pages of %s may not use this server: start it with --cors %[1]s", shorten([]byte(origin))))
	return false
}

// friendly origins are the server's own, those on this machine, and those that are no web sites
// (editors and desktop programs).
func friendly(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return origin != "null" // a sandboxed page may be anyone's
	}
	ip := net.ParseIP(u.Hostname())
	return u.Host == host || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// ReadAPIKeys reads a file of API keys, one a line; blank lines and lines that start with # are
// left out. A file without a key is an error: it would open the server to all.
func ReadAPIKeys(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("server: API keys: %w", err)
	}
	defer f.Close() // only read
	var keys []string
	sc := bufio.NewScanner(io.LimitReader(f, 1<<20))
	for sc.Scan() {
		if line := strings.TrimSpace(sc.Text()); line != "" && line[0] != '#' {
			keys = append(keys, line)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("server: API keys: %s: %w", path, err)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("server: API keys: %s holds none: put one on a line", path)
	}
	return keys, nil
}
