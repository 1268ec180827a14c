package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/sim"
)

// A recorded run in which nothing was read ahead, replayed under the same budget and policy, hits, misses, evicts and reads exactly what the run did:
// with arenas from one token's experts to all of them, batches that name more experts than there are slots, and drafts.
func TestReplayIsTheRun(t *testing.T) {
	for _, ram := range []string{"min", "+3MiB", "+8MiB", "1GiB"} {
		for _, policy := range pager.Policies() {
			t.Run(ram+"/"+policy, func(t *testing.T) {
				o := engine.Options{Model: demoModel, RAM: ram, Context: 256, UBatch: 24, EvictPolicy: policy, Parallel: 2, Prefetch: "off", DraftNgram: "on"}
				if ram[0] == '+' {
					o.RAM = fmt.Sprint(minimum(t, o) + sizeOf(t, ram[1:]))
				}
				trace, got, plan := recordRun(t, o)
				want, err := trace.Replay(plan.Slots, pager.Options{Policy: policy})
				if err != nil {
					t.Fatal(err)
				}
				got.WaitTime, want.WaitTime = 0, 0
				if got != want || got.Hits == 0 && ram == "1GiB" || got.Evictions == 0 && ram == "min" {
					t.Errorf("%d slots:\n   run %+v\nreplay %+v", plan.Slots, got, want)
				}
				cells, err := sim.Simulate(trace, []int64{plan.Budget}, []string{policy}, pager.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if c := cells[0]; c.HitRate != got.HitRate() || c.HitRateCold != got.WarmHitRate() || c.Evictions != got.Evictions ||
					c.MiBPerToken != float64(got.BytesRead)/float64(1<<20)/float64(trace.Tokens) {
					t.Errorf("--ram means another thing: run %+v, simulated %+v", got, c)
				}
			})
		}
	}
}

// So it is where the model's own block drafts: its experts are a layer of the trace like others.
func TestReplayOfPredictions(t *testing.T) {
	c := draftCase(t, "micro-qwen35moe-mtp")
	for _, ram := range []string{"min", "1GiB"} {
		o := draftOptions(c)
		o.RAM, o.Prefetch, o.MTP = ram, "off", "2"
		var b bytes.Buffer
		o.Record = recordTo(&b)
		e, err := engine.Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Generate(context.Background(), draftRequests(c)[1], nil); err != nil {
			t.Error(err)
		}
		s, err := e.Stats()
		if err := errors.Join(err, e.Close()); err != nil {
			t.Fatal(err)
		}
		trace, err := sim.Read(&b)
		if err != nil {
			t.Fatal(err)
		}
		want, err := trace.Replay(e.Plan().Slots, pager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := s.Pager
		got.WaitTime, want.WaitTime = 0, 0
		if got != want || s.Drafts.Accepted == 0 || len(trace.Catalog.Layers) != e.MoELayers()+1 {
			t.Errorf("--ram %s, %d drafts accepted, %d layers of %d:\n   run %+v\nreplay %+v", ram, s.Drafts.Accepted, len(trace.Catalog.Layers), e.MoELayers(), got, want)
		}
	}
}

func minimum(t *testing.T, o engine.Options) int64 {
	t.Helper()
	o.RAM = "min"
	p, err := engine.Plan(o)
	if err != nil {
		t.Fatal(err)
	}
	return p.Minimum
}

func sizeOf(t *testing.T, s string) int64 {
	t.Helper()
	n, err := engine.ParseSize(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// recordTo is Options.Record that writes a trace to w.
func recordTo(w io.Writer) func(*expert.Catalog, *expert.Plan, []int64) (engine.Recorder, error) {
	return func(cat *expert.Catalog, plan *expert.Plan, sizes []int64) (engine.Recorder, error) {
		r, err := sim.NewRecorder(w, cat, plan, sizes)
		return keptOpen{r}, err
	}
}

type keptOpen struct{ *sim.Recorder }

// recordRun answers two prompts and returns the trace, the engine's own counters and the plan.
func recordRun(t *testing.T, o engine.Options) (*sim.Trace, pager.Stats, *expert.Plan) {
	t.Helper()
	var b bytes.Buffer
	o.Record = recordTo(&b)
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, prompt := range []string{"Once upon a time there was a small town by the sea where nobody could remember", "17 x 23 = 17 x 23 = 17 x"} {
		s := engine.DefaultSampling()
		s.Seed = int64(i)
		if _, err := e.Generate(context.Background(), engine.Request{Tokens: encode(t, e, prompt), MaxTokens: 30, Sampling: s, IgnoreEOS: true}, nil); err != nil {
			t.Fatal(err)
		}
	}
	s, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if o.DraftNgram == "on" && s.Drafts.Drafted == 0 {
		t.Error("nothing was drafted")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	trace, err := sim.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return trace, s.Pager, e.Plan()
}
