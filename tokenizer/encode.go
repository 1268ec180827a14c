package tokenizer

import "unsafe"

// encoder is the scratch memory of one Encode.
type encoder struct {
	t *Tokenizer
	merger
	ids  []int32
	emit func(piece string) // e.piece, made once
}

func (t *Tokenizer) newEncoder() *encoder {
	e := &encoder{t: t, merger: merger{table: &t.merges}}
	e.emit = e.piece
	return e
}

// Encode gives the tokens of text; no BOS is added. User-defined tokens are matched anywhere, control tokens only if
// special is set, else their text is taken literally.
func (t *Tokenizer) Encode(text string, special bool) []int32 {
	if special {
		return t.EncodeExcept(text, nil)
	}
	return t.EncodeExcept(text, [][2]int{{0, len(text)}})
}

// EncodeExcept gives the tokens of text with control tokens matched, except where one would overlap a literal range:
// byte ranges [from, to), sorted. No BOS is added. The work grows with n log n of the longest word, else linearly.
func (t *Tokenizer) EncodeExcept(text string, literal [][2]int) []int32 {
	e := t.encoders.Get().(*encoder)
	e.ids = make([]int32, 0, len(text)/3+1)
	e.encode(text, literal)
	ids := e.ids
	e.ids = nil
	t.encoders.Put(e)
	return ids
}

func (e *encoder) encode(text string, literal [][2]int) {
	from := 0
	for i := 0; i < len(text); {
		for len(literal) > 0 && literal[0][1] <= i {
			literal = literal[1:]
		}
		limit := len(text) // how far a control token at i may reach
		if len(literal) > 0 {
			limit = literal[0][0]
		}
		id, end := e.t.special.match(text, i, limit)
		if end == i {
			i++
			continue
		}
		e.t.pre.split(e.t.classes, text[from:i], e.emit)
		e.ids = append(e.ids, id)
		i, from = end, end
	}
	e.t.pre.split(e.t.classes, text[from:], e.emit)
}

// piece adds the tokens of one piece.
func (e *encoder) piece(s string) {
	if e.t.whole != nil {
		if id, ok := e.t.whole.find(unsafe.Slice(unsafe.StringData(s), len(s))); ok && int(id) < e.t.size {
			e.ids = append(e.ids, id)
			return
		}
	}
	e.syms = e.syms[:0]
	for i := range len(s) {
		e.syms = append(e.syms, e.t.bytes[s[i]])
	}
	e.merge()
	for _, id := range e.syms {
		e.add(id)
	}
}

// add adds a symbol: itself where it is a token, else the tokens of its bytes. A byte without a token has none to add.
func (e *encoder) add(id int32) {
	if int(id) < e.t.size {
		e.ids = append(e.ids, id)
		return
	}
	for _, b := range e.t.symbol(id) {
		if id := e.t.bytes[b]; int(id) < e.t.size {
			e.ids = append(e.ids, id)
		}
	}
}
