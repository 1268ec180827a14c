package synth

import (
	"fmt"
	"slices"
	"strings"
)

// corpus is what the merges of the vocabulary are learned from: words of prompts in English.
const corpus = `the expert that a token needs is on the disk and the next one is in memory
a model of many experts asks a few of them for each token and leaves all the others where they are
what is the capital of France, what is the answer to the question, and how many hours are there in a day
the reader goes through the paper in the morning and writes a letter to the other readers in the evening
if the request is small the drive is slow, and when there are many requests in flight the drive is fast
for index in range, return the value of the function, else raise an error with the number and the string
`

// Token types of the format.
const (
	tokenNormal  = 1
	tokenControl = 3
	tokenUser    = 4
	tokenUnused  = 5
)

// vocabulary sets the keys of a small byte-level BPE vocabulary, filled up with unused tokens to the size of the shape.
func (m *maker) vocabulary() {
	tokens, merges := train(m.merges)
	types := make([]int32, m.vocab)
	for i := range types {
		types[i] = tokenNormal
		if i < len(tokens) {
			continue
		}
		text, typ := fmt.Sprintf("[PAD%d]", i), int32(tokenUnused)
		if s := i - m.special; s >= 0 && s < len(m.family.specials) {
			text, typ = m.family.specials[s], tokenControl
			if strings.Contains(text, "think") {
				typ = tokenUser
			}
		}
		tokens, types[i] = append(tokens, text), typ
	}
	m.b.Set("tokenizer.ggml.model", "gpt2")
	m.b.Set("tokenizer.ggml.pre", m.family.pre)
	m.b.Set("tokenizer.ggml.tokens", tokens)
	m.b.Set("tokenizer.ggml.token_type", types)
	m.b.Set("tokenizer.ggml.merges", merges)
	m.b.Set("tokenizer.ggml.eos_token_id", uint32(m.special+m.family.eos))
	m.b.Set("tokenizer.ggml.padding_token_id", uint32(m.special+m.family.pad))
	m.b.Set("tokenizer.ggml.bos_token_id", uint32(m.special+m.family.bos))
	m.b.Set("tokenizer.ggml.add_bos_token", false)
	m.b.Set("tokenizer.chat_template", m.family.template)
}

// byteTokens returns how byte-level vocabularies spell each byte (GPT-2's table: printable bytes as they are, the
// others from U+0100 on) and the bytes in the order of their tokens.
func byteTokens() (spell [256]string, order []int) {
	printable := func(b int) bool { return b > ' ' && b < 127 || b > 160 && b != 173 }
	var rest []int
	for b := range 256 {
		if printable(b) {
			spell[b], order = string(rune(b)), append(order, b)
		} else {
			spell[b], rest = string(rune(256+len(rest))), append(rest, b)
		}
	}
	return spell, append(order, rest...)
}

type pair struct{ a, b string }

// train learns n merges from the corpus: always the most frequent pair, of several the smallest in byte order.
func train(n int) (tokens, merges []string) {
	spell, order := byteTokens()
	for _, b := range order {
		tokens = append(tokens, spell[b])
	}
	var words [][]string
	for line := range strings.Lines(corpus) {
		for i, f := range strings.Fields(line) {
			if i > 0 {
				f = " " + f
			}
			var w []string
			for _, b := range []byte(f) {
				w = append(w, spell[b])
			}
			words = append(words, w)
		}
	}
	for len(merges) < n {
		best, ok := mostFrequent(words)
		if !ok {
			break
		}
		merges = append(merges, best.a+" "+best.b)
		if t := best.a + best.b; !slices.Contains(tokens, t) { // two pairs may spell the same
			tokens = append(tokens, t)
		}
		for i := range words {
			words[i] = join(words[i], best)
		}
	}
	return tokens, merges
}

func mostFrequent(words [][]string) (best pair, ok bool) {
	count := map[pair]int{}
	for _, w := range words {
		for i := range len(w) - 1 {
			count[pair{w[i], w[i+1]}]++
		}
	}
	for p, n := range count {
		if m := count[best]; n > m || n == m && (p.a < best.a || p.a == best.a && p.b < best.b) {
			best = p
		}
	}
	return best, len(count) > 0
}

// join replaces the pair in a word, from left to right.
func join(w []string, p pair) []string {
	out := w[:0]
	for i := 0; i < len(w); i++ {
		if i+1 < len(w) && w[i] == p.a && w[i+1] == p.b {
			out = append(out, p.a+p.b)
			i++
		} else {
			out = append(out, w[i])
		}
	}
	return out
}
