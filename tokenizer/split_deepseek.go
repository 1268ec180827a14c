package tokenizer

import "unicode/utf8"

// The deepseek pre-tokenizers are lists of expressions: the first one cuts the text into its matches and what lies
// between, the next one cuts each of these pieces in the same way, and so on. A matcher finds its expression's first
// match at or after i; none: from = to = len(s).
type matcher func(t *classTable, s string, i int) (from, to int)

// each makes a matcher of a function that gives the end of a match that begins at s[i:], or i.
func each(end func(t *classTable, s string, i int) int) matcher {
	return func(t *classTable, s string, i int) (int, int) {
		for i < len(s) {
			if to := end(t, s, i); to > i {
				return i, to
			}
			_, n := t.at(s, i)
			i += n
		}
		return i, i
	}
}

// stages applies the matchers one inside the pieces of the other. The depth is the number of matchers.
func stages(t *classTable, s string, ms []matcher, emit func(string)) {
	if s == "" {
		return
	}
	if len(ms) == 0 {
		emit(s)
		return
	}
	for i := 0; i < len(s); {
		from, to := ms[0](t, s, i)
		stages(t, s[i:from], ms[1:], emit)
		stages(t, s[from:to], ms[1:], emit)
		i = to
	}
}

// splitDeepseekLLM: [\r\n], then \s?[letters]+ (a fixed list, see deepseekLetters), then \s?[marks]+, then \s+$, then
// [一-龥ࠀ-一가-퟿]+, then \p{N}+.
func splitDeepseekLLM(t *classTable, s string, emit func(string)) {
	stages(t, s, deepseekLLM, emit)
}

var deepseekLLM = []matcher{
	each(func(t *classTable, s string, i int) int {
		if s[i] == '\r' || s[i] == '\n' {
			return i + 1
		}
		return i
	}),
	each(func(t *classTable, s string, i int) int {
		from := t.optionalSpace(s, i)
		if end := t.run(s, from, latin); end > from {
			return end
		}
		return i
	}),
	each(func(t *classTable, s string, i int) int {
		from := t.optionalSpace(s, i)
		if end := runRunes(s, from, isDeepseekMark); end > from {
			return end
		}
		return i
	}),
	trailingSpace,
	each(func(_ *classTable, s string, i int) int { return runRunes(s, i, isDeepseekEastern) }),
	each(func(t *classTable, s string, i int) int { return t.run(s, i, number) }),
}

// splitDeepseekV3: \p{N}{1,3}, then [一-龥぀-ゟ゠-ヿ]+, then
//
//	[!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitDeepseekV3(t *classTable, s string, emit func(string)) {
	stages(t, s, deepseekV3, emit)
}

var deepseekV3 = []matcher{
	each(func(t *classTable, s string, i int) int { return t.digits(s, i, 3) }),
	each(func(_ *classTable, s string, i int) int {
		return runRunes(s, i, func(r rune) bool { return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF })
	}),
	each(deepseekV3Word),
}

// deepseekV3Word gives the end of a match of the last expression at s[i:], or i.
func deepseekV3Word(t *classTable, s string, i int) int {
	c, n := t.at(s, i)
	if n == 1 && c&(punct|symbol) != 0 {
		end := i + 1
		for end < len(s) && (s[end]|0x20) >= 'a' && (s[end]|0x20) <= 'z' {
			end++
		}
		if end > i+1 {
			return end
		}
	}
	if c&(newline|letter|punct|symbol) == 0 {
		if end := t.run(s, i+n, letter|mark); end > i+n {
			return end
		}
	}
	if end := t.run(s, i, letter|mark); end > i {
		return end
	}
	from := i
	if s[i] == ' ' {
		from++
	}
	if end := t.run(s, from, punct|symbol); end > from {
		return runBytes(s, end, "\r\n")
	}
	return t.space(s, i)
}

// isDeepseekMark is [!-/:-~！-／：-～‘-‟　-。] less U+3000, which counts as white space.
func isDeepseekMark(r rune) bool {
	return r >= '!' && r <= '/' || r >= ':' && r <= '~' || r >= 0xFF01 && r <= 0xFF0F || r >= 0xFF1A && r <= 0xFF5E ||
		r >= 0x2018 && r <= 0x201F || r == 0x3001 || r == 0x3002
}

// isDeepseekEastern is [一-龥ࠀ-一가-퟿].
func isDeepseekEastern(r rune) bool { return r >= 0x0800 && r <= 0x9FA5 || r >= 0xAC00 && r <= 0xD7FF }

func (t *classTable) optionalSpace(s string, i int) int {
	if c, n := t.at(s, i); c&space != 0 {
		return i + n
	}
	return i
}

// trailingSpace finds \s+$.
func trailingSpace(t *classTable, s string, i int) (int, int) {
	from := len(s)
	for from > i {
		_, n := utf8.DecodeLastRuneInString(s[i:from])
		if c, _ := t.at(s, from-n); c&space == 0 {
			break
		}
		from -= n
	}
	return from, len(s)
}

func runRunes(s string, i int, in func(rune) bool) int {
	for j, r := range s[i:] {
		if !in(r) {
			return i + j
		}
	}
	return len(s)
}
