package tokenizer

// splitGPT4o: with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], W = [\p{Ll}\p{Lm}\p{Lo}\p{M}] and S = (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//
//	[^\r\n\p{L}\p{N}]?U*W+S|[^\r\n\p{L}\p{N}]?U+W*S|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitGPT4o(t *classTable, s string, emit func(string)) {
	for i := 0; i < len(s); {
		end := t.cased(s, i, capital, small)
		if end == i {
			end = t.digits(s, i, 3)
		}
		if end == i {
			end = t.marksAndSpace(s, i, space|letter|number, "\r\n/")
		}
		emit(s[i:end])
		i = end
	}
}

// splitKimiK2: the same with U and W without \p{Han}, a first alternative \p{Han}+, and no "/" behind punctuation.
func splitKimiK2(t *classTable, s string, emit func(string)) {
	for i := 0; i < len(s); {
		end := t.run(s, i, han)
		if end == i {
			end = t.cased(s, i, upper, lower)
		}
		if end == i {
			end = t.digits(s, i, 3)
		}
		if end == i {
			end = t.marksAndSpace(s, i, space|letter|number, "\r\n")
		}
		emit(s[i:end])
		i = end
	}
}

// cased gives the end of the first two alternatives at s[i:], or i: words of u (U above) that end in w (W).
func (t *classTable) cased(s string, i int, u, w class) int {
	from := i // behind the optional first character
	if c, n := t.at(s, i); c&(newline|letter|number) == 0 {
		from += n
	}
	if end := t.endsSmall(s, from, u, w); end > from {
		return contraction(s, end)
	}
	if end := t.endsSmall(s, i, u, w); end > i {
		return contraction(s, end)
	}
	if end := t.run(s, from, u); end > from {
		return contraction(s, end)
	}
	if end := t.run(s, i, u); end > i {
		return contraction(s, end)
	}
	return i
}

// endsSmall gives the end of U*W+ at s[i:], or i: where the capitals run into no small letter, the match ends behind
// the last of them that is both.
func (t *classTable) endsSmall(s string, i int, u, w class) int {
	capitals, both := i, i
	for {
		c, n := t.at(s, capitals)
		if c&u == 0 {
			break
		}
		capitals += n
		if c&w != 0 {
			both = capitals
		}
	}
	if end := t.run(s, capitals, w); end > capitals {
		return end
	}
	return both
}
