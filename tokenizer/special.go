package tokenizer

import (
	"slices"
	"sort"
)

// specials finds the tokens that are matched in the text before it is cut into pieces: the longest at each place.
type specials struct {
	texts  []string // sorted
	ids    []int32
	always []bool // user-defined: matched in any text; the others are control tokens
	first  [256]bool
}

func newSpecials(t *Tokenizer) specials {
	var s specials
	for id := range int32(t.size) {
		switch t.types[id] {
		case typeUnknown, typeControl, typeUser, typeTag:
			if len(t.symbol(id)) > 0 {
				s.ids = append(s.ids, id)
			}
		}
	}
	slices.SortStableFunc(s.ids, func(a, b int32) int { return slices.Compare(t.symbol(a), t.symbol(b)) })
	s.ids = slices.CompactFunc(s.ids, func(a, b int32) bool { return slices.Equal(t.symbol(a), t.symbol(b)) })
	for _, id := range s.ids {
		s.texts = append(s.texts, string(t.symbol(id)))
		s.always = append(s.always, t.types[id] == typeUser)
		s.first[t.symbol(id)[0]] = true
	}
	return s
}

func (s *specials) bytes() int {
	n := 21 * len(s.ids)
	for _, t := range s.texts {
		n += len(t)
	}
	return n
}

// match gives the longest special token at text[i:] and the end of it; control tokens count only if they end at or
// before limit. The end is i if there is none.
func (s *specials) match(text string, i, limit int) (id int32, end int) {
	end = i
	if !s.first[text[i]] {
		return 0, end
	}
	lo, hi := 0, len(s.texts)
	for depth := 0; i+depth < len(text) && lo < hi; {
		b := text[i+depth]
		part := s.texts[lo:hi] // all begin with text[i:i+depth] and are longer
		hi = lo + sort.Search(len(part), func(j int) bool { return part[j][depth] > b })
		lo += sort.Search(len(part), func(j int) bool { return part[j][depth] >= b })
		depth++
		if lo < hi && len(s.texts[lo]) == depth {
			if s.always[lo] || i+depth <= limit {
				id, end = s.ids[lo], i+depth
			}
			lo++
		}
	}
	return id, end
}
