package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
)

// tenQuestions are general knowledge that every model of some size has; the demo model was trained on them.
//
//go:embed questions.json
var tenQuestions []byte

// Question has a right answer that a pattern finds.
type Question struct {
	Question string `json:"question"`
	Pattern  string `json:"pattern"` // a regular expression in Go's syntax

	right *regexp.Regexp
}

// Questions reads a JSON array of questions; nil stands for the ten built-in ones. An ErrInput says which is wrong.
func Questions(r io.Reader) ([]Question, error) {
	if r == nil {
		r = bytes.NewReader(tenQuestions)
	}
	var qs []Question
	if err := json.NewDecoder(r).Decode(&qs); err != nil {
		return nil, fmt.Errorf("bench: questions: %w: %w: [{\"question\":\"...\",\"pattern\":\"...\"}] is needed", ErrInput, err)
	}
	if len(qs) == 0 {
		return nil, fmt.Errorf("bench: questions: %w: there are none", ErrInput)
	}
	for i := range qs {
		q := &qs[i]
		if strings.TrimSpace(q.Question) == "" || q.Pattern == "" {
			return nil, fmt.Errorf("bench: question %d: %w: question and pattern must not be empty", i+1, ErrInput)
		}
		var err error
		if q.right, err = regexp.Compile(q.Pattern); err != nil {
			return nil, fmt.Errorf("bench: question %d: %w: %w", i+1, ErrInput, err)
		}
	}
	return qs, nil
}

// Answer is what a model made of a question, in a process of its own.
type Answer struct {
	Question   string  `json:"question"`
	Pattern    string  `json:"pattern"`
	Answer     string  `json:"answer"`
	OK         bool    `json:"ok"`
	Error      string  `json:"error,omitempty"` // the run failed, and why
	PeakAnon   int64   `json:"peak_anonymous_bytes"`
	PeakRSS    int64   `json:"peak_rss_bytes"`
	GroupPeak  int64   `json:"group_peak_bytes"`
	DecodeRate float64 `json:"decode_tok_s"`
	FirstToken float64 `json:"time_to_first_token_s"`
	Swap       int64   `json:"vm_swap_bytes"`
	Budget     int64   `json:"budget_bytes"`
}

// Evaluation is what `eval --json` writes about questions.
type Evaluation struct {
	Passed  int      `json:"passed"`
	Total   int      `json:"total"`
	Answers []Answer `json:"questions"`
	Machine Machine  `json:"machine"`
}

// Ask puts every question to a fresh process: `epq-uring run` with args, under a cap of so many bytes. before, which may
// be nil, is called ahead of each. A run that fails is a wrong answer; when ctx ends, so does the asking.
func Ask(ctx context.Context, c *Child, bytes int64, args []string, qs []Question, before func(done int)) (Evaluation, error) {
	e := Evaluation{Total: len(qs), Answers: []Answer{}}
	for i, q := range qs {
		if before != nil {
			before(i)
		}
		t, err := c.tell(ctx, bytes, append(append([]string{"run"}, args...), "--no-warm", "--temp=0", "--json", "--prompt="+q.Question)...)
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		a := Answer{Question: q.Question, Pattern: q.Pattern, Answer: t.Text, PeakAnon: t.PeakAnon, PeakRSS: t.PeakRSS, GroupPeak: t.GroupPeak,
			DecodeRate: t.DecodeRate, FirstToken: t.FirstToken, Swap: t.Swap, Budget: t.Budget}
		if err != nil {
			a.Error = err.Error()
		}
		a.OK = err == nil && q.right.MatchString(t.Text)
		if a.OK {
			e.Passed++
		}
		e.Answers = append(e.Answers, a)
	}
	return e, nil
}

// Table is one row per question.
func (e Evaluation) Table() Table {
	t := Table{Header: []string{"question", "verdict", "answer", "decode tok/s", "anonymous peak", "swap"}}
	for _, a := range e.Answers {
		verdict, text := "right", shorten(a.Answer, 60)
		switch {
		case a.Error != "":
			verdict, text = "failed", shorten(a.Error, 120)
		case !a.OK:
			verdict = "wrong"
		}
		t.Rows = append(t.Rows, []string{shorten(a.Question, 50), verdict, text, figure(a.DecodeRate), expert.FormatBytes(a.PeakAnon), expert.FormatBytes(a.Swap)})
	}
	return t
}

// shorten makes one line of at most n characters.
func shorten(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-3]) + "..."
}
