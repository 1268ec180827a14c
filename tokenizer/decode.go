package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decode gives the bytes of ids, which need not be UTF-8; control tokens only if special is set, but for <think>,
// </think> and the tags of channels, which always have their text. Numbers that are no tokens have none.
func (t *Tokenizer) Decode(ids []int32, special bool) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(t.piece(id, special))
	}
	return b.String()
}

// piece gives the bytes of a token as they appear in decoded text.
func (t *Tokenizer) piece(id int32, special bool) []byte {
	if id < 0 || int(id) >= t.size {
		return nil
	}
	switch t.types[id] {
	case typeUnknown, typeControl:
		if !special {
			return nil
		}
	case typeUnused:
		return nil
	}
	return t.symbol(id)
}

// Decoder turns a stream of tokens into text that is always whole UTF-8: the bytes of a character that is not complete
// are held back, and each maximal part of an invalid sequence becomes one U+FFFD, as Unicode recommends. Control tokens
// have no text. A Decoder belongs to one goroutine.
type Decoder struct {
	t    *Tokenizer
	held []byte // at most three
}

// NewDecoder begins a stream.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{t: t} }

// Push adds a token and gives the text that is certain now.
func (d *Decoder) Push(id int32) string {
	d.held = append(d.held, d.t.piece(id, false)...)
	return d.take(false)
}

// Flush ends the stream: what is left of a cut character is one U+FFFD.
func (d *Decoder) Flush() string { return d.take(true) }

func (d *Decoder) take(all bool) string {
	var b strings.Builder
	rest := d.held
	for len(rest) > 0 {
		n, ok, more := sequence(rest)
		if more && !all {
			break
		}
		if ok {
			b.Write(rest[:n])
		} else {
			b.WriteRune(utf8.RuneError)
		}
		rest = rest[n:]
	}
	d.held = append(d.held[:0], rest...)
	return b.String()
}

// sequence looks at the first character of b (not empty): its length and whether it is valid; if not, n is the length
// of the maximal part of a valid one. more: b ends inside of it.
func sequence(b []byte) (n int, ok, more bool) {
	want, lo, hi := 0, byte(0x80), byte(0xBF)
	switch c := b[0]; { // table 3-7 of the Unicode standard
	case c < 0x80:
		return 1, true, false
	case c < 0xC2 || c > 0xF4:
		return 1, false, false
	case c < 0xE0:
		want = 2
	case c < 0xF0:
		want = 3
		switch c {
		case 0xE0:
			lo = 0xA0
		case 0xED:
			hi = 0x9F
		}
	default:
		want = 4
		switch c {
		case 0xF0:
			lo = 0x90
		case 0xF4:
			hi = 0x8F
		}
	}
	for n = 1; n < want; n++ {
		if n == len(b) {
			return n, false, true
		}
		if b[n] < lo || b[n] > hi {
			return n, false, false
		}
		lo, hi = 0x80, 0xBF
	}
	return want, true, false
}
