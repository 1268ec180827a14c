package main

import (
	"fmt"
	"time"

	"github.com/epq-uring/epq-uring/engine"
)

// timeSplit says where the time of a run went; the three add up to its wall time.
type timeSplit struct {
	Compute float64 `json:"compute_s"`
	IOWait  float64 `json:"io_wait_s"`
	Other   float64 `json:"other_s"`
}

// report is what `run --json` prints.
type report struct {
	Text         string  `json:"text"`
	PromptTokens int     `json:"prompt_tokens"`
	OutputTokens []int32 `json:"output_tokens"`
	Finish       string  `json:"finish_reason"`
	PromptRate   float64 `json:"prompt_tok_s"`
	DecodeRate   float64 `json:"decode_tok_s"`
	FirstToken   float64 `json:"time_to_first_token_s"`
	HitRate      float64 `json:"hit_rate"`
	HitRateCold  float64 `json:"hit_rate_cold"`
	MiBPerToken  float64 `json:"ssd_mib_per_token"`
	BytesRead    int64   `json:"bytes_read"` // by the pager, guesses included
	Evictions    int64   `json:"evictions"`
	Budget       int64   `json:"budget_bytes"`
	BoundBy      string  `json:"bound_by"`
	Arena        int64   `json:"arena_bytes"`
	Slots        int     `json:"arena_slots"`
	Backend      string  `json:"backend"`
	Kernels      string  `json:"kernels"`
	Policy       string  `json:"policy"`
	Prefetch     string  `json:"prefetch"`
	PeakAnon     int64   `json:"peak_anonymous_bytes"`
	PeakRSS      int64   `json:"peak_rss_bytes"`
	Swap         int64   `json:"vm_swap_bytes"`
	Retries      int64   `json:"read_retries"`  // reads repeated after an error
	Failures     int64   `json:"read_failures"` // experts given up

	prefetchReport
	draftReport

	Split timeSplit `json:"time_split"`
}

func newReport(e *engine.Engine, r engine.Result, before, after engine.Stats) report {
	p := after.Pager.Sub(before.Pager)
	slots := 0
	for _, c := range e.Plan().Classes {
		slots += c.Slots
	}
	rep := report{
		Text: r.Text, PromptTokens: r.PromptTokens, OutputTokens: r.Tokens, Finish: r.Finish,
		PromptRate: rate(r.PromptTokens-r.CachedTokens, r.PromptTime), DecodeRate: rate(len(r.Tokens)-1, r.DecodeTime), FirstToken: r.FirstToken.Seconds(),
		HitRate: p.HitRate(), HitRateCold: p.WarmHitRate(),
		Evictions: p.Evictions, Budget: e.Plan().Budget, BoundBy: e.Plan().BoundBy, Arena: e.Plan().ArenaBytes, Slots: slots,
		Backend: e.Backend(), Kernels: e.KernelSet(), Policy: e.Policy(), Prefetch: e.Prefetch(),
		PeakAnon: after.Process.PeakAnonymous, PeakRSS: after.Process.PeakRSS, Swap: after.Process.Swap,
		Retries: p.Retries, Failures: p.Failures,
	}
	rep.BytesRead = p.BytesRead
	rep.prefetchReport = newPrefetchReport(p, after.Prefetch.Sub(before.Prefetch))
	rep.draftReport = newDraftReport(r)
	if rep.OutputTokens == nil {
		rep.OutputTokens = []int32{}
	}
	if n := r.PromptTokens - r.CachedTokens + len(r.Tokens); n > 0 {
		rep.MiBPerToken = float64(p.BytesRead) / float64(n) / (1 << 20)
	}
	wall := r.FirstToken + r.DecodeTime
	busy := after.Busy - before.Busy
	rep.Split = timeSplit{Compute: (busy - p.WaitTime).Seconds(), IOWait: p.WaitTime.Seconds(), Other: max(wall-busy, 0).Seconds()}
	return rep
}

func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// line is the report in one line for people.
func (r report) line() string {
	return fmt.Sprintf("prompt %d tokens, %.1f tok/s; answer %d tokens, %.1f tok/s; first after %.2f s; hits %.1f %%, %.2f MiB read per token, %d evictions; waited %.0f %% for I/O; %s%s",
		r.PromptTokens, r.PromptRate, len(r.OutputTokens), r.DecodeRate, r.FirstToken, 100*r.HitRate, r.MiBPerToken, r.Evictions,
		100*r.Split.IOWait/max(r.Split.Compute+r.Split.IOWait+r.Split.Other, 1e-9), r.prefetchReport.line(), r.draftReport.line())
}

// details are the figures one a line, in ollama's words.
func details(r engine.Result, rep report) string {
	read, made := r.PromptTokens-r.CachedTokens, len(r.Tokens)
	return fmt.Sprintf("total duration:       %v\nprompt eval count:    %d token(s)\nprompt eval duration: %v\nprompt eval rate:     %.2f tokens/s\n"+
		"eval count:           %d token(s)\neval duration:        %v\neval rate:            %.2f tokens/s\n",
		r.FirstToken+r.DecodeTime, read, r.PromptTime, rep.PromptRate, made, r.DecodeTime, rep.DecodeRate)
}
