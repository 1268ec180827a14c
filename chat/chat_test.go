package chat

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func readJSON(t testing.TB, name string, to any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	decodeInto(t, raw, to)
}

func compile(t testing.TB, source string, control ...string) *Template {
	t.Helper()
	k, err := New(source, Options{Control: control})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func user(text string) Input { return Input{Messages: []Message{{Role: "user", Content: text}}} }

// Case B49: what templates use, and what is said when they fail.
func TestTemplates(t *testing.T) {
	var doc struct {
		Clock time.Time
		Cases []struct {
			Name, Template, Want, Load, Render string
			Messages                           []rawMessage
			Tools                              []json.RawMessage
		}
	}
	readJSON(t, "b49_templates.json", &doc)
	for _, c := range doc.Cases {
		k, err := New(c.Template, Options{})
		if c.Load != "" {
			wantError(t, c.Name, err, ErrSyntax, c.Load, "line ", "column ")
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		in := Input{Tools: c.Tools, Now: doc.Clock}
		for _, m := range c.Messages {
			in.Messages = append(in.Messages, m.message(t))
		}
		got, err := k.Render(in)
		if c.Render != "" {
			wantError(t, c.Name, err, ErrTemplate, c.Render, "line 1, column ")
			continue
		}
		if err != nil || got.Text != c.Want || len(got.Literal) > 0 {
			t.Errorf("%s: got %q, %v; want %q", c.Name, got.Text, err, c.Want)
		}
	}
}

func wantError(t *testing.T, name string, err, kind error, say ...string) {
	t.Helper()
	if !errors.Is(err, kind) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got %v, want %v in one line", name, err, kind)
		return
	}
	for _, s := range say {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v does not say %q", name, err, s)
		}
	}
}

func TestChatML(t *testing.T) {
	k := compile(t, "")
	if k.Name() != "chatml" || compile(t, "x").Name() != "file" {
		t.Errorf("names %q and %q", k.Name(), compile(t, "x").Name())
	}
	in := Input{Messages: []Message{{Role: "system", Content: "Be brief."}, {Role: "user", Content: " Hi\n"}}}
	got, err := k.Render(in)
	const want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
	if err != nil || got.Text != want+"<|im_start|>assistant\n" {
		t.Errorf("got %q, %v", got.Text, err)
	}
	in.NoGenerationPrompt = true
	if got, err = k.Render(in); err != nil || got.Text != want {
		t.Errorf("got %q, %v", got.Text, err)
	}
}

// A template that cannot be used is refused when it is loaded, with the place.
func TestSyntax(t *testing.T) {
	for source, say := range map[string]string{
		"a\n  {{ x":                           "line 2, column 3: the tag is never closed",
		"{# x":                                "line 1, column 1: the comment is never closed",
		"é{% if x %}":                         "line 1, column 2: if is never closed",
		"{% if x %}{% endfor %}":              "line 1, column 11: endfor closes nothing",
		"{% else %}":                          "else without if",
		"{% include 'x' %}":                   `unknown statement "include"`,
		"\n{% %}":                             "line 2, column 1",
		"{{ }}":                               "empty",
		"{{ x is nothing }}":                  `unknown test "nothing"`,
		"{{ x is not nothing }}":              `unknown test "nothing"`,
		"{% filter nothing %}{% endfilter %}": `unknown filter "nothing"`,
		"x\n{{ 1 + }}":                        "line 2, column 1",
		"{{ ( }}":                             "line 1, column 1",
		"ok\n{% for x %}{% endfor %}":         "line 2, column 1",
		"{% set x = %}\n{{ x y }}":            "line 2, column 1",
		"{{ x|map('upper') }}":                "map",
		"{{ epq_x }}":                         "reserved",
		"{{ " + strings.Repeat("(", 1000) + " }}":       "nested",
		strings.Repeat("{% if x %}", 1000):              "nested",
		"{{ '" + strings.Repeat("x", tagLimit) + "' }}": "limit",
		strings.Repeat("x", sourceLimit+1):              "limit",
		"{% raw %}{{ x":                                 "never closed",
		"{% macro f() %}{{ f( }}{% endmacro %}":         "column 16",
		"{% if a %}{% elif b b %}{% endif %}":           "column 11",
		"{% call f( %}{% endcall %}":                    "column 1",
	} {
		_, err := New(source, Options{})
		wantError(t, source[:min(len(source), 40)], err, ErrSyntax, say)
	}
}

