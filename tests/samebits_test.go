package tests

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/prefetch"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

var seed = flag.Uint64("seed", 1, "of random configurations")

// bits computes all logits of a token sequence.
func bits(t *testing.T, o engine.Options, tokens []int32, batch int) []float32 {
	t.Helper()
	all, _ := bitsGuessing(t, o, tokens, batch)
	return all
}

// bitsGuessing also says how many experts were read on a guess.
func bitsGuessing(t *testing.T, o engine.Options, tokens []int32, batch int) (all []float32, guessed int64) {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	defer e.Close()
	err = e.Rows(context.Background(), tokens, batch, func(_ int, row []float32) error {
		all = append(all, row...)
		return nil
	})
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	s, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return all, s.Pager.Guess.Issued
}

// uses takes down what a run uses, for the oracle.
type uses []prefetch.Use

func (u *uses) Use(layer int, ids []int32) {
	*u = append(*u, prefetch.Use{Layer: int32(layer), IDs: slices.Clone(ids)})
}
func (*uses) Batch(int)    {}
func (*uses) Close() error { return nil }

// foreseen makes o guess in a mode; the oracle learns the future from a run of its own.
func foreseen(t *testing.T, o *engine.Options, mode string, tokens []int32, batch int) {
	o.Prefetch = mode
	if mode != prefetch.Oracle {
		return
	}
	var run uses
	plain := *o
	plain.Prefetch, plain.WrapDevice = prefetch.Off, nil
	plain.Record = func(*expert.Catalog, *expert.Plan, []int64) (engine.Recorder, error) { return &run, nil }
	bits(t, plain, tokens, batch)
	o.Future = func(*expert.Catalog) ([]prefetch.Use, error) { return run, nil }
}

// Rule 2: the logits are the same bit for bit, whatever the arena, policy, prefetch, device, threads, batch split, kernel set and
// repaired faults.
func TestSameBits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(*seed, 0))
	t.Logf("seed %d", *seed)
	all := int64(0) // experts read on a guess
	for _, model := range []string{
		"micro-qwen3moe", "micro-qwen35moe", "tiny-qwen3moe-q8", "tiny-qwen35moe-q4k", // attention, delta net; softmax router
		"micro-bailingmoe3", "tiny-bailingmoe3-qlora-q4k", // KDA, MLA; sigmoid router with groups and bias
		"micro-deepseek2-lite", "micro-deepseek2-glm", // MLA; softmax that is not normalised, one group
		"micro-gpt-oss", // sinks, windows, biases; softmax of the chosen
	} {
		t.Run(model, func(t *testing.T) {
			c := loadGolden(t, model)
			tokens := make([]int32, 70)
			for i := range tokens {
				tokens[i] = rnd.Int32N(int32(c.Vocab))
			}
			plain := engine.Options{Model: c.path(), RAM: "1GiB", Context: 128, UBatch: 128, Threads: 1, Kernels: "scalar", Backend: "pread", NoTokenizer: true}
			want := bits(t, plain, tokens, 0)
			p, err := engine.Plan(plain)
			if err != nil {
				t.Fatal(err)
			}
			guesses := map[string]int64{}
			for i := range 14 {
				o := plain
				o.RAM = pick(rnd, "min", "half", "half", "1GiB")
				o.Backend = pick(rnd, "auto", "pread")
				o.Threads = 1 + rnd.IntN(3)
				o.Kernels = pick(rnd, kernels.All()...).Name
				o.EvictPolicy = pick(rnd, "", "lru", "least_stale", "lfu")
				batch := pick(rnd, 1, 1, 1, 2, 3, 7, 16, 33, 64, 70)
				mode := prefetch.Modes()[i%len(prefetch.Modes())]
				if o.RAM == "half" {
					o.RAM = fmt.Sprint(minimum(t, o) + p.ArenaBytes/2)
				}
				foreseen(t, &o, mode, tokens, batch)
				faults := rnd.IntN(2) == 0
				if faults {
					fs := onceFaults(t, rnd, c.path())
					o.WrapDevice = func(d uring.Device) uring.Device { return fake.Wrap(d, fake.WrapOptions{Faults: fs}) }
				}
				name := fmt.Sprintf("ram %s, %s, -t %d, %s, policy %q, prefetch %s, batch %d, faults %v", o.RAM, o.Backend, o.Threads, o.Kernels, o.EvictPolicy, o.Prefetch, batch, faults)
				got, guessed := bitsGuessing(t, o, tokens, batch)
				if !slices.Equal(got, want) {
					t.Errorf("%s: other bits", name)
				}
				guesses[mode] += guessed
				all += guessed
			}
			t.Logf("experts read on a guess: %v", guesses)
			tokens[3]++
			if slices.Equal(bits(t, plain, tokens, 0), want) {
				t.Error("another prompt gives the same bits")
			}
		})
	}
	if all == 0 {
		t.Error("nothing was read on a guess")
	}
}

