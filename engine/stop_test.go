package engine

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStopCases(t *testing.T) {
	var file struct {
		Cases []struct {
			Name            string
			Stop            []string
			Pieces, Emitted []string
			Text            string
			Matched         *string
		}
	}
	readJSON(t, "testdata/b55_stop.json", &file)
	if len(file.Cases) < 10 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			s := NewStopper(c.Stop)
			var sent, matched string
			var emitted []string
			for i, p := range c.Pieces {
				text, stop := s.Push(p)
				sent += text
				if c.Matched == nil && i == len(c.Pieces)-1 {
					sent += s.Flush() // the answer ends here
				}
				emitted = append(emitted, sent)
				if matched = stop; stop != "" {
					break
				}
			}
			if !slices.Equal(emitted, c.Emitted) {
				t.Errorf("emitted %q, want %q", emitted, c.Emitted)
			}
			if want := c.Matched; want == nil && matched != "" || want != nil && matched != *want {
				t.Errorf("matched %q", matched)
			}
			if sent += s.Flush(); sent != c.Text {
				t.Errorf("text %q, want %q", sent, c.Text)
			}
			if text, stop := s.Push("more"); matched != "" && text+stop != "" {
				t.Errorf("text after the end: %q %q", text, stop)
			}
		})
	}
}

// plainStop ends a text before the stop string that is complete first, the longest of several.
func plainStop(text string, stops []string) (before, stop string) {
	for end := 1; end <= len(text); end++ {
		for _, w := range stops {
			if w != "" && strings.HasSuffix(text[:end], w) && len(w) > len(stop) {
				stop = w
			}
		}
		if stop != "" {
			return text[:end-len(stop)], stop
		}
	}
	return text, ""
}

// TestStopAnyCut cuts random texts of few letters anywhere and compares with searching the whole text.
func TestStopAnyCut(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	letters := []string{"a", "b", "é", "è", "日", "本"}
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	hits := 0
	for range 5000 {
		var stops []string
		for range r.IntN(4) {
			stops = append(stops, word(r.IntN(5)))
		}
		text := word(r.IntN(30))
		want, wantStop := plainStop(text, stops)
		s := NewStopper(stops)
		var got, gotStop string
		for rest := []rune(text); len(rest) > 0 && gotStop == ""; {
			n := 1 + r.IntN(len(rest))
			var out string
			out, gotStop = s.Push(string(rest[:n]))
			rest = rest[n:]
			if got += out; !utf8.ValidString(out) {
				t.Fatalf("%q with %q: a cut character in %q", text, stops, out)
			}
			if !strings.HasPrefix(want, got) {
				t.Fatalf("%q with %q: %q went out", text, stops, got)
			}
		}
		got += s.Flush()
		if got != want || gotStop != wantStop {
			t.Fatalf("%q with %q: %q %q, want %q %q", text, stops, got, gotStop, want, wantStop)
		}
		if gotStop != "" {
			hits++
		}
	}
	if hits < 500 {
		t.Errorf("only %d texts had a stop string", hits)
	}
}