// A template that fails in a request fails that request alone.
func TestRenderErrors(t *testing.T) {
	for source, say := range map[string]string{
		"{{ nothing() }}": "nothing",
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}":                 "too deep",
		"{{ messages|select|list }}":                                      "fails",
		"{% for i in range(3, 9, 0) %}{% endfor %}":                       "column 13: range: the step is 0",
		"{{ range('x') }}":                                                "range",
		"{{ nothing|tojson }}":                                            "undefined",
		"\n {% if true %}{{ raise_exception('no ' + 'way') }}{% endif %}": "line 2, column 18: no way",
		"{{ 'x'.split('') }}":                                             "separator",
	} {
		_, err := compile(t, source).Render(user("hi"))
		wantError(t, source, err, ErrTemplate, say)
	}
	bad := user("hi")
	bad.Tools = []json.RawMessage{[]byte(`{"a":1`)}
	_, err := compile(t, "x").Render(bad)
	wantError(t, "tool", err, ErrTemplate, "tool 0")
	bad = user("hi")
	bad.Kwargs = map[string]any{"f": func() {}}
	_, err = compile(t, "x").Render(bad)
	wantError(t, "kwargs", err, ErrTemplate, `"f"`)
}

func TestValues(t *testing.T) {
	in := user("hi")
	in.Tools = []json.RawMessage{[]byte(`{"z":[1,1.0,1e20,-0.5,true,null,"é\u2028\"\n"],"a":{},"b":[],"big":9007199254740993}`)}
	in.Kwargs = map[string]any{"flag": false, "list": json.RawMessage(`{"y":1,"x":2}`), "n": 3}
	in.Now = time.Date(2026, 1, 5, 7, 8, 9, 0, time.UTC)
	for source, want := range map[string]string{
		"{{ tools[0]|tojson }}":                                                                         `{"z": [1, 1.0, 1e+20, -0.5, true, null, "é` + "\u2028" + `\"\n"], "a": {}, "b": [], "big": 9007199254740993}`,
		"{{ {'b': [1, {}], 'a': 'x'}|tojson(indent=2) }}":                                               "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"x\"\n}",
		"{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}":                          `{"a":2,"b":1}`,
		"{{ 'é😀'|tojson(ensure_ascii=true) }}":                                                          `"\u00e9\ud83d\ude00"`,
		"{{ flag }}{{ n }}{% for k, v in list|items %}{{ k }}{{ v }}{% endfor %}":                       "False3y1x2",
		"{{ 'a/b/c'.split('/', 1)|tojson }}{{ 'a/b/c'.rsplit('/', 1)[0] }}{{ 'a/b/c'.split('/')[-1] }}": `["a", "b/c"]a/bc`,
		"{{ ' a  b '.split()|tojson }}":                                                                 `["a", "b"]`,
		"{{ strftime_now('%d %B %Y, %-d.%-m.%y %H:%M:%S %j %A %% %Q') }}":                               "05 January 2026, 5.1.26 07:08:09 005 Monday % %Q",
		"{% raw %}{{ x|nothing }}{% endraw %}":                                                          "{{ x|nothing }}",
		"{% macro f(n) -%}\n {%- if n %}{{ n }}{{ f(n - 1) }}{% endif %}\n{% endmacro %}{{ f(3) }}":     "3210"[:3],
		"{% for i in range(4, 0, -2) %}{{ i }}{% endfor %}":                                             "42",
		"{{ range(3)|length }}{{ x.range }}":                                                            "3",
		"{% if x is not defined and tools is not none %}ok{% endif %}":                                  "ok",
	} {
		got, err := compile(t, source).Render(in)
		if strings.Contains(source, "macro") {
			got.Text = strings.TrimSpace(strings.ReplaceAll(got.Text, "\n", ""))
		}
		if err != nil || got.Text != want {
			t.Errorf("%s:\n got %q, %v\nwant %q", source, got.Text, err, want)
		}
	}
}

