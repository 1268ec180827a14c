package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/kernels"
	"github.com/epq-uring/epq-uring/prefetch"
	"github.com/epq-uring/epq-uring/uring"
)

// ErrOption is the kind of an option that cannot be.
var ErrOption = errors.New("bad option")

// Options say what to load and how. The zero value of a field means its default.
type Options struct {
	Model      string // a shard, or the folder of a set of shards
	RAM        string // "auto" (default), "min", or a size: the memory the process may use
	Context    int    // tokens per sequence; 0: the smaller of 8192 and the model's; -1: the largest that fits
	Batch      int    // tokens a prompt is fed in before others get a turn; default 2048
	UBatch     int    // tokens of one forward pass; default 512
	Threads    int    // default: the CPU quota
	NUMA       string // "interleave" (default with several nodes), "bind" or "off"
	Parallel   int    // sequences side by side; default 1
	Queue      int    // requests that may wait; default 64
	CacheTypeK string // "f16" (default), "f32", "q8_0"
	CacheTypeV string
	Backend    string // "auto" (default), "ring", "pread", "null"
	Kernels    string // "" (the plug-in's, else the best) or a set's name
	// KernelPlugin is a shared object with a set of kernels; "": none.
	KernelPlugin string
	// Buffered reads experts through the page cache, for comparing: O_DIRECT is faster and takes no memory.
	Buffered    bool
	InFlight    int    // bytes in flight that keep the disk busy, up to which guesses are read; 0: uring.DefaultInFlight
	EvictPolicy string // "" (the default policy) or a name
	StaleTokens int    // for least_stale; 0: its default
	Prefetch    string // "auto" (default) or another of prefetch.Modes: what is read before it is asked for
	Future      Future // of "oracle"
	MTP         string // "auto" (default), "off", or how many tokens the model's own block of multi-token prediction always drafts
	DraftNgram  string // "auto" (default), "on" or "off": tokens drafted from the text so far
	Resident    string // "auto" (default), "mmap", "copy" or "lock": how the weights outside the experts are held
	// RequestBytes is what requests in progress may take of the Go heap besides a few small ones: bodies, texts, tokens.
	RequestBytes int64
	LogitRows    int  // rows of logits kept at a time; 0: one per sequence
	NoTokenizer  bool // for files without a vocabulary: token ids only
	Chat         bool // chats are asked for: a template that cannot be used is an error, else raw text can be continued

	// WarmDir is a folder where the engine keeps, per model, which experts are hot, to read them first at the next start;
	// "": nothing is kept or read ahead.
	WarmDir string
	Verify  bool   // compare every slice read with its checksum (CRC32C), as Verify took them down
	Sums    string // file of the checksums; "": beside the first shard

	// Record, if set, is called once everything is planned; what it returns takes down the experts of every use. sizes are
	// the shards' in bytes.
	Record func(cat *expert.Catalog, plan *expert.Plan, sizes []int64) (Recorder, error)

	// WrapDevice lets tests put faults and delays between pager and disk.
	WrapDevice func(uring.Device) uring.Device

	places    places
	mtpTokens int // what MTP says as a number; 0: it is a word
}

const (
	defaultContext = 8192
	defaultBatch   = 2048
	defaultUBatch  = 512
	defaultQueue   = 64
	maxParallel    = 256
)

// withDefaults fills in and checks what needs no model.
func (o Options) withDefaults() (Options, error) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.Batch, defaultBatch)
	def(&o.UBatch, defaultUBatch)
	def(&o.Parallel, 1)
	def(&o.Queue, defaultQueue)
	quota, _ := kernels.DefaultThreads()
	var err error
	if o.places, o.Threads, err = placesFor(o.NUMA, mem.Nodes(), kernels.AllowedCPUs(), o.Threads, quota); err != nil {
		return o, err
	}
	if o.RAM == "" {
		o.RAM = "auto"
	}
	if o.CacheTypeK == "" {
		o.CacheTypeK = "f16"
	}
	if o.CacheTypeV == "" {
		o.CacheTypeV = "f16"
	}
	if o.Prefetch == "" {
		o.Prefetch = prefetch.Auto
	}
	if !slices.Contains(prefetch.Modes(), o.Prefetch) {
		return o, fmt.Errorf("engine: --prefetch is %q, allowed are %s: %w", o.Prefetch, strings.Join(prefetch.Modes(), ", "), ErrOption)
	}
	if o.MTP == "" {
		o.MTP = Auto
	}
	if o.DraftNgram == "" {
		o.DraftNgram = Auto
	}
	if o.mtpTokens, err = draftOptions(o.MTP, o.DraftNgram); err != nil {
		return o, err
	}
	if o.Resident == "" {
		o.Resident = "auto"
	}
	for _, c := range []struct {
		name     string
		v        int
		low, top int
	}{
		{"-b", o.Batch, 1, 1 << 20}, {"-ub", o.UBatch, 1, 1 << 16}, {"--parallel", o.Parallel, 1, maxParallel},
		{"-t", o.Threads, 1, 1024}, {"--queue", o.Queue, 1, 1 << 20}, {"-c", o.Context, -1, math.MaxInt32},
	} {
		if c.v < c.low || c.v > c.top {
			return o, fmt.Errorf("engine: %s is %d, allowed is %d to %d: %w", c.name, c.v, c.low, c.top, ErrOption)
		}
	}
	o.UBatch = min(o.UBatch, o.Batch)
	return o, nil
}

// cacheType turns the name of a KV cache type into the type.
func cacheType(flag, name string) (gguf.Type, error) {
	switch strings.ToLower(name) {
	case "f16":
		return gguf.F16, nil
	case "f32":
		return gguf.F32, nil
	case "q8_0":
		return gguf.Q8_0, nil
	}
	return 0, fmt.Errorf("engine: %s is %q, allowed are f16, f32 and q8_0: %w", flag, name, ErrOption)
}

// ParseSize reads a size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB mean the same), powers of 1024 as fio has them.
func ParseSize(s string) (int64, error) {
	t := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B"), "I")
	shift := 0
	if n := len(t); n > 0 {
		if i := strings.IndexByte("KMGT", t[n-1]); i >= 0 {
			shift, t = 10*(i+1), t[:n-1]
		}
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || !(v >= 0) || v*float64(int64(1)<<shift) > 1<<62 {
		return 0, fmt.Errorf("engine: %q is not a size; write bytes or 512M, 8GiB: %w", s, ErrOption)
	}
	return int64(v * float64(int64(1)<<shift)), nil
}
