package iotest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Point is one job of a sweep: bytes per second at so many bytes in flight.
type Point struct {
	InFlight  int64   `json:"bytes_in_flight"`
	Bandwidth float64 `json:"bw_bytes"`        // mean
	Steady    float64 `json:"bw_steady_bytes"` // of the good phases: what the disk can do when nobody disturbs it
	P50       float64 `json:"p50_ns"`
	P99       float64 `json:"p99_ns"`
}

// kneeShare of the best bandwidth is enough: what is gained beyond costs latency in line with the bytes in flight.
const kneeShare = 0.97

// Knee returns the point with the fewest bytes in flight that has 97 % of the best steady bandwidth, and the best. points
// must not be empty.
func Knee(points []Point) (knee, best Point) {
	best = slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(a.Steady, b.Steady) })
	knee = best
	for _, p := range points {
		if p.Steady >= kneeShare*best.Steady && p.InFlight < knee.InFlight {
			knee = p
		}
	}
	return knee, best
}

// Verdict says what the jobs mean.
type Verdict struct {
	Knee    Point    `json:"knee"`
	Best    Point    `json:"best"`
	Swept   bool     `json:"swept"`   // several depths or sizes: the knee is one
	Bounds  []string `json:"bounds"`  // what limits
	Changes []string `json:"changes"` // what to do
}

// Text is the verdict in a few lines.
func (v *Verdict) Text() string {
	var s strings.Builder
	fmt.Fprintf(&s, "this disk gives %.2f GB/s at %s in flight", v.Knee.Steady/1e9, sizeWord(v.Knee.InFlight))
	if v.Swept {
		fmt.Fprintf(&s, " (best: %.2f GB/s at %s)", v.Best.Steady/1e9, sizeWord(v.Best.InFlight))
	} else {
		s.WriteString("; lists of --bs or --iodepth show where it is full")
	}
	if v.Knee.Bandwidth < (1-gainShare)*v.Knee.Steady {
		fmt.Fprintf(&s, "; that is in good phases, over all of the time it gave %.2f GB/s", v.Knee.Bandwidth/1e9)
	}
	s.WriteString("\n")
	for _, b := range v.Bounds {
		fmt.Fprintln(&s, "what limits: "+b)
	}
	for _, c := range v.Changes {
		fmt.Fprintln(&s, "what to change: "+c)
	}
	return s.String()
}

// What makes a finding of a number. The disk of docs/io.md has a p99 of twice the p50 in good phases and of ten times and
// more in bad ones.
const (
	slowShare = 0.05 // of the windows
	slowTail  = 8    // p99 / p50
	busyCPU   = 0.9  // of one CPU
	gainShare = 0.1  // of bandwidth, that makes a change worth naming
)

// judge looks at the jobs that read a disk; nil if none did.
func judge(jobs []*job) *Verdict {
	var read []*job
	for _, j := range jobs {
		if j.backend != "null" && j.tally.bytes > 0 {
			read = append(read, j)
		}
	}
	if len(read) == 0 {
		return nil
	}
	best := slices.MaxFunc(read, func(a, b *job) int { return cmp.Compare(a.tally.bandwidth(), b.tally.bandwidth()) })
	var points []Point
	for _, j := range read {
		if j.backend == best.backend && j.huge == best.huge {
			points = append(points, j.point())
		}
	}
	v := &Verdict{Swept: len(points) > 1}
	v.Knee, v.Best = Knee(points)
	v.judgeShape(points)
	v.judgeJobs(read, best)
	return v
}

func (j *job) point() Point {
	return Point{InFlight: j.inFlight(), Bandwidth: j.tally.bandwidth(), Steady: j.tally.steady(), P50: j.tally.clat.percentile(50), P99: j.tally.clat.percentile(99)}
}

// judgeShape looks at how bandwidth grows with the bytes in flight.
func (v *Verdict) judgeShape(points []Point) {
	if !v.Swept {
		return
	}
	most := slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(a.InFlight, b.InFlight) })
	switch {
	case v.Knee.InFlight == most.InFlight:
		v.Bounds = append(v.Bounds, "latency: bandwidth still grows at the most bytes in flight")
		v.Changes = append(v.Changes, "measure larger --bs or --iodepth to find where the disk is full")
	case most.P50 > 1.5*v.Knee.P50:
		v.Bounds = append(v.Bounds, fmt.Sprintf("the disk's bandwidth: beyond %s in flight only waiting grows, from %.0f to %.0f us (median)", sizeWord(v.Knee.InFlight), v.Knee.P50/1e3, most.P50/1e3))
	default:
		v.Bounds = append(v.Bounds, "the disk's bandwidth")
	}
}

// judgeJobs looks at noise, CPU and what the better of two settings gains.
func (v *Verdict) judgeJobs(read []*job, best *job) {
	var slow []string
	for _, j := range read {
		p50, p99 := j.tally.clat.percentile(50), j.tally.clat.percentile(99)
		if j.tally.slow() > slowShare || p99 > slowTail*p50 && j.tally.clat.n >= 100 {
			slow = append(slow, fmt.Sprintf("%s x %d: p99 %.0f us, p50 %.0f us, %.0f %% of the time below half of the usual speed", sizeWord(j.bs), j.depth, p99/1e3, p50/1e3, 100*j.tally.slow()))
		}
	}
	if len(slow) > 0 {
		v.Bounds = append(v.Bounds, fmt.Sprintf("slow phases in %d of %d jobs (%s): a throttled disk, one shared with others, or a busy CPU", len(slow), len(read), slow[0]))
		v.Changes = append(v.Changes, "a longer --runtime evens slow phases out; epq-uring doctor names limits of the control group")
	}
	if cpus := (best.tally.user + best.tally.system).Seconds() / max(best.tally.elapsed.Seconds(), 1e-9); cpus > busyCPU && !best.opt.SQPoll {
		v.Bounds = append(v.Bounds, fmt.Sprintf("the CPU: %.2f of a core at %.2f GB/s", cpus, best.tally.bandwidth()/1e9))
		v.Changes = append(v.Changes, "larger --bs, --direct 1, --fixedbufs 1 and --hugepages 1 cost less CPU per byte")
	}
	if gain := gainOf(read, func(j *job) bool { return j.huge }); gain > gainShare {
		v.Changes = append(v.Changes, fmt.Sprintf("keep huge pages on: they give %.0f %% more bandwidth here", 100*gain))
	}
	if gain := gainOf(read, func(j *job) bool { return j.backend == "ring" }); gain > gainShare {
		v.Changes = append(v.Changes, fmt.Sprintf("keep io_uring: it gives %.0f %% more bandwidth than pread here", 100*gain))
	}
}

// gainOf compares the best job that has something with the best that has not.
func gainOf(read []*job, has func(*job) bool) float64 {
	with, without := 0.0, 0.0
	for _, j := range read {
		if has(j) {
			with = max(with, j.tally.bandwidth())
		} else {
			without = max(without, j.tally.bandwidth())
		}
	}
	if with == 0 || without == 0 {
		return 0
	}
	return with/without - 1
}
