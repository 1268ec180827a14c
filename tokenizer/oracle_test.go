package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dlclark/regexp2"
)

// patterns are the pre-tokenizers as regular expressions, each applied inside the pieces of the one before.
var patterns = map[string][]string{
	"qwen2":       {family(`\p{N}`, "")},
	"bailingmoe2": {strings.Replace(family(`\p{N}`, ""), `\s*[\r\n]+`, `\s*[\r\n]`, 1)},
	"llama-bpe":   {family(`\p{N}{1,3}`, "")},
	"qwen35":      {family(`\p{N}`, `\p{M}`)},
	"deepseek-v3": {`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+` +
		`|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"gpt-4o": {`[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?` +
		`|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"glm4": {family(`\p{N}{1,3}`, "")},
	"kimi-k2": {`\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}-[\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}-[\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}-[\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}-[\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"deepseek-llm": {`[\r\n]`, `\s?[` + letterRanges() + `]+`, `\s?[!-/:-~！-／：-～‘-‟、。]+`, `\s+$`,
		`[一-龥ࠀ-一가-퟿]+`, `\p{N}+`},
}

func family(number, marks string) string {
	return `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}` + marks + `]+|` + number +
		`| ?[^\s\p{L}` + marks + `\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
}

// letterRanges writes deepseekLetters as the inside of a bracket expression.
func letterRanges() string {
	var b strings.Builder
	for _, r := range deepseekLetters {
		b.WriteString(string(r[0]) + "-" + string(r[1]))
	}
	return b.String()
}

func oracle(t *testing.T, stages []*regexp2.Regexp, text string) []string {
	pieces := []string{text}
	for _, re := range stages {
		var next []string
		for _, p := range pieces {
			rs, from := []rune(p), 0
			for m, err := re.FindStringMatch(p); m != nil; m, err = re.FindNextMatch(m) {
				if err != nil {
					t.Fatal(err)
				}
				if m.Index > from {
					next = append(next, string(rs[from:m.Index]))
				}
				from = m.Index + m.Length
				next = append(next, string(rs[m.Index:from]))
			}
			if from < len(rs) {
				next = append(next, string(rs[from:]))
			}
		}
		pieces = next
	}
	return pieces
}

// The scanners cut random texts as the regular expressions do.
func TestSplittersAgainstRegexp(t *testing.T) {
	alphabet := []string{"a", "b", "Z", "É", "é", "ß", "ſ", "Ω", "я", "Я", "中", "〇", "の", "カ", "한", "ก", "ʰ", "ǅ", "\u0301", "\u0e31",
		"0", "7", "٣", "Ⅻ", "½", " ", " ", "  ", "\t", "\u00a0", "\u3000", "\n", "\r", "\r\n", "\v", "\u2028", "'s", "'LL", "'Re", "'",
		".", ",", "/", "-", "!", "_", "$", "€", "`", "“", "！", "。", "™", "😀", "\u200d", "\x00", "the", "ABC", "Word"}
	for _, pre := range Known() {
		var stages []*regexp2.Regexp
		for _, p := range patterns[pre] {
			stages = append(stages, regexp2.MustCompile(p, regexp2.None))
		}
		if len(stages) == 0 {
			t.Fatalf("%s has no expression", pre)
		}
		r := rand.New(rand.NewPCG(4, 4))
		for range 3000 {
			var b strings.Builder
			for range 1 + r.IntN(14) {
				b.WriteString(alphabet[r.IntN(len(alphabet))])
			}
			var got []string
			pretokenizers[pre].split(classes(), b.String(), func(p string) { got = append(got, p) })
			if want := oracle(t, stages, b.String()); !slices.Equal(got, want) {
				t.Fatalf("%s: %q\n got %q\nwant %q", pre, b.String(), got, want)
			}
		}
	}
}
