package bench

import (
	"math/rand/v2"
	"strings"

	"github.com/epq-uring/epq-uring/tokenizer"
)

// Prompt returns a text of n tokens, the one that starts every text included where the model wants one: always the same
// for the same model and n, sentences of plain English that never repeat as a whole.
func Prompt(t *tokenizer.Tokenizer, n int) string {
	if t.AddBOS() {
		n--
	}
	count := func(words []string) int { return len(t.Encode(strings.Join(words, " "), true)) }
	words := sentences(n) // a word is at least a token
	low, high := 1, len(words)
	for low < high { // the most words that are not too many tokens
		if mid := (low + high + 1) / 2; count(words[:mid]) <= n {
			low = mid
		} else {
			high = mid - 1
		}
	}
	words = words[:low]
	for missing := n - count(words); missing > 0; missing-- {
		words = append(words, "the") // one token in any vocabulary of English
	}
	return strings.Join(words, " ")
}

// sentences returns at least n words.
func sentences(n int) []string {
	who := strings.Split("the keeper,an old sailor,my neighbour,the young doctor,a tired teacher,the captain,her brother,the baker,a traveller,the engineer,the queen,a farmer", ",")
	did := strings.Split("counted,painted,forgot,described,sold,repaired,carried,measured,found,remembered,studied,followed", ",")
	what := strings.Split("the ships,seven letters,a narrow bridge,the weather,an empty house,three lamps,the long road,a map of the coast,the accounts,a small engine,the winter wheat,two stones", ",")
	when := strings.Split("in the morning,before the rain came,because nobody else would,near the harbour,for almost thirty years,without a word,on the second day,while the city slept,"+
		"as the law required,with great care,after the war,behind the church", ",")
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	var words []string
	for len(words) < n {
		s := pick(who) + " " + pick(did) + " " + pick(what) + " " + pick(when)
		switch r.IntN(3) {
		case 0:
			s += ", and " + pick(who) + " " + pick(did) + " " + pick(what)
		case 1:
			s = pick(when) + " " + s
		}
		words = append(words, strings.Fields(strings.ToUpper(s[:1])+s[1:]+".")...)
	}
	return words
}
