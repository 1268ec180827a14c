package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of Unicode properties of one character, as the pre-tokenizers ask for them.
type class uint16

const (
	letter  class = 1 << iota // \p{L}
	mark                      // \p{M}
	number                    // \p{N}
	punct                     // \p{P}
	symbol                    // \p{S}
	space                     // \s: White_Space
	latin                     // letters of cased scripts, as listed by deepseek-llm
	newline                   // CR and LF, which are space too
	capital                   // gpt-4o: may begin a word: \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}
	small                     // gpt-4o: may end a word: \p{Ll}\p{Lm}\p{Lo}\p{M}
	han                       // \p{Han}
	upper                     // kimi-k2: may begin a word: \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} without \p{Han}
	lower                     // kimi-k2: may end a word: \p{Ll}\p{Lm}\p{Lo}\p{M} without \p{Han}
)

const pageBits = 8

// classTable maps a character to its class in two steps; equal pages are stored once.
type classTable struct {
	page [(unicode.MaxRune + 1) >> pageBits]uint16
	data [][1 << pageBits]class
}

// classes is built on first use: about a millisecond and 100 KB.
var classes = sync.OnceValue(func() *classTable {
	flat := make([]class, unicode.MaxRune+1)
	for _, t := range []struct {
		table *unicode.RangeTable
		class class
	}{
		{unicode.L, letter}, {unicode.M, mark}, {unicode.N, number}, {unicode.P, punct}, {unicode.S, symbol},
		{unicode.White_Space, space},
		{unicode.L, capital | small}, {unicode.Han, han},
		{unicode.Lu, upper}, {unicode.Lt, upper}, {unicode.Ll, lower}, {unicode.Lm, upper | lower}, {unicode.Lo, upper | lower}, {unicode.M, upper | lower},
	} {
		markTable(flat, t.table, t.class)
	}
	for i, c := range flat {
		if c&han != 0 {
			flat[i] &^= upper | lower
		}
	}
	for _, r := range deepseekLetters {
		for x := r[0]; x <= r[1]; x++ {
			flat[x] |= latin
		}
	}
	for c := 'a'; c <= 'z'; c++ {
		flat[c] &^= capital
		flat[c-'a'+'A'] &^= small
	}
	flat['\r'] |= newline
	flat['\n'] |= newline
	return pack(flat)
})

func markTable(flat []class, t *unicode.RangeTable, c class) {
	for _, r := range t.R16 {
		for x := rune(r.Lo); x <= rune(r.Hi); x += rune(r.Stride) {
			flat[x] |= c
		}
	}
	for _, r := range t.R32 {
		for x := rune(r.Lo); x <= rune(r.Hi); x += rune(r.Stride) {
			flat[x] |= c
		}
	}
}

func pack(flat []class) *classTable {
	t := new(classTable)
	seen := map[[1 << pageBits]class]uint16{}
	for p := range t.page {
		page := [1 << pageBits]class(flat[p<<pageBits:])
		n, ok := seen[page]
		if !ok {
			n = uint16(len(t.data))
			seen[page] = n
			t.data = append(t.data, page)
		}
		t.page[p] = n
	}
	return t
}

// at gives the class of the character at s[i:] and its length in bytes. A byte that is not UTF-8 is one character
// without any property; nothing is at the end of s (class 0, length 0).
func (t *classTable) at(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return t.data[t.page[0]][b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == utf8.RuneError && n == 1 {
		return 0, 1
	}
	return t.data[t.page[r>>pageBits]][r&(1<<pageBits-1)], n
}

// run gives the end of the run at s[i:] of characters that have any property of c.
func (t *classTable) run(s string, i int, c class) int {
	for {
		k, n := t.at(s, i)
		if n == 0 || k&c == 0 {
			return i
		}
		i += n
	}
}

// runNot gives the end of the run at s[i:] of characters that have no property of c.
func (t *classTable) runNot(s string, i int, c class) int {
	for {
		k, n := t.at(s, i)
		if n == 0 || k&c != 0 {
			return i
		}
		i += n
	}
}

// deepseekLetters are the letters of deepseek-llm's word rule, a fixed list instead of \p{L}: the cased letters of an
// older Unicode, first and last of each range.
var deepseekLetters = [][2]rune{
	{0x41, 0x5A}, {0x61, 0x7A}, {0xB5, 0xB5}, {0xC0, 0xD6}, {0xD8, 0xF6}, {0xF8, 0x1BA}, {0x1BC, 0x1BF},
	{0x1C4, 0x293}, {0x295, 0x2AF}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377}, {0x37B, 0x37D}, {0x37F, 0x37F},
	{0x386, 0x386}, {0x388, 0x38A}, {0x38C, 0x38C}, {0x38E, 0x3A1}, {0x3A3, 0x3F5}, {0x3F7, 0x481}, {0x48A, 0x52F},
	{0x531, 0x556}, {0x10A0, 0x10C5}, {0x13A0, 0x13F5}, {0x13F8, 0x13FD}, {0x1C90, 0x1CBA}, {0x1CBD, 0x1CBF},
	{0x1D00, 0x1D2B}, {0x1D6B, 0x1D77}, {0x1D79, 0x1D9A}, {0x1E00, 0x1F15}, {0x1F18, 0x1F1D}, {0x1F20, 0x1F45},
	{0x1F48, 0x1F4D}, {0x1F50, 0x1F57}, {0x1F59, 0x1F59}, {0x1F5B, 0x1F5B}, {0x1F5D, 0x1F5D}, {0x1F5F, 0x1F7D},
	{0x1F80, 0x1FB4}, {0x1FB6, 0x1FBC}, {0x1FBE, 0x1FBE}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FCC}, {0x1FD0, 0x1FD3},
	{0x1FD6, 0x1FDB}, {0x1FE0, 0x1FEC}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FFC}, {0x2102, 0x2102}, {0x2107, 0x2107},
	{0x210A, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211D}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128},
	{0x212A, 0x212D}, {0x212F, 0x2134}, {0x2139, 0x2139}, {0x213C, 0x213F}, {0x2145, 0x2149}, {0x214E, 0x214E},
	{0x2183, 0x2183}, {0x2184, 0x2184}, {0x2C00, 0x2C7B}, {0x2C7E, 0x2CE4}, {0x2CEB, 0x2CEE}, {0x2CF2, 0x2CF2},
	{0x2CF3, 0x2CF3}, {0xA640, 0xA66D}, {0xA680, 0xA69B}, {0xA722, 0xA76F}, {0xA771, 0xA787}, {0xA78B, 0xA78E},
	{0xAB70, 0xABBF}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17}, {0xFF21, 0xFF3A}, {0xFF41, 0xFF5A}, {0x10400, 0x1044F},
	{0x104B0, 0x104D3}, {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF},
	{0x1E900, 0x1E943},
}