// Attention over several segments, with and without a sliding window, in whatever batches.
func TestSameBitsOverSegments(t *testing.T) {
	rnd := rand.New(rand.NewPCG(*seed, 1))
	for _, model := range []string{"micro-qwen3moe", "micro-bailingmoe3", "micro-deepseek2", "micro-gpt-oss-f32"} {
		t.Run(model, func(t *testing.T) {
			c := loadGolden(t, model)
			tokens := make([]int32, 1100)
			for i := range tokens {
				tokens[i] = rnd.Int32N(int32(c.Vocab))
			}
			o := engine.Options{Model: c.path(), RAM: "1GiB", Context: 1100, UBatch: 512, NoTokenizer: true}
			want := bits(t, o, tokens, 512)
			for _, batch := range []int{1, 77} {
				o.Threads, o.Parallel = 1+batch%3, 1+batch%2
				if !slices.Equal(bits(t, o, tokens, batch), want) {
					t.Errorf("batches of %d: other bits", batch)
				}
			}
		})
	}
}

// onceFaults fail the first read that touches each of some random places, so that every retry succeeds.
func onceFaults(t *testing.T, rnd *rand.Rand, path string) []fake.Fault {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var fs []fake.Fault
	for range 40 {
		at := rnd.Int64N(info.Size())
		fs = append(fs, fake.Fault{File: fake.AnyFile, From: at, To: at + 1, Times: 1, Errno: syscall.EIO})
	}
	return fs
}

func pick[T any](rnd *rand.Rand, from ...T) T { return from[rnd.IntN(len(from))] }

// A request's answer does not depend on who else is served: several sessions in one batch, sampled with a seed.
func TestSameTextBesideOthers(t *testing.T) {
	o := engine.Options{Model: demoModel, RAM: "min", Context: 256, UBatch: 32, Parallel: 4}
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	prompts := []string{"Once upon a time", "The capital of France is", "In a village far away", "17 x 23 =", "A mixture of experts is", "Once upon a time"}
	ask := func(i int) []int32 {
		s := engine.DefaultSampling()
		s.Seed = int64(i + 1)
		r, err := e.Generate(context.Background(), engine.Request{Tokens: encode(t, e, prompts[i]), MaxTokens: 40, Sampling: s, IgnoreEOS: true}, nil)
		if err != nil {
			t.Error(err)
		}
		return r.Tokens
	}
	alone := make([][]int32, len(prompts))
	for i := range prompts {
		alone[i] = ask(i)
	}
	together := make([][]int32, len(prompts))
	var wg sync.WaitGroup
	for i := range prompts {
		wg.Go(func() { together[i] = ask(i) })
	}
	wg.Wait()
	for i := range prompts {
		if len(alone[i]) != 40 || !slices.Equal(alone[i], together[i]) {
			t.Errorf("%q: alone %v, beside others %v", prompts[i], alone[i], together[i])
		}
	}
}

// The same for recurrent states, latent caches and windows: prompts of several lengths are read in one batch, slice by slice.
func TestSameTokensBesideOthers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(*seed, 2))
	for _, model := range []string{"micro-bailingmoe3", "micro-deepseek2", "micro-gpt-oss-f32"} {
		c := loadGolden(t, model)
		o := engine.Options{Model: c.path(), RAM: "min", Context: 256, UBatch: 200, Parallel: 4, NoTokenizer: true}
		e, err := engine.Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		prompts := make([][]int32, 6)
		for i := range prompts {
			for range 3 + rnd.IntN(150) {
				prompts[i] = append(prompts[i], rnd.Int32N(int32(c.Vocab)))
			}
		}
		ask := func(i int) []int32 {
			r, err := e.Generate(context.Background(), engine.Request{Tokens: prompts[i], MaxTokens: 20}, nil)
			if err != nil {
				t.Error(err)
			}
			return r.Tokens
		}
		alone, together := make([][]int32, len(prompts)), make([][]int32, len(prompts))
		for i := range prompts {
			alone[i] = ask(i)
		}
		var wg sync.WaitGroup
		for i := range prompts {
			wg.Go(func() { together[i] = ask(i) })
		}
		wg.Wait()
		for i := range prompts {
			if len(alone[i]) != 20 || !slices.Equal(alone[i], together[i]) {
				t.Errorf("%s, prompt %d: alone %v, beside others %v", model, i, alone[i], together[i])
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
