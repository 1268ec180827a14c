package tests

import (
	"slices"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
)

// A character that the last token cuts is one U+FFFD at the end, in the pieces of a stream as in the whole.
func TestCutCharacter(t *testing.T) {
	e := openEngine(t, engine.Options{Model: demoModel, RAM: "min", Context: 64})
	half := e.Tokenizer().Encode("😀", false)
	if len(half) < 2 {
		t.Fatalf("one token is the whole character: %v", half)
	}
	streamed := ""
	r, err := e.Generate(t.Context(), engine.Request{Tokens: encode(t, e, "Hello"), MaxTokens: 1, IgnoreEOS: true, Sampling: few(engine.Sampling{}, half[0])},
		func(ev engine.Event) error { streamed += ev.Text; return nil })
	if err != nil || !slices.Equal(r.Tokens, half[:1]) || r.Text != "\uFFFD" || streamed != r.Text || r.Finish != "length" {
		t.Errorf("%+v, streamed %q, %v", r, streamed, err)
	}
}

// A second turn that extends the first goes on from what is in the caches; one whose last word was changed begins where the
// model can: an attention cache is cut back, a recurrent state is read anew. Either way the answer is that of a fresh engine.
func TestSecondTurn(t *testing.T) {
	for model, recurrent := range map[string]bool{
		"micro-qwen3moe": false, "micro-deepseek2-glm": false, "micro-gpt-oss": false, "micro-qwen35moe": true, "micro-bailingmoe3": true,
	} {
		t.Run(model, func(t *testing.T) {
			c := loadGolden(t, model)
			o := draftOptions(c)
			first := engine.Request{Tokens: c.Tokens[:9], MaxTokens: 6}
			said := answers(t, o, false, first)[0].Tokens
			second, changed := first, first
			second.Tokens = slices.Concat(first.Tokens, said, c.Tokens[2:6])
			changed.Tokens = slices.Clone(second.Tokens)
			changed.Tokens[len(changed.Tokens)-1] = (changed.Tokens[len(changed.Tokens)-1] + 1) % int32(c.Vocab)

			turns := []engine.Request{first, second, changed}
			kept := answers(t, o, false, turns...)
			var fresh []answer
			for _, r := range turns {
				fresh = append(fresh, answers(t, o, false, r)...)
			}
			sameAnswers(t, model, fresh, kept)
			want := []int{0, len(first.Tokens) + len(said) - 1, len(second.Tokens) - 1} // the last token said was not read yet
			if recurrent {
				want[2] = 0
			}
			for i, a := range kept {
				if a.CachedTokens != want[i] {
					t.Errorf("turn %d: %d of %d tokens kept, want %d", i+1, a.CachedTokens, len(turns[i].Tokens), want[i])
				}
			}
		})
	}
}
