package iotest

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onDisk runs a job on a made-up disk and its clock.
func onDisk(t *testing.T, disk fake.Options, bs int64, depth int, limit time.Duration) *job {
	t.Helper()
	memory := make([]byte, bs*int64(depth))
	disk.Depth = depth
	d := fake.New(disk, [][]byte{memory})
	w := newWorker(d, d.Now, newOrder(disk.Files[0].Size, bs, 4096, true, 1), depth)
	w.place = func(b int) (int, int64) { return 0, int64(b) * bs }
	w.memory = func(b int) []byte { return memory[int64(b)*bs : int64(b+1)*bs] }
	j := &job{opt: &Options{RW: "randread", NumJobs: 1, Runtime: limit}, backend: "ring", bs: bs, depth: depth, huge: true}
	parts := make([]tally, 1)
	if err := w.run(context.Background(), limit, &parts[0]); err != nil {
		t.Fatal(err)
	}
	j.tally = *gather(parts)
	return j
}

// A disk of 62.5 MB/s that needs 1 ms for every read is full with eight or nine reads of 8 KiB in flight.
func TestVerdictOfASlowDisk(t *testing.T) {
	disk := fake.Options{Files: []fake.File{{Name: "model", Size: 1 << 40}}, LatencyMin: time.Millisecond, BytesPerSecond: 62.5e6}
	var jobs []*job
	for _, depth := range []int{1, 2, 4, 8, 16, 32, 64} {
		jobs = append(jobs, onDisk(t, disk, 8<<10, depth, time.Second))
	}
	for _, j := range jobs {
		// Each read takes 1 ms and its turn in the channel, 131 us.
		want := min(62.5e6, float64(j.depth)*8192/1.131e-3)
		if got := j.tally.bandwidth(); got < 0.95*want || got > 1.02*want {
			t.Errorf("depth %d: %.3f MB/s, want %.3f", j.depth, got/1e6, want/1e6)
		}
		if little := j.tally.bandwidth() / float64(j.bs) * j.tally.lat.mean() / 1e9 / float64(j.depth); little < 0.95 || little > 1.05 {
			t.Errorf("depth %d: rate x latency / depth is %.3f", j.depth, little)
		}
	}
	v := judge(jobs)
	if v.Knee.InFlight != 16*8<<10 {
		t.Errorf("knee at %d bytes in flight", v.Knee.InFlight)
	}
	if text := v.Text(); !strings.Contains(text, "gives 0.06 GB/s at 128k in flight") || !strings.Contains(text, "only waiting grows") || strings.Contains(text, "slow phases") {
		t.Error(text)
	}
}

// Where more depth still helps, the verdict says so.
func TestVerdictOfALatencyBoundDisk(t *testing.T) {
	disk := fake.Options{Files: []fake.File{{Name: "model", Size: 1 << 40}}, LatencyMin: 10 * time.Millisecond, BytesPerSecond: 1e12}
	jobs := []*job{onDisk(t, disk, 4<<10, 1, time.Second), onDisk(t, disk, 4<<10, 4, time.Second)}
	if text := judge(jobs).Text(); !strings.Contains(text, "latency: bandwidth still grows") || !strings.Contains(text, "larger --bs or --iodepth") {
		t.Error(text)
	}
}

// A read in fifty that takes 100 ms is a disk with slow phases.
func TestVerdictOfASharedDisk(t *testing.T) {
	disk := fake.Options{Files: []fake.File{{Name: "model", Size: 1 << 40}}, LatencyMin: time.Millisecond, Reorder: true,
		Faults: []fake.Fault{{Probability: 0.02, Delay: 100 * time.Millisecond}}}
	if text := judge([]*job{onDisk(t, disk, 4<<10, 4, 4*time.Second)}).Text(); !strings.Contains(text, "slow phases in 1 of 1 jobs") {
		t.Error(text)
	}
}

// Bytes let through in bursts are what a limit does: the verdict is about the mean, and says that the disk is slow most of
// the time.
func TestVerdictOfAThrottledDisk(t *testing.T) {
	j := &job{opt: &Options{NumJobs: 1}, backend: "ring", bs: 1 << 20, depth: 8}
	for i := range 400 {
		w := int64(0)
		if i%4 == 0 {
			w = 20 << 20
		}
		j.tally.windows = append(j.tally.windows, w)
		j.tally.bytes += w
	}
	j.tally.reads, j.tally.elapsed = 10000, 400*window
	if s, m := j.tally.steady(), j.tally.bandwidth(); s != m || j.tally.spread() > 10 || j.tally.slow() != 0.75 {
		t.Errorf("steady %f, mean %f, spread %f, slow %f", s, m, j.tally.spread(), j.tally.slow())
	}
	if text := judge([]*job{j}).Text(); !strings.Contains(text, "gives 0.21 GB/s") || !strings.Contains(text, "75 % of the time below half of the usual speed") {
		t.Error(text)
	}
}

