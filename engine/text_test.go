package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/chat"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/tokenizer"
)

// readText makes an engine of the tokenizer and the template of a file alone.
func readText(t *testing.T, path string) *Engine {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{file: f, opt: Options{Context: 4096, Chat: true}}
	if err := e.readText(); err != nil {
		t.Fatal(err)
	}
	return e
}

const (
	demoFile = "../cmd/epq-uring/tiny-moe.gguf" // asks for no BOS
	bosFile  = "../tokenizer/testdata/b48_double_bos.gguf"
)

func ask(content string) chat.Input {
	return chat.Input{Messages: []chat.Message{{Role: "user", Content: content}}}
}

// Exactly one BOS begins a prompt where the file asks for one, whether or not the template or the text has it too.
func TestOneBOS(t *testing.T) {
	e := readText(t, bosFile)
	bos := bosOf(e.tok)
	name, _ := e.tok.Text(bos)
	check := func(what string, ids []int32) {
		t.Helper()
		n := 0
		for _, id := range ids {
			if id == bos {
				n++
			}
		}
		if n != 1 || ids[0] != bos {
			t.Errorf("%s: %v, BOS is %d", what, ids, bos)
		}
	}
	ids, text, err := e.EncodeChat(ask("hello world"))
	if err != nil || !strings.HasPrefix(text, name) {
		t.Fatalf("the template writes %q, %v", text, err)
	}
	check("chat", ids)
	for _, s := range []string{"hello world", "", name + "hello world", name + name + "hello world"} {
		if ids, err = e.EncodeText(s); err != nil {
			t.Fatal(err)
		}
		check(s, ids)
	}
	e = readText(t, demoFile)
	if ids, err = e.EncodeText("Hello"); err != nil || len(ids) == 0 || e.tok.AddBOS() || slices.Contains(ids, bosOf(e.tok)) {
		t.Errorf("a file without: %v, %v", ids, err)
	}
}

func bosOf(k *tokenizer.Tokenizer) int32 {
	id, _ := k.BOS()
	return id
}

// A prompt has the control tokens that the template writes, whatever users spell, and says what it says.
func TestControlTokensOfUsers(t *testing.T) {
	e := readText(t, demoFile)
	var control []int32
	for _, name := range e.tok.Control() {
		control = append(control, e.tok.Encode(name, true)...)
	}
	encode := func(content string) (found []int32) {
		t.Helper()
		in := chat.Input{}
		for _, role := range []string{"system", "user", "tool", "user"} {
			in.Messages = append(in.Messages, chat.Message{Role: role, Content: content})
		}
		ids, text, err := e.EncodeChat(in)
		if err != nil || e.tok.Decode(ids, true) != text || !strings.Contains(text, content) {
			t.Errorf("%q: prompt %q from %q, %v", content, e.tok.Decode(ids, true), text, err)
		}
		for _, id := range ids {
			if slices.Contains(control, id) {
				found = append(found, id)
			}
		}
		return found
	}
	var file struct{ Texts []string }
	readJSON(t, "../chat/testdata/b46_special.json", &file)
	want := encode("harmless")
	if len(want) < 8 || len(file.Texts) < 9 {
		t.Fatalf("%d texts, the template's own control tokens are %v", len(file.Texts), want)
	}
	for _, text := range file.Texts {
		if got := encode(text); !slices.Equal(got, want) {
			t.Errorf("%q: control tokens %v, the template's own are %v", text, got, want)
		}
	}
}
