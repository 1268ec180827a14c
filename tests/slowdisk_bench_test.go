package tests

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/prefetch"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

// BenchmarkSlowDisk decodes with a model's own disk made slower: every read takes EPQ_BENCH_LATENCY more. It prints what reading ahead
// makes of that beside the oracle, which knows the routes: what it gains is the room there is. A run decodes EPQ_BENCH_TOKENS, 200
// unless it is set: auto needs some to find out.
//
//	EPQ_BENCH_MODEL=model.gguf EPQ_BENCH_RAM=8GiB EPQ_BENCH_LATENCY=2ms go test ./tests -run '^$' -bench SlowDisk -benchtime 3x
//
// An operation is one run of every mode, forwards and backwards in turns.
func BenchmarkSlowDisk(b *testing.B) {
	o := engine.Options{
		Model: os.Getenv("EPQ_BENCH_MODEL"), RAM: cmp.Or(os.Getenv("EPQ_BENCH_RAM"), "8GiB"), Context: 512, Prefetch: prefetch.Off, MTP: engine.Off, DraftNgram: engine.Off,
	}
	if o.Model == "" {
		b.Skip("EPQ_BENCH_MODEL names no model")
	}
	latency, err := time.ParseDuration(cmp.Or(os.Getenv("EPQ_BENCH_LATENCY"), "2ms"))
	if err != nil {
		b.Fatal(err)
	}
	tokens, err := strconv.Atoi(cmp.Or(os.Getenv("EPQ_BENCH_TOKENS"), "200"))
	if err != nil {
		b.Fatal(err)
	}
	var routes uses
	record := o
	record.Record = func(*expert.Catalog, *expert.Plan, []int64) (engine.Recorder, error) { return &routes, nil }
	slowRun(b, record, tokens)
	o.WrapDevice = func(d uring.Device) uring.Device { return fake.Wrap(d, fake.WrapOptions{LatencyMin: latency}) }
	o.Future = func(*expert.Catalog) ([]prefetch.Use, error) { return routes, nil }
	modes := []string{prefetch.Off, prefetch.On, prefetch.Auto, prefetch.Oracle}
	runs := make(map[string][]slowResult)
	b.ResetTimer()
	for range b.N {
		for _, m := range modes {
			o.Prefetch = m
			runs[m] = append(runs[m], slowRun(b, o, tokens))
		}
		slices.Reverse(modes)
	}
	fmt.Printf("\n%s in %s, %v more per read\n| mode | decode tok/s: median (all) | against off | hits | MiB/token | waiting |\n| --- | --- | --- | --- | --- | --- |\n", o.Model, o.RAM, latency)
	off := slices.Clone(runs[prefetch.Off])
	for _, m := range []string{prefetch.Off, prefetch.On, prefetch.Auto, prefetch.Oracle} {
		var against []float64
		var all []string
		for i, r := range runs[m] {
			against, all = append(against, r.rate/off[i].rate), append(all, fmt.Sprintf("%.2f", r.rate))
		}
		slices.Sort(against)
		slices.SortFunc(runs[m], func(x, y slowResult) int { return cmp.Compare(x.rate, y.rate) })
		r := runs[m][len(runs[m])/2]
		fmt.Printf("| %s | %.2f (%s) | %.2f (%.2f..%.2f) | %.1f %% | %.0f | %.0f %% |\n",
			m, r.rate, strings.Join(all, ", "), against[len(against)/2], against[0], against[len(against)-1], 100*r.hits, r.mib, 100*r.waiting)
	}
}

// slowResult is what a run took.
type slowResult struct{ rate, hits, mib, waiting float64 }

// slowRun decodes in an engine of its own; the prompt is not counted.
func slowRun(b *testing.B, o engine.Options, tokens int) slowResult {
	b.Helper()
	ctx := context.Background()
	e, err := engine.Open(ctx, o)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	}()
	prompt := make([]int32, 16)
	for i := range prompt {
		prompt[i] = int32(7 * (i + 1))
	}
	var before engine.Stats
	r, err := e.Generate(ctx, engine.Request{Tokens: prompt, MaxTokens: tokens + 1, IgnoreEOS: true}, func(ev engine.Event) error {
		if len(ev.Tokens) > 0 && before.Forwards == 0 {
			before, err = e.Stats()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	after, err := e.Stats()
	if err != nil {
		b.Fatal(err)
	}
	s := after.Pager.Sub(before.Pager)
	n := float64(after.Forwards - before.Forwards)
	return slowResult{
		rate: float64(len(r.Tokens)-1) / r.DecodeTime.Seconds(), hits: s.HitRate(), mib: float64(s.BytesRead) / (1 << 20) / n,
		waiting: s.WaitTime.Seconds() / (after.Busy - before.Busy).Seconds(),
	}
}
