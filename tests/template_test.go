package tests

import (
	"strings"
	"testing"
)

// A model whose template cannot be used continues raw text all the same, and says why it does not chat.
func TestUnusableTemplate(t *testing.T) {
	model := rebuilt(t, loadGolden(t, "micro-qwen35moe").path(), func(k string, v any) (string, any) {
		if k == "tokenizer.chat_template" {
			v = "{{ messages | nosuch }}"
		}
		return k, v
	}, keep)
	const why = `line 1, column 15: unknown filter "nosuch"`
	if r := (call{}).run(t, "run", "-m", model, "-n", "2", "abc"); r.code != 1 || !strings.Contains(r.err, why) || !strings.Contains(r.err, "--no-chat") || strings.Count(r.err, "\n") != 1 {
		t.Errorf("a chat: exit %d, %q", r.code, r.err)
	}
	if r := (call{}).run(t, "run", "-m", model, "-n", "2", "--ignore-eos", "--no-chat", "abc"); r.code != 0 || r.out == "" || !strings.Contains(r.err, "warning: ") || !strings.Contains(r.err, why) {
		t.Errorf("raw text: exit %d, %q", r.code, r.err)
	}
}
