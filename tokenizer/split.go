package tokenizer

import (
	"maps"
	"slices"
)

// A splitter cuts text into the pieces inside which merges may happen and gives each to emit, in order and without
// gaps. The pieces of one pre-tokenizer are defined by regular expressions with look-ahead (written above each
// splitter); these scanners find the same pieces in one pass, without backtracking.
type splitter func(t *classTable, text string, emit func(piece string))

// pretokenizer is what the name in tokenizer.ggml.pre stands for.
type pretokenizer struct {
	split splitter
	// wholeFirst: a piece that is a token is that token, whatever the merges say.
	wholeFirst bool
	// addBOS holds where the file says nothing of tokenizer.ggml.add_bos_token.
	addBOS bool
}

var pretokenizers = map[string]pretokenizer{
	"qwen2":        {split: wordSplitter(rules{digits: 1})},
	"qwen35":       {split: wordSplitter(rules{digits: 1, marks: mark})},
	"bailingmoe2":  {split: wordSplitter(rules{digits: 1})},
	"llama-bpe":    {split: wordSplitter(rules{digits: 3}), wholeFirst: true, addBOS: true},
	"deepseek-llm": {split: splitDeepseekLLM},
	"deepseek-v3":  {split: splitDeepseekV3},
	"gpt-4o":       {split: splitGPT4o},
	"glm4":         {split: wordSplitter(rules{digits: 3})},
	"kimi-k2":      {split: splitKimiK2},
}

// Known lists the pre-tokenizers, sorted.
func Known() []string { return slices.Sorted(maps.Keys(pretokenizers)) }

// rules are the points in which the qwen2 family differs.
type rules struct {
	digits int   // the longest piece of digits
	marks  class // mark where words take combining marks, else 0
}

// wordSplitter makes the splitter of
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}M]+|\p{N}{1,D}| ?[^\s\p{L}M\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// where D is r.digits and M is \p{M} if r.marks says so, else nothing.
func wordSplitter(r rules) splitter {
	word := letter | r.marks
	return func(t *classTable, s string, emit func(string)) {
		for i := 0; i < len(s); {
			end := contraction(s, i)
			if end == i {
				end = t.word(s, i, word)
			}
			if end == i {
				end = t.digits(s, i, r.digits)
			}
			if end == i {
				end = t.marksAndSpace(s, i, space|word|number, "\r\n")
			}
			emit(s[i:end])
			i = end
		}
	}
}

// contraction gives the end of 's 't 're 've 'm 'll 'd in any case at s[i:], or i.
func contraction(s string, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	}
	if i+2 < len(s) {
		switch [2]byte{s[i+1] | 0x20, s[i+2] | 0x20} {
		case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
			return i + 3
		}
	}
	return i
}

// word gives the end of [^\r\n\p{L}\p{N}]?[word]+ at s[i:], or i.
func (t *classTable) word(s string, i int, word class) int {
	c, n := t.at(s, i)
	if c&(newline|letter|number) == 0 {
		if end := t.run(s, i+n, word); end > i+n {
			return end
		}
	}
	return t.run(s, i, word)
}

// digits gives the end of \p{N}{1,most} at s[i:], or i.
func (t *classTable) digits(s string, i, most int) int {
	for ; most > 0; most-- {
		c, n := t.at(s, i)
		if c&number == 0 {
			break
		}
		i += n
	}
	return i
}

// marksAndSpace gives the end of " ?[^other]+[tail]*|\s*[\r\n]+|\s+(?!\S)|\s+" at s[i:], or i where nothing of it is.
func (t *classTable) marksAndSpace(s string, i int, other class, tail string) int {
	from := i
	if s[i] == ' ' {
		from++
	}
	if end := t.runNot(s, from, other); end > from {
		return runBytes(s, end, tail)
	}
	return t.space(s, i)
}

// space gives the end of \s*[\r\n]+|\s+(?!\S)|\s+ at s[i:], or i.
func (t *classTable) space(s string, i int) int {
	end, last, afterNewline := i, i, i
	for {
		c, n := t.at(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c&newline != 0 {
			afterNewline = end
		}
	}
	switch {
	case afterNewline > i:
		return afterNewline
	case end < len(s) && last > i: // the last space belongs to what follows
		return last
	}
	return end
}

// runBytes gives the end of the run at s[i:] of bytes of set.
func runBytes(s string, i int, set string) int {
next:
	for ; i < len(s); i++ {
		for j := range len(set) {
			if s[i] == set[j] {
				continue next
			}
		}
		break
	}
	return i
}
