// Package tokenizer turns text into tokens and back by byte-level BPE, with the vocabulary, merges and pre-tokenizer
// that a GGUF file names. Text is taken byte for byte: nothing is normalised (the original tokenizers of some models
// compose letters to NFC; GGUF files do not say so), and bytes that are not UTF-8 become tokens too.
package tokenizer

import (
	"errors"
	"slices"
	"sync"
)

// Kinds of errors; match with errors.Is.
var (
	// ErrVocab is a vocabulary that contradicts itself; the message names the key and the value.
	ErrVocab = errors.New("tokenizer: broken vocabulary")
	// ErrUnsupported is a kind of tokenizer this package does not know; the message lists what it knows.
	ErrUnsupported = errors.New("tokenizer: unsupported")
)

// Token types as numbered in tokenizer.ggml.token_type.
const (
	typeUndefined = 0
	typeNormal    = 1
	typeUnknown   = 2
	typeControl   = 3 // matched in text only where special tokens are asked for
	typeUser      = 4 // matched in any text
	typeUnused    = 5
	typeByte      = 6
	typeRaw       = 7 // not in files: a normal token that no merge can make, as it is not written in the byte alphabet
	typeTag       = 8 // not in files: a control token that is text in answers, because it bounds thinking text or channels
)

// Tokenizer is safe for use by many goroutines.
type Tokenizer struct {
	size  int // tokens of the vocabulary; symbols from size on only live inside merges
	types []uint8
	// The bytes of symbol i are text[ends[i-1]:ends[i]].
	text []byte
	ends []uint32

	longest int // bytes

	pre     pretokenizer
	classes *classTable
	bytes   [256]int32 // symbol of each byte
	merges  mergeTable
	whole   *index // of whole pieces, where the pre-tokenizer asks for it
	special specials

	bos      int32 // -1: none
	addBOS   bool
	end      []int32
	encoders sync.Pool
}

// Size is the number of tokens of the vocabulary.
func (t *Tokenizer) Size() int { return t.size }

// Longest is the number of bytes of the longest token, at least 1.
func (t *Tokenizer) Longest() int { return t.longest }

// BOS is the token that begins a text, if the file names one.
func (t *Tokenizer) BOS() (int32, bool) { return t.bos, t.bos >= 0 }

// AddBOS tells whether the model wants BOS in front of every text (tokenizer.ggml.add_bos_token).
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// EndTokens are the tokens that end an answer: those the file names, its eos first, and those known by their text. The
// caller must not change the slice.
func (t *Tokenizer) EndTokens() []int32 { return t.end }

// IsEnd tells whether id is one of EndTokens.
func (t *Tokenizer) IsEnd(id int32) bool { return slices.Contains(t.end, id) }

// Text is the text of one token, control tokens included; false if there is no such token. It need not be whole
// characters.
func (t *Tokenizer) Text(id int32) (string, bool) {
	if id < 0 || int(id) >= t.size {
		return "", false
	}
	return string(t.symbol(id)), true
}

// Control lists the texts of the control tokens: what a user's text must not be able to spell.
func (t *Tokenizer) Control() []string {
	var out []string
	for i, text := range t.special.texts {
		if !t.special.always[i] {
			out = append(out, text)
		}
	}
	return out
}

// Bytes is the memory held.
func (t *Tokenizer) Bytes() int64 {
	n := cap(t.text) + 4*cap(t.ends) + cap(t.types) + 16*cap(t.merges.keys) + t.special.bytes()
	if t.whole != nil {
		n += 8 * cap(t.whole.slots)
	}
	return int64(n)
}

// symbol gives the bytes of a token or inner symbol.
func (t *Tokenizer) symbol(id int32) []byte {
	from := uint32(0)
	if id > 0 {
		from = t.ends[id-1]
	}
	return t.text[from:t.ends[id]]
}
