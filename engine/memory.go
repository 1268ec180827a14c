package engine

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/model"
	"github.com/epq-uring/epq-uring/uring"
)

// What a process takes besides what it asks for by name, measured on linux/amd64 with Go 1.26; TestDataLimit runs an
// engine under RLIMIT_DATA at its minimum, where a term too small ends the process.
const (
	heapBase   = 12 << 20 // live objects of a small model and the garbage between two collections
	heapMargin = 4 << 20  // what a collection in progress lets the heap overshoot
	// The header of a file (metadata, vocabulary, tensor table) is held once as text with its indices and, while it is
	// read, once more as it was.
	heapPerHeader = 5 // halves

	arenaIndex    = 32 << 20  // the runtime's index of heap arenas (4 Mi pointers): mapped whole, hardly touched
	runtimeTables = 6 << 20   // spans, page bitmaps and caches of the runtime, and glibc's heap
	stackBytes    = 256 << 10 // of a thread: ggml_cgo/stack.c
	stackTouched  = 64 << 10
	// Threads besides those that compute and those that run Go code: sysmon, the template of locked threads, signals,
	// four of pread or as many system calls that block, and some on their way out.
	spareThreads = 12

	kernelBytes  = 6 << 20 // a process's share of slab: threads, files, sockets, the ring's queues, upper page tables
	entryBytes   = 8       // of a page table, per page
	pinnedBytes  = 16      // of the table of registered buffers, per page (struct bio_vec)
	pageBytes    = 4096
	heapPages    = 4 << 20 // the runtime grows its heap by these
	weightsTerm  = "resident weights"
	kernelsShare = "kernel memory (page tables, registered buffers, slab)"
)

// needs is what a context takes, whatever the limit.
type needs struct {
	context  int
	model    *model.Model
	sizes    model.Sizes
	resident int64
}

func (e *Engine) needsOf(context int) (*needs, error) {
	m, err := model.New(e.file, e.cfg, model.Options{
		Context: context, UBatch: min(e.opt.UBatch, context), Sequences: e.opt.Parallel, Drafts: e.drafts, Predict: e.mtp, LogitRows: e.opt.LogitRows,
		TypeK: e.typeK, TypeV: e.typeV, Threads: e.opt.Threads,
	})
	if err != nil {
		return nil, err
	}
	return &needs{context: context, model: m, sizes: m.Sizes(), resident: residentBytes(m.Resident())}, nil
}

// terms lists what is held besides the arena, which shall have so many bytes. Under a limit on physical memory the page
// cache, the kernel's share and what is touched count; else what is mapped, as RLIMIT_DATA counts it.
func (e *Engine) terms(n *needs, physical bool, how string, arena int64) []expert.Term {
	weights := expert.Term{Name: weightsTerm, Bytes: n.resident, Kind: expert.File, Counted: physical}
	if how == "copy" {
		weights.Kind, weights.Counted = expert.Anonymous, true
	}
	ts := []expert.Term{
		weights,
		anonymous("kv cache", n.sizes.KV),
		anonymous("recurrent state", n.sizes.Recurrent),
		anonymous("draft states", n.sizes.Drafts),
		anonymous("compute buffers", n.sizes.Scratch),
		anonymous("vectors", n.sizes.Vectors),
		anonymous("prefetch history", e.historyBytes()),
		anonymous("go heap (metadata, tokenizer, requests)", e.heapBytes()),
	}
	threads := int64(e.opt.Threads + runtime.GOMAXPROCS(0) + spareThreads)
	if !physical {
		return append(ts,
			anonymous("program and runtime tables", e.image.Data+arenaIndex+runtimeTables),
			anonymous("thread stacks", threads*stackBytes))
	}
	held := arena
	for _, t := range ts {
		held += t.Bytes
	}
	return append(ts,
		anonymous("program and runtime tables", runtimeTables),
		anonymous("thread stacks", threads*stackTouched),
		expert.Term{Name: "program text", Bytes: e.image.Code, Kind: expert.File, Counted: true},
		anonymous(kernelsShare, kernelBytes+held/pageBytes*entryBytes+arena/pageBytes*pinnedBytes))
}

func anonymous(name string, bytes int64) expert.Term {
	return expert.Term{Name: name, Bytes: (bytes + pageBytes - 1) &^ (pageBytes - 1), Kind: expert.Anonymous, Counted: true}
}

// heapBytes is what the Go heap may grow to.
func (e *Engine) heapBytes() int64 {
	n := heapBase + heapMargin + e.headerBytes()*heapPerHeader/2 + e.opt.RequestBytes
	return (n + heapPages - 1) / heapPages * heapPages
}

// headerBytes is the size of everything before the tensors' data, over all shards.
func (e *Engine) headerBytes() int64 {
	first := map[int]int64{}
	for _, t := range e.file.Tensors() {
		if at, ok := first[t.Shard]; !ok || t.Offset < at {
			first[t.Shard] = t.Offset
		}
	}
	sum := int64(0)
	for _, n := range first {
		sum += n
	}
	return sum
}

// limitHeap makes the garbage collector keep the runtime within what the plan counts for it. A program that already holds
// more objects of its own is left alone: collecting all the time would not make them fewer.
func limitHeap(bytes int64) {
	held := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(held)
	if held[0].Value.Kind() == metrics.KindUint64 && int64(held[0].Value.Uint64()) < bytes/2 {
		debug.SetMemoryLimit(bytes)
	}
}

// lostMemory says what the machine refused of the memory that was asked for.
func (e *Engine) lostMemory() []uring.Loss {
	lost := append([]uring.Loss(nil), e.resident.lost...)
	if err := mem.HugePages(); err != nil {
		lost = append(lost, uring.Loss{What: "huge pages", Reason: err.Error(),
			Remedy: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"})
	}
	return lost
}

// readImage is what loading the program took; without /proc it is taken to be nothing.
func readImage() mem.Image {
	m, _ := mem.ReadImage()
	return m
}
