package iotest

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Histogram counts times in nanoseconds: exact below 64, then 64 buckets for every power of two, as fio's do (an error of
// 1.6 % at most).
type histogram struct {
	count    [64 * 59]int64
	n        int64
	sum, sq  float64
	min, max int64
}

func bucket(ns int64) int {
	if ns < 64 {
		return int(max(ns, 0))
	}
	shift := bits.Len64(uint64(ns)) - 7
	return 64*(shift+1) + int(ns>>shift) - 64
}

// middle is the time that a bucket stands for.
func middle(b int) float64 {
	if b < 64 {
		return float64(b)
	}
	shift := b/64 - 1
	return (float64(b%64+64) + 0.5) * float64(uint64(1)<<shift)
}

func (h *histogram) add(ns int64) {
	if h.n == 0 || ns < h.min {
		h.min = ns
	}
	h.max = max(h.max, ns)
	h.count[min(bucket(ns), len(h.count)-1)]++
	h.n++
	h.sum += float64(ns)
	h.sq += float64(ns) * float64(ns)
}

func (h *histogram) merge(o *histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	for i, c := range o.count {
		h.count[i] += c
	}
	h.n, h.sum, h.sq = h.n+o.n, h.sum+o.sum, h.sq+o.sq
}

func (h *histogram) mean() float64 {
	if h.n == 0 {
		return 0
	}
	return h.sum / float64(h.n)
}

func (h *histogram) deviation() float64 {
	if h.n < 2 {
		return 0
	}
	m := h.mean()
	return math.Sqrt(max(0, (h.sq-float64(h.n)*m*m)/float64(h.n-1)))
}

// percentile is the time that p per cent of all took at most.
func (h *histogram) percentile(p float64) float64 {
	if h.n == 0 {
		return 0
	}
	rank, seen := int64(math.Ceil(p/100*float64(h.n))), int64(0)
	for b, c := range h.count {
		if seen += c; seen >= max(rank, 1) {
			return min(max(middle(b), float64(h.min)), float64(h.max))
		}
	}
	return float64(h.max)
}

// window is how long bandwidth is averaged to tell slow phases from good ones: shorter than most of them.
const window = 25 * time.Millisecond

// tally is what a job did, over all its turns.
type tally struct {
	reads, bytes int64
	elapsed      time.Duration // on the clock of the device, turns added up
	user, system time.Duration // of the process
	slat, clat   histogram     // submission; from there to completion
	lat          histogram     // both
	windows      []int64       // bytes per window of a turn, the last and partial one left out
	blocks       int64         // patterns looked at
	wrong        []Wrong       // the first of them that were wrong
	errors       int64         // how many were
}

// maxWrong is how many wrong blocks are told in words.
const maxWrong = 8

func (t *tally) add(o *tally) {
	t.reads, t.bytes, t.elapsed = t.reads+o.reads, t.bytes+o.bytes, t.elapsed+o.elapsed
	t.user, t.system = t.user+o.user, t.system+o.system
	t.windows = append(t.windows, o.windows...)
	t.join(o)
}

// join is add for a thread that ran at the same time.
func (t *tally) join(o *tally) {
	t.slat.merge(&o.slat)
	t.clat.merge(&o.clat)
	t.lat.merge(&o.lat)
	t.blocks, t.errors = t.blocks+o.blocks, t.errors+o.errors
	t.wrong = append(t.wrong, o.wrong...)
	t.wrong = t.wrong[:min(len(t.wrong), maxWrong)]
}

// bandwidth is in bytes per second.
func (t *tally) bandwidth() float64 { return float64(t.bytes) / max(t.elapsed.Seconds(), 1e-9) }

// cpu is in seconds per 1e9 bytes.
func (t *tally) cpu() float64 {
	return (t.user + t.system).Seconds() / max(float64(t.bytes)/1e9, 1e-9)
}

// usual is the bytes of a window that others are compared with: the median, or the mean where most windows have next to
// nothing because a limit lets bytes through in bursts.
func (t *tally) usual() (bytes float64, bursts bool) {
	sum := int64(0)
	for _, w := range t.windows {
		sum += w
	}
	m, mean := float64(median(t.windows)), float64(sum)/float64(len(t.windows))
	return max(m, mean/2, 1), m < mean/2
}

// spread is (max - min) / usual of the windows' bandwidth; 0 with fewer than three.
func (t *tally) spread() float64 {
	if len(t.windows) < 3 {
		return 0
	}
	usual, _ := t.usual()
	return float64(slices.Max(t.windows)-slices.Min(t.windows)) / usual
}

// steady is the bandwidth of the good phases: of ten windows, the second best. It is the mean where a window has too few
// reads to say anything, and where bytes come in bursts.
func (t *tally) steady() float64 {
	if len(t.windows) < 3 || t.reads < int64(8*len(t.windows)) {
		return t.bandwidth()
	}
	if _, bursts := t.usual(); bursts {
		return t.bandwidth()
	}
	s := slices.Sorted(slices.Values(t.windows))
	return float64(s[(len(s)-1)*9/10]) / window.Seconds()
}

// slow is the share of windows below half of the usual: phases in which the disk was busy with others.
func (t *tally) slow() float64 {
	if len(t.windows) < 3 {
		return 0
	}
	n := 0
	usual, _ := t.usual()
	for _, w := range t.windows {
		if float64(w) < usual/2 {
			n++
		}
	}
	return float64(n) / float64(len(t.windows))
}

func median[T cmp.Ordered](list []T) T {
	s := slices.Clone(list)
	slices.Sort(s)
	return s[len(s)/2]
}
