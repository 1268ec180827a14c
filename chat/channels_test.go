package chat

import (
	"slices"
	"strings"
	"testing"
)

// Only the final channel is content, however the answer is cut, and no tag or piece of one shows up.
func TestChannels(t *testing.T) {
	k, err := New("{{ '<|start|>assistant' }}{# <|channel|> <|message|> #}", Options{})
	if err != nil || !k.Channels() {
		t.Fatal(k.Channels(), err)
	}
	const start = "<|start|>user<|message|>hi<|end|><|start|>assistant"
	for _, c := range []struct{ name, prompt, text, reasoning, answer string }{
		{"both", start, "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>4 < 5", "Let me see.", "4 < 5"},
		{"end token unseen", start, "<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>yes", "hm", "yes"},
		{"final alone", start, "<|channel|>final<|message|>a <| b <|x", "", "a <| b <|x"},
		{"constrained", start, "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"},
		{"call", start, " to=functions.f<|channel|>commentary json<|message|>{}", "{}", ""},
		{"two commentaries", start, "<|channel|>commentary<|message|>a<|channel|>commentary<|message|>b<|start|>assistant<|channel|>final<|message|>c", "ab", "c"},
		{"cut while thinking", start, "<|channel|>analysis<|message|>still", "still", ""},
		{"cut in a header", start, "<|channel|>analysis<|message|>x<|end|><|start|>assist", "x", ""},
		{"cut in a tag", start, "<|channel|>final<|message|>x<|en", "", "x"},
		{"lone bracket", start, "<|channel|>final<|message|>x<", "", "x<"},
		{"no channels", start, "plain text", "", "plain text"},
		{"opened by the prompt", start + "<|channel|>final<|message|>", "yes", "", "yes"},
		{"thinking opened by the prompt", start + "<|channel|>analysis<|message|>", "hm<|end|><|start|>assistant<|channel|>final<|message|>yes", "hm", "yes"},
		{"tags of an earlier turn", "<|channel|>analysis<|message|>x<|end|>" + start, "yes", "", "yes"},
		{"nothing", start, "", "", ""},
	} {
		for _, pieces := range [][]string{{c.text}, strings.Split(c.text, ""), {c.text[:len(c.text)/2], c.text[len(c.text)/2:]}} {
			s := k.Answer(c.prompt)
			var reasoning, answer string
			for _, p := range pieces {
				r, a := s.Push(p)
				reasoning, answer = reasoning+r, answer+a
			}
			r, a := s.Flush()
			if reasoning, answer = reasoning+r, answer+a; reasoning != c.reasoning || answer != c.answer {
				t.Errorf("%s in %d pieces: thinking %q, content %q", c.name, len(pieces), reasoning, answer)
			}
		}
	}
}

// A tag that begins another's turn ends the answer.
func TestStops(t *testing.T) {
	tagged, err1 := New("{% for m in messages %}<role>{{ m.role }}</role>{{ m.content }}{% endfor %}", Options{})
	plain, err2 := New("", Options{})
	if err1 != nil || err2 != nil || !slices.Equal(tagged.Stops(), []string{"<role>"}) || plain.Stops() != nil || plain.Channels() {
		t.Error(err1, err2, tagged.Stops(), plain.Stops())
	}
	if _, ok := tagged.Answer("").(*Splitter); !ok {
		t.Error("thinking text is not told apart")
	}
}
