package iotest

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/uring"
)

// cost divides the time of a token by the bytes of weights that it reads.
type cost struct {
	layer  time.Duration // of everything but the routed experts, per MoE layer
	expert time.Duration // of one expert
	slower float64       // while something is read, both take so many times as long
	share  float64       // and the disk has this share of its bandwidth
	layers int
	used   int
}

func costOf(f *gguf.File, cat *expert.Catalog, token computing) cost {
	c := cost{layers: len(cat.Layers), slower: token.slower(), share: token.share()}
	resident, experts, uses := -cat.TotalBytes, int64(0), 0
	_, untied := f.Tensor("output.weight")
	for _, t := range f.Tensors() {
		resident += t.Size
		if t.Name == "token_embd.weight" && untied {
			resident -= t.Size // one row of it
		}
	}
	for _, l := range cat.Layers {
		for _, p := range l.Parts {
			experts += int64(l.Used) * p.Size
		}
		uses += l.Used
		c.used = max(c.used, l.Used)
	}
	share := float64(experts) / float64(experts+max(resident, 0))
	c.expert = time.Duration(share * float64(token.alone) / float64(uses))
	c.layer = time.Duration((1 - share) * float64(token.alone) / float64(c.layers))
	return c
}

// ExpertVerdict says what a model decodes at.
type ExpertVerdict struct {
	Bandwidth   float64  `json:"bw_bytes"`                         // of bursts of as many experts as a token uses in a layer
	InFlight    int64    `json:"bytes_in_flight"`                  // of such a burst
	TokenBytes  int64    `json:"token_bytes"`                      // of all experts of a token
	Compute     float64  `json:"compute_s_per_token"`              // with nothing read meanwhile
	Beside      float64  `json:"compute_beside_reads_s_per_token"` // with the disk kept busy
	At          []AtRate `json:"at"`
	Replay      *Replay  `json:"replay,omitempty"`
	Bounds      []string `json:"bounds"`
	Changes     []string `json:"changes"`
	slots, pool int
}

// AtRate is what the model decodes at with a hit rate.
type AtRate struct {
	HitRate float64 `json:"hit_rate"`
	TokS    float64 `json:"decode_tok_s"`
	Read    float64 `json:"read_s_per_token"` // reading alone, if nothing were computed meanwhile
}

// report puts bursts and replay into words.
func (x *expertRun) report(ctx context.Context) *Report {
	r := &Report{Time: time.Now().Unix(), Path: x.opt.Engine.Model, Interrupted: ctx.Err() != nil, Lost: x.lost}
	paths, _ := x.cat.Shards()
	experts := int64(x.cat.Experts())
	opt := &Options{RW: "expert", NumJobs: 1, Runtime: x.opt.Runtime, FixedBufs: true, RegisterFiles: true}
	for _, b := range x.bursts {
		j := &job{opt: opt, backend: x.backend(), bs: x.cat.TotalBytes / experts, depth: b.missing, huge: true, tally: b.tally, parts: len(x.cat.Layers[0].Parts)}
		r.Jobs = append(r.Jobs, j.result(paths[0], 0))
	}
	r.Expert = x.verdict()
	return r
}

func (x *expertRun) backend() string {
	if b := x.opt.Engine.Backend; b != "" && b != "auto" {
		return b
	}
	for _, l := range x.lost {
		if strings.HasPrefix(l.What, "io_uring") && strings.Contains(l.Reason, "pread") {
			return "pread"
		}
	}
	return "ring"
}

func (x *expertRun) verdict() *ExpertVerdict {
	v := &ExpertVerdict{Compute: x.compute.alone.Seconds(), Beside: x.compute.beside.Seconds(), TokenBytes: x.cat.TokenBytes(), Replay: x.replay, pool: x.cat.Experts()}
	for _, n := range x.plan.Slots {
		v.slots += n
	}
	if last := x.bursts[len(x.bursts)-1]; last.tally.bytes > 0 {
		v.Bandwidth = last.tally.bandwidth()
		v.InFlight = last.tally.bytes / max(1, last.tally.clat.n)
	}
	for _, h := range []float64{0, 0.25, 0.5, 0.75, 0.9, 1} {
		v.At = append(v.At, x.at(h))
	}
	v.judge(x.cost)
	return v
}

// at expects what a token takes when each expert is there with probability h: m of a layer's experts are missing with the
// binomial probability, are read in the time of such a burst while the others are computed, both slower than alone, and the
// last to land is computed after.
func (x *expertRun) at(h float64) AtRate {
	layer, read := 0.0, 0.0
	for m := range x.cost.used + 1 {
		p := binomial(x.cost.used, m, 1-h)
		t := x.burstTime(m)
		compute := float64(x.cost.used) * x.cost.expert.Seconds()
		if m > 0 {
			compute = x.cost.overlapped(t, float64(x.cost.used-1)*x.cost.expert.Seconds()) + x.cost.expert.Seconds()
		}
		layer += p * compute
		read += p * t
	}
	layers := float64(x.cost.layers)
	return AtRate{HitRate: h, TokS: 1 / (layers * (layer + x.cost.layer.Seconds())), Read: layers * read}
}

