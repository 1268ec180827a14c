// Package mem is the one door to memory outside the Go heap. Every large block has a purpose, so that "who holds the
// RAM" is a table; the rest of the package says how much there may be (Limits) and how much there is (ReadProcess).
//
// Blocks are private anonymous mappings: zero at first, charged page by page when touched, never moved, never scanned by
// the garbage collector. The bytes are valid until Free.
package mem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Purpose names what a block is for, as it is printed in tables: "arena", "kv", "scratch".
type Purpose string

// hugePage is the size of a transparent huge page on x86-64 and arm64 with 4 KiB pages.
const hugePage = 2 << 20

// ErrSize is the kind of an error about a size or range that cannot be.
var ErrSize = errors.New("bad size")

// Block is one mapping. It is safe to read and write from several goroutines as any memory is; Free once, at the end.
type Block struct {
	purpose Purpose
	base    unsafe.Pointer
	bytes   int // asked for
	mapped  int // bytes in whole pages
}

var usage = struct {
	sync.Mutex
	bytes map[Purpose]int64
}{bytes: map[Purpose]int64{}}

// Alloc maps bytes of zeros and touches none of them. From 2 MiB on the block starts at a multiple of 2 MiB and asks for
// huge pages (they may be refused, see HugePages); smaller blocks start at a page. RLIMIT_DATA counts a block from here
// on, the machine's memory only what is touched. errors.Is finds ErrSize and the errno.
func Alloc(p Purpose, bytes int) (*Block, error) {
	if bytes <= 0 || bytes > 1<<46 {
		return nil, fmt.Errorf("mem: %s: %d bytes asked for, wanted 1 to 2^46: %w", p, bytes, ErrSize)
	}
	b := &Block{purpose: p, bytes: bytes, mapped: pages(bytes)}
	if err := b.place(); err != nil {
		return nil, fmt.Errorf("mem: %s: %d bytes: %w%s: lower --ram", p, bytes, err, dataLimit())
	}
	count(p, int64(b.mapped))
	return b, nil
}

// place reserves address space with room to align and gives access only to the aligned part: what is without access is
// not counted by RLIMIT_DATA, so aligning costs nothing of it.
func (b *Block) place() error {
	align := 1
	if b.bytes >= hugePage {
		align = hugePage
	}
	length := b.mapped + pages(align) - os.Getpagesize()
	raw, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	head := int(-uintptr(raw) & uintptr(align-1))
	b.base = unsafe.Add(raw, head)
	trim(raw, head)
	trim(unsafe.Add(b.base, b.mapped), length-head-b.mapped)
	if err := unix.Mprotect(b.all(), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		trim(b.base, b.mapped)
		return fmt.Errorf("mprotect: %w", err)
	}
	if p := current.Load(); p != nil {
		if err := p.bind(b); err != nil {
			trim(b.base, b.mapped)
			return err
		}
	}
	if align == hugePage {
		_ = unix.Madvise(b.all(), unix.MADV_HUGEPAGE) // a wish: without it everything works, slower
	}
	return nil
}

// trim gives back length bytes at p.
func trim(p unsafe.Pointer, length int) {
	if length > 0 {
		_ = unix.MunmapPtr(p, uintptr(length))
	}
}

// Bytes returns the block.
func (b *Block) Bytes() []byte { return b.all()[:b.bytes:b.bytes] }

// Floats returns the block as float32, without the last bytes where they do not fill one.
func (b *Block) Floats() []float32 { return unsafe.Slice((*float32)(b.base), b.bytes/4) }

func (b *Block) all() []byte { return unsafe.Slice((*byte)(b.base), b.mapped) }

// Free gives the block back. Nothing may use its bytes any more. Freeing twice does nothing.
func (b *Block) Free() error {
	if b.base == nil {
		return nil
	}
	if err := unix.MunmapPtr(b.base, uintptr(b.mapped)); err != nil {
		return fmt.Errorf("mem: %s: munmap %d bytes: %w", b.purpose, b.mapped, err)
	}
	b.base, b.bytes = nil, 0
	count(b.purpose, -int64(b.mapped))
	b.mapped = 0
	return nil
}

// touchPiece is what one thread populates at a time: small enough to share the work evenly, a multiple of a huge page.
const touchPiece = 16 * hugePage

// Touch makes every page present and writable without changing its content, on the given number of threads (at least
// one). Pages that are there already cost little.
func (b *Block) Touch(threads int) { _ = b.TouchWhile(context.Background(), threads) }

// TouchWhile is Touch that stops, with its cause, when ctx ends.
func (b *Block) TouchWhile(ctx context.Context, threads int) error {
	all := b.all()
	return share(ctx, len(all), 0, threads, func(from, to int) { populate(all[from:to]) })
}

// share calls do for pieces of 0..n, the first of which ends at first unless that is 0, on a number of threads. It stops,
// with its cause, when ctx ends.
func share(ctx context.Context, n, first, threads int, do func(from, to int)) error {
	var next atomic.Int64
	next.Store(int64(first - touchPiece))
	if first == 0 {
		next.Store(0)
	}
	var wg sync.WaitGroup
	for range max(1, threads) {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(touchPiece)) - touchPiece
				if from >= n {
					return
				}
				do(max(0, from), min(from+touchPiece, n))
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// populate asks the kernel for all pages at once (Linux 5.14) and touches them one by one where it does not know how.
func populate(p []byte) {
	if unix.Madvise(p, unix.MADV_POPULATE_WRITE) == nil {
		return
	}
	for i := 0; i < len(p); i += os.Getpagesize() {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&p[i])), 0) // a write that leaves the value
	}
}

// sink keeps reads that are made for their side effect.
var sink atomic.Uint32

// Usage returns the bytes mapped per purpose, in whole pages.
func Usage() map[Purpose]int64 {
	usage.Lock()
	defer usage.Unlock()
	m := make(map[Purpose]int64, len(usage.bytes))
	for p, n := range usage.bytes {
		m[p] = n
	}
	return m
}

func count(p Purpose, n int64) {
	usage.Lock()
	defer usage.Unlock()
	usage.bytes[p] += n
	if usage.bytes[p] == 0 {
		delete(usage.bytes, p)
	}
}

// HugePages returns nil when the kernel gives transparent huge pages to those who ask, else why not, in words.
func HugePages() error { return hugePagesUnder("/") }

func hugePagesUnder(root string) error {
	const setting = "/sys/kernel/mm/transparent_hugepage/enabled"
	text, err := readText(root, setting)
	if err != nil {
		return fmt.Errorf("mem: huge pages: this kernel has none: %w", err)
	}
	if strings.Contains(text, "[never]") {
		return fmt.Errorf("mem: huge pages: %s is %q, wanted madvise or always", setting, text)
	}
	return nil
}

// dataLimit says the limit that an allocation most likely met, or nothing.
func dataLimit() string {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_DATA, &l) != nil || l.Cur > 1<<62 {
		return ""
	}
	return fmt.Sprintf(" (RLIMIT_DATA is %d bytes)", l.Cur)
}

// pages rounds up to whole pages.
func pages(n int) int {
	p := os.Getpagesize()
	return (n + p - 1) / p * p
}
