// Package iotest measures how fast this machine reads files the way experts are read, in fio's terms: jobs of one block
// size and depth, run in turns, with bandwidth, latencies and CPU. It reads with package uring, and whole experts with the
// pager itself. From its jobs it derives a verdict: how many bytes in flight the disk wants, and how many tokens per
// second it allows. Doctor looks at the machine's settings instead, and reads nothing to speak of.
package iotest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// Kinds of errors; match with errors.Is.
var (
	// ErrOption: an option that cannot be.
	ErrOption = errors.New("bad option")
	// ErrForeign: a file is in the way that iotest did not write.
	ErrForeign = errors.New("not a file of iotest")
	// ErrNoFile: there is nothing to read.
	ErrNoFile = errors.New("no file to read")
	// ErrVerify: blocks do not hold what was written.
	ErrVerify = errors.New("wrong data")
)

// Options say what to measure. The lists make one job for each combination.
type Options struct {
	Path          string   // a file, or a folder: its largest file, or with Create a new one in it
	RW            string   // "randread" (default) or "read"
	Backends      []string // "auto" (default: ring, or pread where that is refused), "ring", "pread", "null"
	BlockSizes    []int64  // bytes of a read
	Depths        []int    // reads in flight
	HugePages     []bool   // memory on huge pages
	Direct        uring.DirectMode
	FixedBufs     bool // memory is registered (ring)
	RegisterFiles bool // files are registered (ring)
	SQPoll        bool // the kernel polls for requests (ring)
	NumJobs       int  // threads that do the same at once, each with a device of its own
	Runtime       time.Duration
	Size          int64 // how much of the file is used, or made; 0: all of it, or DefaultSize
	Create, Keep  bool  // make the file, leave it
	Verify        bool  // check the pattern that Create writes
}

// DefaultSize of a file that is made: far more than a disk's own cache.
const DefaultSize = 4 << 30

// Defaults of a job: a slice of an expert, and as many of them in flight as keep most disks busy.
const (
	DefaultBlockSize = 512 << 10
	DefaultDepth     = 8
	DefaultRuntime   = 2 * time.Second
)

// SweepDepths are the depths that find how many bytes in flight a disk wants.
func SweepDepths() []int { return []int{1, 2, 3, 4, 6, 8, 12, 16, 32, 64} }

// maxBuffers bounds the memory of a job: depth x block size x threads.
const maxBuffers = 8 << 30

// withDefaults fills in and checks what needs no file.
func (o Options) withDefaults() (Options, error) {
	if o.RW == "" {
		o.RW = "randread"
	}
	if o.RW != "randread" && o.RW != "read" {
		return o, fmt.Errorf("iotest: --rw is %q, allowed are read, randread and expert: %w", o.RW, ErrOption)
	}
	if len(o.Backends) == 0 {
		o.Backends = []string{"auto"}
	}
	for _, b := range o.Backends {
		switch {
		case !slices.Contains([]string{"auto", "ring", "pread", "null"}, b):
			return o, fmt.Errorf("iotest: --backend is %q, allowed are auto, ring, pread, null and all: %w", b, ErrOption)
		case b == "null" && o.Verify:
			return o, fmt.Errorf("iotest: --backend null reads nothing that --verify could check: %w", ErrOption)
		}
	}
	if len(o.BlockSizes) == 0 {
		o.BlockSizes = []int64{DefaultBlockSize}
	}
	if len(o.Depths) == 0 {
		o.Depths = []int{DefaultDepth}
	}
	if len(o.HugePages) == 0 {
		o.HugePages = []bool{true}
	}
	if o.NumJobs == 0 {
		o.NumJobs = 1
	}
	if o.Runtime == 0 {
		o.Runtime = DefaultRuntime
	}
	if o.NumJobs < 1 || o.NumJobs > 256 || o.Runtime < 0 || o.Size < 0 {
		return o, fmt.Errorf("iotest: --numjobs %d, --runtime %v, --size %d: want 1 to 256, and nothing negative: %w", o.NumJobs, o.Runtime, o.Size, ErrOption)
	}
	return o, o.checkBlocks()
}