// overlapped is how long reading and computing take together, in seconds, from what each takes alone.
func (c *cost) overlapped(reading, computing float64) float64 {
	both := min(reading/c.share, computing*c.slower)
	return both + reading - both*c.share + computing - both/c.slower
}

// burstTime interpolates between the bursts that were measured, 0 experts in no time; beyond the last it goes on in line.
func (x *expertRun) burstTime(m int) float64 {
	at, time := 0.0, 0.0
	for _, b := range x.bursts {
		if b.tally.clat.n == 0 {
			continue
		}
		n, t := float64(b.missing), b.tally.elapsed.Seconds()/float64(b.tally.clat.n)
		if float64(m) <= n {
			return time + (t-time)*(float64(m)-at)/(n-at)
		}
		at, time = n, t
	}
	if at == 0 {
		return 0
	}
	return time * float64(m) / at
}

func binomial(n, k int, p float64) float64 {
	c := 1.0
	for i := range k {
		c *= float64(n-i) / float64(i+1)
	}
	return c * math.Pow(p, float64(k)) * math.Pow(1-p, float64(n-k))
}

// judge says what limits: at the replayed rate, or else with half of the experts there.
func (v *ExpertVerdict) judge(c cost) {
	rate, wait := v.At[2].TokS, 1/v.At[2].TokS-v.Compute
	what := "with half of the experts in memory"
	if v.Replay != nil {
		rate, wait, what = v.Replay.TokS, v.Replay.Wait, "with the recorded routes"
	}
	if share := wait * rate; share > 0.5 {
		v.Bounds = append(v.Bounds, fmt.Sprintf("the disk: %s %.0f %% of a token's time is waiting for it", what, 100*share))
		v.Changes = append(v.Changes, "more memory (--ram) for more hits; a faster disk; a smaller quantisation of the experts")
	} else {
		v.Bounds = append(v.Bounds, fmt.Sprintf("computing: %s only %.0f %% of a token's time is waiting for the disk", what, 100*max(share, 0)))
		v.Changes = append(v.Changes, "more or faster cores (-t) and memory; the disk is fast enough")
	}
	if c.used > 1 && v.slots < v.pool/4 {
		v.Changes = append(v.Changes, fmt.Sprintf("the arena holds %d of %d experts: more --ram helps most where it is small", v.slots, v.pool))
	}
}

// Text is the verdict in a few lines.
func (v *ExpertVerdict) Text() string {
	var s strings.Builder
	fmt.Fprintf(&s, "this disk gives %.2f GB/s at %s in flight (the experts of one layer, read at once)\n", v.Bandwidth/1e9, sizeWord(v.InFlight))
	fmt.Fprintf(&s, "computing a token takes %.1f ms (%.1f tok/s with all experts in memory; %.1f ms while the disk reads); its experts have %s\n",
		1e3*v.Compute, 1/max(v.Compute, 1e-9), 1e3*v.Beside, sizeWord(v.TokenBytes))
	for _, a := range v.At {
		fmt.Fprintf(&s, "at a hit rate of %3.0f %% this model decodes at about %.1f tok/s at most (reading alone: %.1f ms per token)\n", 100*a.HitRate, a.TokS, 1e3*a.Read)
	}
	if r := v.Replay; r != nil {
		fmt.Fprintf(&s, "with the recorded routes in an arena of %d slots: %.1f %% hits, %.1f MiB per token, about %.1f tok/s, of which %.1f ms per token wait for the disk (nothing read ahead)\n",
			r.Slots, 100*r.HitRate, r.MiBPerToken, r.TokS, 1e3*r.Wait)
	}
	for _, b := range v.Bounds {
		fmt.Fprintln(&s, "what limits: "+b)
	}
	for _, c := range v.Changes {
		fmt.Fprintln(&s, "what to change: "+c)
	}
	return s.String()
}

// nearestFio is the command line that comes nearest to a burst of experts: slices of the mean size, all in flight.
func (j *job) nearestFio(path string) string {
	opt := *j.opt
	opt.RW, opt.Direct = "randread", uring.DirectPreferred
	near := job{opt: &opt, backend: j.backend, bs: max(1, j.bs/int64(j.parts)/512) * 512, depth: j.depth * j.parts, huge: j.huge}
	return near.fio(path, 0) + " # fio knows no whole experts: " + strconv.Itoa(j.depth*j.parts) + " slices of their mean size stay in flight"
}