// Text that is no JSON object reaches the template as it is.
// JSON of a request that would take many times its size is refused.
func TestLargeJSON(t *testing.T) {
	k := compile(t, "{{ x | tojson(indent=4) }}{{ tools | length }}")
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	wide := func(n int) string { return "[" + strings.Repeat("{},", n-2) + "1]" } // n values with the array
	for _, c := range []struct {
		x  string
		ok bool
	}{{deep(depthLimit), true}, {deep(depthLimit + 1), false}, {deep(9000), false}, {wide(valueLimit), true}, {wide(valueLimit + 1), false}} {
		_, err := k.Render(Input{Kwargs: map[string]any{"x": json.RawMessage(c.x)}})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrTemplate) {
			t.Errorf("%.10s, %d bytes: %v", c.x, len(c.x), err)
		}
	}
	half := json.RawMessage(wide(valueLimit/2 + 1))
	if _, err := k.Render(Input{Tools: []json.RawMessage{half, half}, Kwargs: map[string]any{"x": 1}}); !errors.Is(err, ErrTemplate) {
		t.Errorf("in two parts: %v", err)
	}
}

func TestArgumentsOfCalls(t *testing.T) {
	k := compile(t, "{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson }};{% endfor %}")
	in := Input{Messages: []Message{{Role: "assistant"}}}
	for _, a := range []string{`{"b":1,"a":[2]}`, "", "not JSON", `{"a":1} x`, "7"} {
		in.Messages[0].ToolCalls = append(in.Messages[0].ToolCalls, ToolCall{ID: "1", Name: "f", Arguments: a})
	}
	got, err := k.Render(in)
	if want := `{"b": 1, "a": [2]};{};"not JSON";"{\"a\":1} x";7;`; err != nil || got.Text != want {
		t.Errorf("got %q, %v; want %q", got.Text, err, want)
	}
}

// controlTexts are those of golden/tokenizer's vocabulary.
var controlTexts = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<role>", "</role>", "<|role_end|>"}

// Case B46: the prompt holds the template's own control tokens and no others, and the text is the same as ever.
func TestControlTokensInMessages(t *testing.T) {
	var doc struct{ Texts []string }
	readJSON(t, "b46_special.json", &doc)
	clean := "harmless"
	sources := map[string]string{"chatml": "", "trimmed": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}<|im_end|>\n{% endfor %}",
		"json":  "{% for m in messages %}<|im_start|>{{ m|tojson }}<|im_end|>{% endfor %}",
		"tight": "{% for m in messages %}<|im_{{ m.content }}end|><role>{{ m.content }}</role>{% endfor %}"}
	for name, source := range sources {
		k, bare := compile(t, source, controlTexts...), compile(t, source)
		for _, text := range doc.Texts {
			in := Input{}
			for _, role := range []string{"system", "user", "tool"} {
				in.Messages = append(in.Messages, Message{Role: role, Content: text})
			}
			got, err := k.Render(in)
			plain, err2 := bare.Render(in)
			if err != nil || err2 != nil || got.Text != plain.Text {
				t.Errorf("%s: %q gives %q, %v; without control tokens %q, %v", name, text, got.Text, err, plain.Text, err2)
			}
			for i := range in.Messages {
				in.Messages[i].Content = clean
			}
			own, err := k.Render(in)
			if err != nil || len(own.Literal) > 0 {
				t.Errorf("%s: %q has literal ranges %v, %v", name, clean, own.Literal, err)
			}
			if a, b := controlTokens(got), controlTokens(own); !slices.Equal(a, b) {
				t.Errorf("%s: %q makes control tokens %q, the template's own are %q", name, text, a, b)
			}
		}
	}
}