func (o *Options) checkBlocks() error {
	for _, bs := range o.BlockSizes {
		switch {
		case bs < 512 || bs > 1<<30:
			return fmt.Errorf("iotest: --bs %d, allowed are 512 bytes to 1 GiB: %w", bs, ErrOption)
		case o.Verify && bs%patternBytes != 0:
			return fmt.Errorf("iotest: --bs %d with --verify: want a multiple of %d, the size of a pattern: %w", bs, patternBytes, ErrOption)
		}
		for _, d := range o.Depths {
			if d < 1 || d > 4096 {
				return fmt.Errorf("iotest: --iodepth %d, allowed are 1 to 4096: %w", d, ErrOption)
			}
			if int64(d)*bs*int64(o.NumJobs) > maxBuffers {
				return fmt.Errorf("iotest: --iodepth %d x --bs %d x --numjobs %d takes %d bytes of memory, at most %d are allowed: %w",
					d, bs, o.NumJobs, int64(d)*bs*int64(o.NumJobs), int64(maxBuffers), ErrOption)
			}
		}
	}
	return nil
}

// job is one combination.
type job struct {
	opt     *Options
	backend string
	bs      int64
	depth   int
	huge    bool

	parts  int // reads of an expert, where whole experts are read
	tally  tally
	orders []*order // per thread; they go on from turn to turn
}

// jobs lists the combinations, depths innermost.
func (o *Options) jobs() []*job {
	var list []*job
	for _, b := range o.Backends {
		for _, huge := range o.HugePages {
			for _, bs := range o.BlockSizes {
				for _, d := range o.Depths {
					list = append(list, &job{opt: o, backend: b, bs: bs, depth: d, huge: huge})
				}
			}
		}
	}
	return list
}

// inFlight is how many bytes the job keeps on their way.
func (j *job) inFlight() int64 { return j.bs * int64(j.depth) * int64(j.opt.NumJobs) }

// device are the options of package uring for the job.
func (j *job) device() uring.Options {
	o := uring.Options{Backend: j.backend, Depth: j.depth, PlainBuffers: !j.opt.FixedBufs, PlainFiles: !j.opt.RegisterFiles, SQPoll: j.opt.SQPoll}
	if j.backend == "pread" {
		o.Threads = min(j.depth, maxThreads)
	}
	return o
}

// maxThreads is how many threads a pread device has at most.
const maxThreads = 64

// fio is the command line that does the same with fio.
func (j *job) fio(path string, size int64) string {
	if j.parts > 0 {
		return j.nearestFio(path)
	}
	w := []string{"fio", "--name=x", "--filename=" + quote(path), "--readonly", "--rw=" + j.opt.RW, "--bs=" + strconv.FormatInt(j.bs, 10),
		"--direct=" + bit(j.opt.Direct != uring.DirectOff), "--runtime=" + strconv.FormatFloat(j.opt.Runtime.Seconds(), 'f', -1, 64), "--time_based", "--group_reporting"}
	if j.opt.Size > 0 {
		w = append(w, "--size="+strconv.FormatInt(size, 10))
	}
	switch j.backend {
	case "ring":
		w = append(w, "--ioengine=io_uring", "--iodepth="+strconv.Itoa(j.depth), "--fixedbufs="+bit(j.opt.FixedBufs), "--registerfiles="+bit(j.opt.RegisterFiles))
		if j.opt.SQPoll {
			w = append(w, "--sqthread_poll=1")
		}
		w = append(w, "--numjobs="+strconv.Itoa(j.opt.NumJobs))
	case "pread":
		w = append(w, "--ioengine=psync", "--thread", "--numjobs="+strconv.Itoa(min(j.depth, maxThreads)*j.opt.NumJobs))
	case "null":
		w = append(w, "--ioengine=null", "--iodepth="+strconv.Itoa(j.depth), "--numjobs="+strconv.Itoa(j.opt.NumJobs))
	}
	if j.huge && j.backend != "null" {
		w = append(w, "--iomem=shmhuge")
	}
	return strings.Join(w, " ")
}

// fioNote says where the same command line does not measure the same.
func (j *job) fioNote() string {
	if !j.huge || j.backend == "null" {
		return ""
	}
	return fmt.Sprintf("fio has no transparent huge pages: --iomem=shmhuge needs sysctl vm.nr_hugepages=%d; without it fio reads into pages of 4 KiB and may understate the disk by half",
		(j.inFlight()+2<<20-1)/(2<<20)+1)
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// quote makes a path one word of a shell.
func quote(s string) string {
	for _, r := range s {
		if !strings.ContainsRune("/._-+=:,@%", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return s
}
