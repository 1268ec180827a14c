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
// With EPQ_BENCH_BANDWIDTH, in bytes per second, the disk is one of time alone: its reads take as long as so fast a channel needs and
// move nothing, so they cost no CPU and no memory bandwidth. Then there is a row without any reading, and the share of what bounds decoding:
// the lower of that row's speed and of the bandwidth divided by the bytes of a token.
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
	bandwidth, err := strconv.ParseInt(cmp.Or(os.Getenv("EPQ_BENCH_BANDWIDTH"), "0"), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	modes := []string{prefetch.Off, prefetch.On, prefetch.Auto, prefetch.Oracle}
	if bandwidth > 0 {
		o.Backend = "null"
		modes = append([]string{nothing}, modes...)
	}
	tokens, err := strconv.Atoi(cmp.Or(os.Getenv("EPQ_BENCH_TOKENS"), "200"))
	if err != nil {
		b.Fatal(err)
	}
	var routes uses
	record := o
	record.Record = func(*expert.Catalog, *expert.Plan, []int64) (engine.Recorder, error) { return &routes, nil }
	slowRun(b, record, tokens)
	slow := func(d uring.Device) uring.Device {
		return fake.Wrap(d, fake.WrapOptions{LatencyMin: latency, BytesPerSecond: bandwidth})
	}
	o.Future = func(*expert.Catalog) ([]prefetch.Use, error) { return routes, nil }
	order := slices.Clone(modes)
	runs := make(map[string][]slowResult)
	b.ResetTimer()
	for range b.N {
		for _, m := range order {
			o.Prefetch, o.WrapDevice = m, slow
			if m == nothing {
				o.Prefetch, o.WrapDevice = prefetch.Off, nil
			}
			runs[m] = append(runs[m], slowRun(b, o, tokens))
		}
		slices.Reverse(order)
	}
	fmt.Printf("\n%s in %s, %v more per read, %d bytes/s\n| mode | decode tok/s: median (all) | against off | hits | MiB/token | waiting | of the bound |\n| --- | --- | --- | --- | --- | --- | --- |\n",
		o.Model, o.RAM, latency, bandwidth)
	off, ram := slices.Clone(runs[prefetch.Off]), slices.Clone(runs[nothing])
	for _, m := range modes {
		var against, shares []float64
		var all []string
		for i, r := range runs[m] {
			against, all = append(against, r.rate/off[i].rate), append(all, fmt.Sprintf("%.2f", r.rate))
			if bandwidth > 0 {
				shares = append(shares, 100*r.rate/min(ram[i].rate, float64(bandwidth)/(1<<20)/r.mib))
			}
		}
		slices.Sort(against)
		slices.Sort(shares)
		slices.SortFunc(runs[m], func(x, y slowResult) int { return cmp.Compare(x.rate, y.rate) })
		r := runs[m][len(runs[m])/2]
		share := ""
		if len(shares) > 0 && m != nothing {
			share = fmt.Sprintf("%.0f %%", shares[len(shares)/2])
		}
		fmt.Printf("| %s | %.2f (%s) | %.2f (%.2f..%.2f) | %.1f %% | %.0f | %.0f %% | %s |\n",
			m, r.rate, strings.Join(all, ", "), against[len(against)/2], against[0], against[len(against)-1], 100*r.hits, r.mib, 100*r.waiting, share)
	}
}

// nothing is the mode in which no read takes any time.
const nothing = "no reading"

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
