package kernels

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/ggml_cgo"
)

// counts records how often each unit ran and who ran it.
type counts struct {
	units   []atomic.Int32
	workers []atomic.Int32
}

func (c *counts) Do(worker, unit int) {
	c.units[unit].Add(1)
	c.workers[worker].Add(1)
}

func newCounts(units, threads int) *counts {
	return &counts{units: make([]atomic.Int32, units), workers: make([]atomic.Int32, threads)}
}

func TestPoolRunsEachUnitOnce(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, threads := range []int{1, 2, 5} {
		p, err := NewPool(threads, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, units := range []int{0, 1, 2, 3, 17, 1000} {
			for range 50 {
				c := newCounts(units, threads)
				p.Run(c, units)
				for u := range c.units {
					if n := c.units[u].Load(); n != 1 {
						t.Fatalf("%d threads: unit %d of %d ran %d times", threads, u, units, n)
					}
				}
			}
		}
		p.Close()
		p.Close()
	}
}

// gather makes every worker of a pool run at least one unit and calls fn there.
type gather struct {
	threads int
	here    []atomic.Bool
	count   atomic.Int32
	fn      func(worker int)
}

func (g *gather) Do(worker, _ int) {
	if !g.here[worker].Swap(true) {
		g.fn(worker)
		g.count.Add(1)
	}
	for int(g.count.Load()) < g.threads {
		runtime.Gosched()
	}
}

func onAll(p *Pool, fn func(worker int)) {
	g := &gather{threads: p.Threads(), here: make([]atomic.Bool, p.Threads()), fn: fn}
	p.Run(g, p.Threads())
}

func TestPoolWorkersWakeAfterParking(t *testing.T) {
	defer goleak.VerifyNone(t)
	p, err := NewPool(3, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 20 {
		for p.asleep.Load() < 2 { // the state to test, not a delay
			time.Sleep(time.Millisecond / 4)
		}
		var ran atomic.Int32
		onAll(p, func(int) { ran.Add(1) })
		if ran.Load() != 3 {
			t.Fatalf("%d of 3 workers ran", ran.Load())
		}
	}
}

func TestPoolPinsEachWorkerToItsOwnCPU(t *testing.T) {
	cpus := AllowedCPUs()
	if len(cpus) < 2 {
		t.Skip("one CPU allowed")
	}
	defer goleak.VerifyNone(t)
	done := make(chan struct{})
	go func() { // this goroutine's thread ends bound, with the goroutine
		defer close(done)
		runtime.LockOSThread()
		p, err := NewPool(2, AllowedCPUs())
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		if !p.Pinned() {
			t.Error("not pinned")
			return
		}
		if err := p.PinCaller(); err != nil {
			t.Error(err)
			return
		}
		var sets [2]unix.CPUSet
		var words [2]uint32
		onAll(p, func(w int) {
			if err := unix.SchedGetaffinity(0, &sets[w]); err != nil {
				t.Error(err)
			}
			words[w] = ggml_cgo.FloatControl()
		})
		for w := range sets {
			if sets[w].Count() != 1 || !sets[w].IsSet(cpus[w]) {
				t.Errorf("worker %d may run on %d CPUs, CPU %d: %v", w, sets[w].Count(), cpus[w], sets[w].IsSet(cpus[w]))
			}
		}
		if words[0] != words[1] {
			t.Errorf("control words %#x and %#x", words[0], words[1])
		}
	}()
	<-done
}

func TestPoolDoesNotAllocate(t *testing.T) {
	p, err := NewPool(2, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := newCounts(64, 2)
	if n := testing.AllocsPerRun(100, func() { p.Run(c, 64) }); n != 0 {
		t.Errorf("%v allocations per Run", n)
	}
}

type nested struct {
	p   *Pool
	got any
}

func (n *nested) Do(_, _ int) {
	defer func() { n.got = recover() }()
	n.p.Run(n, 1)
}

func TestPoolMisuse(t *testing.T) {
	for _, n := range []int{-1, 0, 1025} {
		if _, err := NewPool(n, nil); !errors.Is(err, ErrThreads) {
			t.Errorf("%d threads: %v", n, err)
		}
	}
	p, err := NewPool(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &nested{p: p}
	p.Run(n, 1)
	if n.got == nil {
		t.Error("a Run inside Run went through")
	}
	p.Close()
	defer func() {
		if recover() == nil {
			t.Error("a Run after Close went through")
		}
	}()
	p.Run(newCounts(2, 1), 2)
}

func TestDefaultThreads(t *testing.T) {
	raw, err := os.ReadFile("testdata/b65_cpu.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Quota []struct {
			Name     string
			Affinity int
			Max      []string `json:"cpu.max"`
			V1       *int     `json:"cpu.cfs_quota_us"`
			Online   int
			Threads  int
		}
	}
	if err := json.Unmarshal(raw, &cases); err != nil || len(cases.Quota) == 0 {
		t.Fatal(err, len(cases.Quota))
	}
	for _, c := range cases.Quota {
		root := t.TempDir()
		allowed := c.Online
		if c.Affinity > 0 {
			allowed = c.Affinity
		}
		if c.V1 != nil {
			write(t, root, "proc/self/mountinfo", "31 30 0:28 /box /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n")
			write(t, root, "proc/self/cgroup", "4:cpu,cpuacct:/box/inner\n")
			write(t, root, "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", fmt.Sprintln(*c.V1))
			write(t, root, "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n")
		} else {
			write(t, root, "proc/self/mountinfo", "30 22 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
			write(t, root, "proc/self/cgroup", "0::"+strings.Repeat("/g", len(c.Max))+"\n")
			for i, line := range c.Max { // innermost first
				write(t, root, "sys/fs/cgroup"+strings.Repeat("/g", len(c.Max)-i)+"/cpu.max", line+"\n")
			}
		}
		if got, why := defaultThreads(root, allowed); got != c.Threads {
			t.Errorf("%s: %d threads (%s), want %d", c.Name, got, why, c.Threads)
		}
	}
}

func TestDefaultThreadsVersion1Quota(t *testing.T) {
	root := t.TempDir()
	write(t, root, "proc/self/mountinfo", "31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")
	write(t, root, "proc/self/cgroup", "2:cpuacct:/\n1:cpu:/a/b\n")
	write(t, root, "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "350000\n")
	write(t, root, "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")
	got, why := defaultThreads(root, 8)
	if got != 3 || !strings.Contains(why, "3.50 CPUs by the quota in") {
		t.Errorf("%d threads: %s", got, why)
	}
}

func TestDefaultThreadsNamesSlowCores(t *testing.T) {
	root := t.TempDir()
	for i := range 6 {
		write(t, root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", i), []string{"5400000\n", "5500000\n", "4100000\n"}[i/2])
	}
	if got, why := defaultThreads(root, 6); got != 6 || !strings.Contains(why, "4 fast and 2 slow") {
		t.Errorf("%d threads: %s", got, why)
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	f := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

type empty struct{}

func (empty) Do(_, _ int) {}

// BenchmarkHandOver is the cost of one operation of as many empty units as workers.
func BenchmarkHandOver(b *testing.B) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		p, err := NewPool(min(2, len(AllowedCPUs())), AllowedCPUs())
		if err != nil {
			b.Error(err)
			return
		}
		defer p.Close()
		if err := p.PinCaller(); err != nil {
			b.Error(err)
		}
		b.ResetTimer()
		for range b.N {
			p.Run(empty{}, 2)
		}
		b.StopTimer()
	}()
	<-done
}

// BenchmarkMeet is the cost of one operation in which both workers must take part: hand-over there and back.
func BenchmarkMeet(b *testing.B) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		p, err := NewPool(min(2, len(AllowedCPUs())), AllowedCPUs())
		if err != nil {
			b.Error(err)
			return
		}
		defer p.Close()
		if err := p.PinCaller(); err != nil {
			b.Error(err)
		}
		m := &meeting{n: int32(p.Threads())}
		b.ResetTimer()
		for range b.N {
			m.here.Store(0)
			p.Run(m, p.Threads())
		}
		b.StopTimer()
	}()
	<-done
}

// meeting is a task of one unit per worker that ends when every unit has begun.
type meeting struct {
	n    int32
	here atomic.Int32
}

func (m *meeting) Do(_, _ int) {
	m.here.Add(1)
	for m.here.Load() < m.n {
	}
}

// count counts units and what lies between them.
type count struct{ units, between atomic.Int64 }

func (c *count) Do(int, int) { c.units.Add(1) }

func TestBetween(t *testing.T) {
	for _, threads := range []int{1, 3} {
		p, err := NewPool(threads, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &count{}
		p.Between(func() { c.between.Add(1) })
		p.Run(c, 100)
		p.Close()
		if n := c.between.Load(); c.units.Load() != 100 || n == 0 && threads == 1 || n > 100 {
			t.Errorf("%d threads: %d units, %d calls between", threads, c.units.Load(), n)
		}
	}
}
