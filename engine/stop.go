package engine

// Stopper finds stop strings in a text that comes in pieces. It holds back what may become one, so
// that no part of a stop string is ever given out, and gives it out once it cannot.
//
// It works byte by byte (Knuth, Morris and Pratt's automaton, one per stop string), so the same
// text gives the same answer however it was cut into pieces: the stop string that is complete first
// ends it, the longest of several. Pieces of whole runes come out as whole runes.
type Stopper struct {
	stops   []automaton
	held    []byte // received and not given out
	stopped bool
}

// automaton follows one stop string through the text.
type automaton struct {
	word  string
	next  []int32 // next[n]: the longest proper border of word[:n]
	state int     // bytes of word that the text ends with
}

// NewStopper makes a Stopper; empty stop strings are left out.
func NewStopper(stops []string) *Stopper {
	s := &Stopper{}
	for _, w := range stops {
		if w != "" {
			s.stops = append(s.stops, automaton{word: w, next: borders(w)})
		}
	}
	return s
}

func borders(w string) []int32 {
	next := make([]int32, len(w)+1)
	n := int32(0)
	for i := 1; i < len(w); i++ {
		for n > 0 && w[i] != w[n] {
			n = next[n]
		}
		if w[i] == w[n] {
			n++
		}
		next[i+1] = n
	}
	return next
}

// step takes one byte and reports whether the word is complete.
func (a *automaton) step(c byte) bool {
	for a.state > 0 && a.word[a.state] != c {
		a.state = int(a.next[a.state])
	}
	if a.word[a.state] == c {
		a.state++
	}
	return a.state == len(a.word)
}

// Push takes a piece of text and returns what may go out now. Once a stop string is complete, stop
// is that string and text ends before it; nothing comes out any more.
func (s *Stopper) Push(piece string) (text, stop string) {
	if s.stopped {
		return "", ""
	}
	if len(s.stops) == 0 {
		return piece, ""
	}
	for i := range len(piece) {
		s.held = append(s.held, piece[i])
		hit := -1
		for j := range s.stops {
			if s.stops[j].step(piece[i]) && (hit < 0 || len(s.stops[j].word) > len(s.stops[hit].word)) {
				hit = j
			}
		}
		if hit >= 0 {
			stop = s.stops[hit].word
			text = string(s.held[:len(s.held)-len(stop)])
			s.held, s.stopped = nil, true
			return text, stop
		}
	}
	keep := 0
	for j := range s.stops {
		keep = max(keep, s.stops[j].state)
	}
	out := len(s.held) - keep
	text = string(s.held[:out])
	s.held = append(s.held[:0], s.held[out:]...)
	return text, ""
}

// Flush returns what is still held back, at the end of the text.
func (s *Stopper) Flush() string {
	text := string(s.held)
	s.held = nil
	return text
}