func TestKnee(t *testing.T) {
	points := []Point{{InFlight: 8, Steady: 100}, {InFlight: 4, Steady: 97}, {InFlight: 2, Steady: 96.9, Bandwidth: 99}, {InFlight: 6, Steady: 99}}
	if knee, best := Knee(points); knee.InFlight != 4 || best.InFlight != 8 {
		t.Error(knee, best)
	}
}

// Verified reads of a disk that gives the bytes of another place, of an older file, torn ones, none at all.
func TestWrongBlocks(t *testing.T) {
	const blocks = 64
	data := make([]byte, blocks*patternBytes)
	for i := range blocks {
		writePattern(data[i*patternBytes:(i+1)*patternBytes], int64(i)*patternBytes, 7)
	}
	writePattern(data[3*patternBytes:4*patternBytes], 3*patternBytes, 6)
	copy(data[5*patternBytes+512:], data[6*patternBytes+512:7*patternBytes])
	clear(data[9*patternBytes : 10*patternBytes])
	memory := make([]byte, 4*patternBytes)
	disk := fake.New(fake.Options{Files: []fake.File{{Name: "f", Data: data}}, Depth: 4, LatencyMin: time.Millisecond,
		Faults: []fake.Fault{{From: 12 * patternBytes, To: 13 * patternBytes, Misdirect: 8 * patternBytes}}}, [][]byte{memory})
	w := newWorker(disk, disk.Now, newOrder(int64(len(data)), patternBytes, 4096, true, 1), 4)
	w.place = func(b int) (int, int64) { return 0, int64(b) * patternBytes }
	w.memory = func(b int) []byte { return memory[b*patternBytes : (b+1)*patternBytes] }
	w.verify, w.gen = true, 7
	tl := &tally{}
	if err := w.run(context.Background(), 15500*time.Microsecond, tl); err != nil { // 64 reads, 4 at a time
		t.Fatal(err)
	}
	if tl.blocks != blocks || tl.errors != 4 {
		t.Fatalf("%d blocks, %d wrong: %v", tl.blocks, tl.errors, tl.wrong)
	}
	text := wrongBlocks([]*job{{tally: *tl}}).Error()
	for offset, want := range map[int64]string{3: "generation 6, wanted 7: stale", 5: "torn or damaged", 9: "holds no pattern", 12: "holds the block of offset 81920: misdirected"} {
		found := false
		for _, w := range tl.wrong {
			found = found || w.Offset == offset*patternBytes && strings.Contains(w.Why, want)
		}
		if !found {
			t.Errorf("block %d: no %q in %v", offset, want, tl.wrong)
		}
	}
	if !strings.Contains(text, "4 of 64 blocks read are wrong: block at offset ") || !errors.Is(wrongBlocks([]*job{{tally: *tl}}), ErrVerify) {
		t.Error(text)
	}
}