// controlTokens finds the control tokens of a prompt as a tokenizer does.
func controlTokens(p Prompt) []string {
	c := newControls(controlTexts)
	var out []string
	for i := 0; i < len(p.Text); {
		n := c.at(p.Text, i)
		if n > 0 && !slices.ContainsFunc(p.Literal, func(l [2]int) bool { return l[0] < i+n && l[1] > i }) {
			out = append(out, p.Text[i:i+n])
			i += n
			continue
		}
		i++
	}
	return out
}

// Where a template looks at a control token in a message, the prompt is the same as ever, and every other one is literal.
func TestTemplateLooksAtControlTokens(t *testing.T) {
	const source = "{% for m in messages %}{% if '</think>' in m.content %}<think>{{ m.content.split('</think>')[0] }}</think>" +
		"{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}|{% endfor %}"
	control := []string{"<think>", "</think>", "<|im_end|>"}
	in := Input{Messages: []Message{{Content: "a<|im_end|>"}, {Content: "x<|im_end|></think>\n\ny<|im_end|>"}, {Content: "<think>"}}}
	got, err := compile(t, source, control...).Render(in)
	const want = "a<|im_end|>|<think>x<|im_end|></think>y<|im_end|>|<think>|"
	if err != nil || got.Text != want {
		t.Fatalf("got %q, %v", got.Text, err)
	}
	var literal []string
	for _, r := range got.Literal {
		literal = append(literal, want[r[0]:r[1]])
	}
	if !slices.Equal(literal, []string{"<|im_end|>", "<|im_end|>", "<|im_end|>", "<think>"}) {
		t.Errorf("literal are %q", literal)
	}
}

// When it would take too many renderings to tell them apart, no control token of a message stays one.
func TestTooManyToTellApart(t *testing.T) {
	const source = "{% for m in messages %}{{ m.content.split('<x>')|length }}{{ m.content }}{% endfor %}"
	k := compile(t, source, "<x>", "<y>")
	got, err := k.Render(user(strings.Repeat("<x><y>", 2000)))
	if err != nil || len(got.Literal) != 4000 {
		t.Errorf("%d literal ranges, %v", len(got.Literal), err)
	}
}

// Private-use characters of a message are text like any other.
func TestPlaceholdersInMessages(t *testing.T) {
	text := "\U000F0000<|im_end|>\U000F0001\U0010FFFD<|im_start|>"
	got, err := compile(t, "{{ messages[0].content }}", controlTexts...).Render(user(text))
	if err != nil || got.Text != text || len(got.Literal) != 2 || text[got.Literal[0][0]:got.Literal[0][1]] != "<|im_end|>" {
		t.Errorf("got %q %v, %v", got.Text, got.Literal, err)
	}
}

// Case B50: thinking text and content do not depend on how the text is cut.
func TestSplitter(t *testing.T) {
	var doc struct {
		Cases []struct {
			Name      string
			Opens     bool `json:"prompt_opens_think"`
			Pieces    []string
			Reasoning string `json:"reasoning_content"`
			Content   string
		}
	}
	readJSON(t, "b50_thinking.json", &doc)
	for _, c := range doc.Cases {
		prompt := "<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n"
		if c.Opens {
			prompt += "<think>\n"
		}
		whole := strings.Join(c.Pieces, "")
		for name, pieces := range map[string][]string{"as listed": c.Pieces, "whole": {whole}, "bytes": strings.Split(whole, "")} {
			if r, a := split1(prompt, pieces); r != c.Reasoning || a != c.Content {
				t.Errorf("%s, %s: thinking %q, content %q", c.Name, name, r, a)
			}
		}
	}
}

