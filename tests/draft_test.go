package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/synth"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

// answer is a result with the log-probabilities of its tokens and their alternatives.
type answer struct {
	engine.Result
	logprobs []engine.TokenLogprob
}

// answers lets an engine answer requests, all at once or one after the other.
func answers(t *testing.T, o engine.Options, together bool, rs ...engine.Request) []answer {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	out := make([]answer, len(rs))
	ask := func(i int) {
		r := rs[i]
		r.Logprobs, r.Sampling.TopLogprobs = true, 5
		var err error
		out[i].Result, err = e.Generate(context.Background(), r, func(ev engine.Event) error {
			out[i].logprobs = append(out[i].logprobs, ev.Logprobs...)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for i := range rs {
		if together {
			wg.Go(func() { ask(i) })
		} else {
			ask(i)
		}
	}
	wg.Wait()
	return out
}

// sameAnswers wants the tokens, texts and log-probabilities of two runs to be the same, and returns how many tokens the second drafted and how
// many of those were right.
func sameAnswers(t *testing.T, name string, want, got []answer) (drafted, accepted int) {
	t.Helper()
	for i := range want {
		if !slices.Equal(got[i].Tokens, want[i].Tokens) || got[i].Text != want[i].Text || got[i].Finish != want[i].Finish || got[i].StopString != want[i].StopString {
			t.Errorf("%s, request %d: %v %q (%s), without drafts %v %q (%s)", name, i, got[i].Tokens, got[i].Text, got[i].Finish, want[i].Tokens, want[i].Text, want[i].Finish)
		}
		if !reflect.DeepEqual(got[i].logprobs, want[i].logprobs) || len(want[i].logprobs) != len(want[i].Tokens) {
			t.Errorf("%s, request %d: other log-probabilities", name, i)
		}
		if want[i].Drafted > 0 {
			t.Errorf("%s: drafted without being asked to", name)
		}
		drafted, accepted = drafted+got[i].Drafted, accepted+got[i].Accepted
	}
	return drafted, accepted
}

// draftCase is a golden case; that with the block of multi-token prediction is the stored one otherwise.
func draftCase(t *testing.T, model string) *goldenCase {
	t.Helper()
	c := loadGolden(t, strings.TrimSuffix(model, "-mtp"))
	c.Model = strings.Replace(c.Model, c.Name, model, 1)
	return c
}

// draftOptions never draft.
func draftOptions(c *goldenCase) engine.Options {
	return engine.Options{Model: c.path(), RAM: "min", Context: 96, UBatch: 32, NoTokenizer: true, MTP: "off", DraftNgram: "off"}
}

// few makes a sampling choose among some tokens only, so that texts repeat and drafts are right now and then.
func few(s engine.Sampling, ids ...int32) engine.Sampling {
	s.LogitBias = map[int32]float32{}
	for _, id := range ids {
		s.LogitBias[id] = 50
	}
	return s
}

// draftRequests choose greedily, with a seed, with penalties; the third ends with the context.
func draftRequests(c *goldenCase) []engine.Request {
	prompt, ids := slices.Concat(c.Tokens[:9], c.Tokens[:6]), c.Tokens[:4]
	return []engine.Request{
		{Tokens: prompt, MaxTokens: 30, Sampling: few(engine.Sampling{}, ids...)},
		{Tokens: prompt, MaxTokens: 40, Sampling: few(engine.Sampling{Temperature: 1, TopK: 3, TopP: 1, Seed: 3}, ids...)},
		{Tokens: prompt, MaxTokens: -1, Sampling: few(engine.Sampling{Temperature: 2, TopP: 0.9, RepeatPenalty: 1.1, RepeatLastN: 8, Seed: 4}, ids...)},
	}
}

var draftModels = []string{"micro-qwen3moe", "micro-qwen35moe-mtp", "tiny-bailingmoe3-qlora-q4k", "micro-bailingmoe3", "micro-deepseek2-glm", "micro-gpt-oss"}

type drafts struct{ mtp, ngram string }

// draftsOf are the ways of drafting that draft whenever they can.
func draftsOf(model string) []drafts {
	how := []drafts{{"off", "on"}}
	switch model {
	case "micro-qwen35moe-mtp", "micro-bailingmoe3", "micro-deepseek2-glm":
		how = append(how, drafts{"1", "off"}, drafts{"3", "on"})
	}
	return how
}

// Drafting changes no token: greedy, sampled with a seed, with penalties, alone and beside other sessions, to the end of the context, and in a
// request that goes on from what an earlier one left in the caches.
func TestDraftsChangeNothing(t *testing.T) {
	for _, model := range draftModels {
		t.Run(model, func(t *testing.T) {
			c := draftCase(t, model)
			off := draftOptions(c)
			off.Parallel = 3
			rs := draftRequests(c)
			want := answers(t, off, false, rs...)
			again := rs[0]
			again.Tokens = slices.Concat(again.Tokens, want[0].Tokens, c.Tokens[:2])
			rs, want = append(rs, again), append(want, answers(t, off, false, again)...)
			for _, together := range []bool{false, true} {
				for _, how := range draftsOf(model) {
					on := off
					on.MTP, on.DraftNgram = how.mtp, how.ngram
					name := fmt.Sprintf("--mtp %s, --draft-ngram %s, together %v", how.mtp, how.ngram, together)
					got := answers(t, on, together, rs...)
					drafted, accepted := sameAnswers(t, name, want, got)
					t.Logf("%s: drafted %d, accepted %d; %s", name, drafted, accepted, got[0].MTP)
					if accepted == 0 || accepted == drafted {
						t.Errorf("%s: drafted %d, accepted %d: rejection or acceptance was not tried", name, drafted, accepted)
					}
				}
			}
		})
	}
}

// Stop strings and the number of tokens cut an answer in the middle of what a draft won, and the next request goes on from there.
func TestDraftsStop(t *testing.T) {
	for _, model := range []string{demoModel, "testdata/golden/micro-qwen35moe-mtp.gguf"} {
		t.Run(filepath.Base(model), func(t *testing.T) {
			off := engine.Options{Model: model, RAM: "min", Context: 128, UBatch: 32, DraftNgram: "off", MTP: "off"}
			on := off
			on.DraftNgram = "on"
			plain := engine.Request{Tokens: textTokens(t, off, "The fox and the bear said: I am the fox"), MaxTokens: 40, IgnoreEOS: true}
			plain.Sampling = few(engine.Sampling{Temperature: 1, TopK: 3, TopP: 1, Seed: 7}, plain.Tokens[1:4]...)
			whole := answers(t, off, false, plain)[0].Text
			var rs []engine.Request
			add := func(r engine.Request) {
				made := answers(t, off, false, r)[0].Tokens
				after := plain
				after.Tokens, after.MaxTokens = slices.Concat(r.Tokens, made, plain.Tokens[1:2]), 3
				rs = append(rs, r, after)
			}
			for i := 3; i < len(whole)-6; i += 11 {
				r := plain
				r.Stop = []string{whole[i : i+6]}
				add(r)
			}
			for n := 1; n < 20; n += 5 {
				r := plain
				r.MaxTokens = n
				add(r)
			}
			got := answers(t, on, false, rs...)
			drafted, accepted := sameAnswers(t, "stops", answers(t, off, false, rs...), got)
			t.Logf("%q: %d requests: drafted %d, accepted %d", whole, len(rs), drafted, accepted)
			if accepted == 0 {
				t.Error("no draft was right")
			}
			for i := 1; i < len(got); i += 2 {
				if got[i].CachedTokens < len(rs[i].Tokens)-2 {
					t.Errorf("request %d kept %d of %d tokens", i, got[i].CachedTokens, len(rs[i].Tokens))
				}
			}
		})
	}
}

// textTokens encodes a text with a model's tokenizer.
func textTokens(t *testing.T, o engine.Options, text string) []int32 {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := e.EncodeText(text)
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	return ids
}

// Where it is left to the engine, drafting is part of the plan if there is memory for it, never raises the smallest budget, and changes nothing
// either; what was asked for is planned whatever it takes, or refused.
func TestDraftsPlanned(t *testing.T) {
	c := draftCase(t, "micro-qwen35moe-mtp")
	off := draftOptions(c)
	term := func(o engine.Options) (n int64) {
		p, err := engine.Plan(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range p.Terms {
			if x.Name == "draft states" {
				n = x.Bytes
			}
		}
		return n
	}
	auto := off
	auto.MTP, auto.DraftNgram = "auto", "auto"
	asked := off
	asked.MTP = "2"
	if a, b := minimum(t, off), minimum(t, auto); a != b || term(auto) != 0 {
		t.Errorf("the smallest budget is %d, with drafts left to the engine %d", a, b)
	}
	if a, b := minimum(t, off), minimum(t, asked); a >= b || term(asked) == 0 {
		t.Errorf("the smallest budget is %d, with drafts asked for %d", a, b)
	}
	rs := draftRequests(c)
	want := answers(t, off, false, rs...)
	off.RAM, auto.RAM = "1GiB", "1GiB"
	if term(off) != 0 || term(auto) == 0 {
		t.Errorf("draft states take %d bytes without and %d with them, in 1 GiB", term(off), term(auto))
	}
	got := answers(t, auto, false, rs...)
	drafted, accepted := sameAnswers(t, "auto", want, got)
	t.Logf("drafted %d, accepted %d; %s", drafted, accepted, got[0].MTP)
	if !strings.HasPrefix(got[0].MTP, "auto: ") || want[0].MTP != "off" {
		t.Errorf("said of drafting: %q, without: %q", got[0].MTP, want[0].MTP)
	}
	for _, o := range []engine.Options{
		{Model: loadGolden(t, "micro-qwen3moe").path(), NoTokenizer: true, MTP: "1"}, // no such block
		{Model: c.path(), NoTokenizer: true, MTP: "5"}, {Model: c.path(), NoTokenizer: true, MTP: "on"}, {Model: c.path(), NoTokenizer: true, DraftNgram: "2"},
	} {
		if _, err := engine.Plan(o); !errors.Is(err, engine.ErrOption) {
			t.Errorf("--mtp %q, --draft-ngram %q: %v", o.MTP, o.DraftNgram, err)
		}
	}
}

// A drafting block that lacks something is no harm to who does not ask for it, and says so.
func TestDraftingBlockBroken(t *testing.T) {
	c := draftCase(t, "micro-deepseek2-glm")
	b, err := os.ReadFile(c.path())
	if err != nil {
		t.Fatal(err)
	}
	rs := draftRequests(c)
	want := answers(t, draftOptions(c), false, rs...)
	for _, name := range []string{"blk.3.nextn.hnorm.weight", "blk.3.ffn_up_exps.weight", "blk.3.attn_kv_a_norm.weight"} {
		if n := bytes.Count(b, []byte(name)); n != 1 {
			t.Fatalf("%s stands %d times in the file", name, n)
		}
		o := draftOptions(c)
		o.Model, o.RAM, o.MTP = filepath.Join(t.TempDir(), "glm.gguf"), "1GiB", "auto"
		if err := os.WriteFile(o.Model, bytes.Replace(b, []byte(name), []byte(strings.Replace(name, "blk.3", "blk.x", 1)), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		got := answers(t, o, false, rs...)
		if drafted, _ := sameAnswers(t, name, want, got); drafted > 0 || !strings.Contains(got[0].MTP, name) {
			t.Errorf("without %s: drafted %d, said %q", name, drafted, got[0].MTP)
		}
		o.MTP = "1"
		if _, err := engine.Plan(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("--mtp 1 without %s: %v", name, err)
		}
	}
}

// An expert of the drafting block that cannot be read costs drafts, not the answer.
func TestDraftingBlockUnreadable(t *testing.T) {
	c := draftCase(t, "micro-deepseek2-glm")
	off := draftOptions(c)
	rs := draftRequests(c)
	want := answers(t, off, false, rs...)
	f, err := gguf.Open(c.path())
	if err != nil {
		t.Fatal(err)
	}
	var faults []fake.Fault
	for _, x := range f.Tensors() {
		if strings.HasPrefix(x.Name, "blk.3.ffn_down_exps") {
			faults = append(faults, fake.Fault{File: fake.AnyFile, From: x.Offset + x.Size/2, To: x.Offset + x.Size, Times: 1 << 30, Errno: syscall.EIO})
		}
	}
	if len(faults) == 0 {
		t.Fatal("no such block")
	}
	on := off
	on.MTP = "2"
	on.WrapDevice = func(d uring.Device) uring.Device { return fake.Wrap(d, fake.WrapOptions{Faults: faults}) }
	drafted, _ := sameAnswers(t, "faults", want, answers(t, on, false, rs...))
	on.WrapDevice = nil
	if all, _ := sameAnswers(t, "no faults", want, answers(t, on, false, rs...)); drafted == 0 || drafted >= all {
		t.Errorf("drafted %d with half of the block's experts unreadable, %d with all", drafted, all)
	}
}

// experts are those that a request uses, by layer and number.
func experts(t *testing.T, o engine.Options, r engine.Request) map[[2]int32]bool {
	t.Helper()
	e := openEngine(t, o)
	used := map[[2]int32]bool{}
	err := e.Observe(func(layer, _ int, ids []int32) {
		for _, id := range ids {
			used[[2]int32{int32(layer), id}] = true
		}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Generate(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	return used
}

// apart is a byte of an expert that no read of a needed one touches, widened as reads are to whole blocks.
func apart(f *gguf.File, k [2]int32, needed map[[2]int32]bool) (at int64, ok bool) {
	const block = 4096
	x, _ := f.Tensor(fmt.Sprintf("blk.%d.ffn_down_exps.weight", k[0]))
	s := x.Slice(int(k[1]))
	at = s.Offset + s.Size/2
	for id := range int32(x.Slices()) {
		s = x.Slice(int(id))
		if s.Offset/block <= at/block && at/block <= (s.Offset+s.Size-1)/block && needed[[2]int32{k[0], id}] {
			return 0, false
		}
	}
	return at, true
}

// An expert that cannot be read and that only wrong drafts need is no harm to the answer.
func TestExpertOfDraftsAloneUnreadable(t *testing.T) {
	model, err := synth.Write(t.Context(), "tiny-gpt-oss", filepath.Join(t.TempDir(), "many.gguf"), synth.Options{Experts: 256, Used: 2})
	if err != nil {
		t.Fatal(err)
	}
	off := engine.Options{Model: model.Files[0], RAM: "min", Context: 64, UBatch: 32, Parallel: 2, NoTokenizer: true, MTP: "off", DraftNgram: "off"}
	on := off
	on.DraftNgram = "on"
	ids := []int32{1, 2, 3, 4}
	rs := []engine.Request{
		{Tokens: slices.Repeat(ids, 3), MaxTokens: 20, Sampling: few(engine.Sampling{Temperature: 1, TopP: 1, Seed: 3}, ids...)},
		{Tokens: slices.Repeat(ids, 2), MaxTokens: 30, Sampling: few(engine.Sampling{Temperature: 1, TopP: 1, Seed: 4}, ids...)},
	}
	needed := experts(t, off, rs[0])
	for k := range experts(t, off, rs[1]) {
		needed[k] = true
	}
	file, err := gguf.Open(on.Model)
	if err != nil {
		t.Fatal(err)
	}
	var places []int64
	for k := range experts(t, on, rs[0]) {
		if at, alone := apart(file, k, needed); alone {
			places = append(places, at)
		}
	}
	if len(places) == 0 {
		t.Fatal("wrong drafts need no other experts")
	}
	slices.Sort(places)
	want := answers(t, off, false, rs...)
	for _, at := range places[:min(3, len(places))] {
		on.WrapDevice = func(d uring.Device) uring.Device {
			return fake.Wrap(d, fake.WrapOptions{Faults: []fake.Fault{{From: at, To: at + 1, Errno: syscall.EIO}}})
		}
		for _, together := range []bool{false, true} {
			sameAnswers(t, fmt.Sprintf("offset %d, together %v", at, together), want, answers(t, on, together, rs...))
		}
	}
}

// Checksums cover the drafting block, whether it is in use or not.
func TestDraftingBlockVerified(t *testing.T) {
	c := draftCase(t, "micro-deepseek2-glm")
	b, err := os.ReadFile(c.path())
	if err != nil {
		t.Fatal(err)
	}
	o := draftOptions(c)
	o.Model = filepath.Join(t.TempDir(), "glm.gguf")
	if err := os.WriteFile(o.Model, b, 0o644); err != nil {
		t.Fatal(err)
	}
	verified(t, engine.VerifyOptions{Model: o.Model})
	o.Verify = true
	rs := draftRequests(c)
	want := answers(t, o, false, rs...)
	o.MTP = "2"
	whole, _ := sameAnswers(t, "whole", want, answers(t, o, false, rs...))
	for e := range 4 {
		flip(t, o.Model, "blk.3.ffn_up_exps.weight", e)
	}
	if r := verified(t, engine.VerifyOptions{Model: o.Model}); len(r.Bad) != 4 {
		t.Errorf("found %+v", r.Bad)
	}
	if n, _ := sameAnswers(t, "flipped", want, answers(t, o, false, rs...)); whole == 0 || n >= whole {
		t.Errorf("drafted %d with bad experts, %d without", n, whole)
	}
}