// Every block once per pass, in both orders, and the last one ends with the file.
func TestOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		bs := int64(512) << rnd.IntN(6)
		size := bs + rnd.Int64N(1000*bs)
		o := newOrder(size, bs, 512, rnd.IntN(4) > 0, rnd.Uint64())
		for range 2 {
			seen, end := map[int64]bool{}, int64(0)
			for range o.n {
				at := o.next()
				if at < 0 || at%512 != 0 || at+bs > size || seen[at] {
					t.Fatalf("size %d, bs %d: offset %d, seen %v", size, bs, at, seen[at])
				}
				seen[at], end = true, max(end, at+bs)
			}
			if end != size/512*512 || o.n != (size/512*512+bs-1)/bs {
				t.Fatalf("size %d, bs %d: %d blocks up to %d", size, bs, o.n, end)
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	var h, other histogram
	for i := range int64(100000) {
		if i%2 == 0 {
			h.add(i * 1000)
		} else {
			other.add(i * 1000)
		}
	}
	h.merge(&other)
	for _, p := range []float64{1, 50, 95, 99, 99.99} {
		if got, want := h.percentile(p), p*1e6; got < 0.98*want || got > 1.02*want {
			t.Errorf("percentile %v is %.0f", p, got)
		}
	}
	if h.n != 100000 || h.min != 0 || h.max != 99999000 || h.mean() != 49999500 {
		t.Errorf("%d, %d to %d, mean %f", h.n, h.min, h.max, h.mean())
	}
	h.add(1 << 62)
	if h.percentile(100) != float64(h.max) {
		t.Error("the largest time is lost")
	}
}

func kept(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	_, err := Run(context.Background(), Options{Path: path, Create: true, Keep: true, Size: size, Verify: true, Runtime: time.Millisecond, Backends: []string{"pread"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Both backends, several threads and jobs; what is reported agrees with itself.
func TestRun(t *testing.T) {
	path := kept(t, 4<<20)
	backends := []string{"ring", "pread"}
	if os.Getenv("EPQ_NO_RING") != "" {
		backends = backends[1:]
	}
	opt := Options{Path: path, Verify: true, Backends: backends, BlockSizes: []int64{4096, 64 << 10}, Depths: []int{1, 3}, HugePages: []bool{false, true},
		FixedBufs: true, RegisterFiles: true, NumJobs: 2, Runtime: 20 * time.Millisecond}
	r, err := Run(context.Background(), opt, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Jobs) != 8*len(backends) || r.Tool == nil || r.Verdict == nil || !r.Verdict.Swept {
		t.Fatalf("%d jobs, %+v", len(r.Jobs), r.Verdict)
	}
	for _, j := range r.Jobs {
		if j.Read.IOBytes != j.Read.TotalIOs*j.job.bs || j.Read.TotalIOs == 0 || j.Verify.Errors != 0 || j.Verify.Blocks*patternBytes != j.Read.IOBytes ||
			j.Read.Lat.N != j.Read.TotalIOs || j.Read.Clat.N != j.Read.TotalIOs {
			t.Errorf("%+v", j)
		}
	}
	for name, write := range map[string]func(*strings.Builder) error{
		"text": func(s *strings.Builder) error { return r.WriteText(s) }, "svg": func(s *strings.Builder) error { return r.WriteSVG(s) },
		"html": func(s *strings.Builder) error { return r.WriteHTML(s) }, "json": func(s *strings.Builder) error { return json.NewEncoder(s).Encode(r) },
	} {
		var s strings.Builder
		if err := write(&s); err != nil || !strings.Contains(s.String(), "64k") && name != "json" {
			t.Errorf("%s: %v: %s", name, err, s.String())
		}
	}
}

func TestCreate(t *testing.T) {
	path := kept(t, 1<<20)
	if g, err := generationOf(path); g != 1 || err != nil {
		t.Error(g, err)
	}
	again := Options{Path: path, Create: true, Size: 1 << 20, Verify: true, Runtime: time.Millisecond, Backends: []string{"pread"}}
	r, err := Run(context.Background(), again, nil)
	if err != nil || r.Jobs[0].Verify.Errors != 0 {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("not removed")
	}
	foreign := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(foreign, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := foreign + "-link"
	if err := os.Symlink(foreign, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{foreign, link} {
		again.Path = p
		if _, err := Run(context.Background(), again, nil); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if b, err := os.ReadFile(foreign); string(b) != "precious" || err != nil {
		t.Error("overwritten", err)
	}
	again.Path, again.Size = filepath.Join(t.TempDir(), "large"), 1<<60
	if _, err := Run(context.Background(), again, nil); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if _, err := os.Stat(again.Path); err == nil {
		t.Error("the failed file stays")
	}
}

func TestRefuses(t *testing.T) {
	path := kept(t, 1<<20)
	for name, c := range map[string]struct {
		opt  Options
		want error
	}{
		"rw":          {Options{RW: "write"}, ErrOption},
		"backend":     {Options{Backends: []string{"mmap"}}, ErrOption},
		"null verify": {Options{Backends: []string{"null"}, Verify: true}, ErrOption},
		"small bs":    {Options{BlockSizes: []int64{100}}, ErrOption},
		"odd bs":      {Options{BlockSizes: []int64{4096 + 100}}, ErrOption},
		"large bs":    {Options{BlockSizes: []int64{2 << 20}}, ErrOption},
		"depth":       {Options{Depths: []int{0}}, ErrOption},
		"memory":      {Options{Depths: []int{4096}, BlockSizes: []int64{4 << 20}}, ErrOption},
		"no file":     {Options{Path: path + "-none"}, os.ErrNotExist},
		"empty":       {Options{Path: t.TempDir()}, ErrNoFile},
		"odd verify":  {Options{Verify: true, BlockSizes: []int64{512}}, ErrOption},
	} {
		if c.opt.Path == "" {
			c.opt.Path = path
		}
		if _, err := Run(context.Background(), c.opt, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), Options{Path: path, Verify: true}, nil); !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
}

// An interrupted run gives what it has.
func TestInterrupted(t *testing.T) {
	path := kept(t, 1<<20)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r, err := Run(ctx, Options{Path: path, Backends: []string{"pread"}, Depths: []int{1, 2}}, nil)
	if err != nil || !r.Interrupted || r.Verdict != nil {
		t.Error(err, r)
	}
}

func TestFioCommand(t *testing.T) {
	opt := Options{RW: "randread", NumJobs: 1, Runtime: 2 * time.Second, FixedBufs: true, RegisterFiles: true, Direct: uring.DirectPreferred}
	j := job{opt: &opt, backend: "ring", bs: 131072, depth: 8}
	want := "fio --name=x --filename='/a b' --readonly --rw=randread --bs=131072 --direct=1 --runtime=2 --time_based --group_reporting --ioengine=io_uring --iodepth=8 --fixedbufs=1 --registerfiles=1 --numjobs=1"
	if got := j.fio("/a b", 1<<30); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if j.fioNote() != "" {
		t.Error(j.fioNote())
	}
	if j.huge = true; !strings.Contains(j.fio("/f", 1), "--iomem=shmhuge") || !strings.Contains(j.fioNote(), "vm.nr_hugepages=2;") {
		t.Error(j.fio("/f", 1), j.fioNote())
	}
}