func split1(prompt string, pieces []string) (reasoning, answer string) {
	s := NewSplitter(prompt)
	for _, p := range pieces {
		r, a := s.Push(p)
		reasoning, answer = reasoning+r, answer+a
	}
	r, a := s.Flush()
	return reasoning + r, answer + a
}

func TestSplitterEdges(t *testing.T) {
	for _, c := range []struct{ prompt, text, reasoning, answer string }{
		{"", "", "", ""}, {"", " \n", "", " \n"}, {"", "<", "", "<"}, {"", "<thi", "", ""}, {"", "  hi ", "", "  hi "},
		{"<think>", "a </thi", "a", ""}, {"<think>", "a < b </think>", "a < b", ""}, {"<think>", "a\n \n", "a", ""},
		{"<think>\n\n</think>\n\n", "x", "", "x"}, {"<think>", "a</think>b</think>c", "a", "b</think>c"},
		{"", "<think>a</think>\n \nb\n", "a", "b\n"}, {"", "x<think>a</think>", "", "x<think>a</think>"},
	} {
		if r, a := split1(c.prompt, []string{c.text}); r != c.reasoning || a != c.answer {
			t.Errorf("%q after %q: thinking %q, content %q", c.text, c.prompt, r, a)
		}
	}
}

// However an answer is cut, the joined pieces are the same.
func TestSplitterCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	parts := []string{"<think>", "</think>", " ", "\n", "a", "<", "</", "think", ">", "<thi", "é"}
	for range 3000 {
		var b strings.Builder
		for range r.IntN(9) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		prompt := []string{"", "<think>\n"}[r.IntN(2)]
		var pieces []string
		for rest := b.String(); rest != ""; {
			n := 1 + r.IntN(len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		wantR, wantA := split1(prompt, []string{b.String()})
		if gotR, gotA := split1(prompt, pieces); gotR != wantR || gotA != wantA {
			t.Fatalf("%q cut as %q: %q and %q, whole %q and %q", b.String(), pieces, gotR, gotA, wantR, wantA)
		}
	}
}

// Any template and any message: an error or a prompt whose ranges spell what they should.
func FuzzRender(f *testing.F) {
	f.Add("", "hi<|im_end|>")
	f.Add("{% for m in messages %}{{ m.content|trim|upper }}{% endfor %}", " <role>x")
	f.Add("{% macro f(a, b=1) %}{{ a[b:] }}{{ f(a) }}{% endmacro %}{{ f(messages[0].content) }}", "|>")
	f.Add("{{ messages|tojson(indent=1) }}{{ strftime_now('%Y') }}{% set ns = namespace(a=1) %}", "<|im_end")
	f.Fuzz(func(t *testing.T, source, text string) {
		if strings.Count(source, "for") > 2 || strings.Contains(source, "*") {
			t.Skip("may take long by its own will")
		}
		k, err := New(source, Options{Control: controlTexts})
		if err != nil {
			if !errors.Is(err, ErrSyntax) {
				t.Errorf("unknown kind: %v", err)
			}
			return
		}
		p, err := k.Render(user(text))
		if err != nil {
			if !errors.Is(err, ErrTemplate) {
				t.Errorf("unknown kind: %v", err)
			}
			return
		}
		end := 0
		for _, l := range p.Literal {
			if l[0] < end || l[1] <= l[0] || l[1] > len(p.Text) || !strings.Contains(text, p.Text[l[0]:l[1]]) {
				t.Errorf("range %v of %q is not of %q", l, p.Text, text)
			}
			end = l[1]
		}
	})
}

func BenchmarkRender(b *testing.B) {
	in := user(strings.Repeat("What is the capital of France? <|im_end|> ", 50))
	for name, control := range map[string][]string{"plain": nil, "hidden": controlTexts} {
		b.Run(name, func(b *testing.B) {
			k := compile(b, "", control...)
			for b.Loop() {
				if _, err := k.Render(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
