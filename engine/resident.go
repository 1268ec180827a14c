package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// resident lends the bytes of the weights that every token reads. "mmap": clean pages of the file, which count only where
// page cache is charged; "lock": the same, and the kernel may not drop them; "copy": anonymous memory on huge pages,
// counted everywhere.
type resident struct {
	runs  []run
	parts [][]byte // of the runs: mapped, or pieces of block
	block *mem.Block
	lost  []uring.Loss
}

// run is a range of a shard that holds resident tensors and nothing else worth mentioning, in whole pages.
type run struct {
	shard    int
	from, to int64
}

// runGap is how much of a file is taken along rather than begin another run.
const runGap = 64 << 10

// residentRuns joins tensors that lie side by side, by shard and offset.
func residentRuns(ts []gguf.Tensor) []run {
	ts = slices.Clone(ts)
	slices.SortFunc(ts, func(a, b gguf.Tensor) int {
		return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.Offset, b.Offset))
	})
	var rs []run
	for _, t := range ts {
		if t.Size == 0 {
			continue
		}
		from, to := t.Offset&^(pageBytes-1), (t.Offset+t.Size+pageBytes-1)&^(pageBytes-1)
		if n := len(rs) - 1; n >= 0 && rs[n].shard == t.Shard && from <= rs[n].to+runGap {
			rs[n].to = max(rs[n].to, to)
			continue
		}
		rs = append(rs, run{t.Shard, from, to})
	}
	return rs
}

// residentBytes is what tensors take, mapped or copied.
func residentBytes(ts []gguf.Tensor) int64 {
	sum := int64(0)
	for _, r := range residentRuns(ts) {
		sum += r.to - r.from
	}
	return sum
}

func loadResident(ctx context.Context, f *gguf.File, ts []gguf.Tensor, how string, threads int) (*resident, error) {
	r := &resident{runs: residentRuns(ts)}
	var err error
	switch how {
	case "mmap", "lock":
		if err = r.mapAll(ctx, f, threads); err == nil && how == "lock" {
			r.lock()
		}
	case "copy":
		err = r.copyAll(ctx, f, threads)
	default:
		err = fmt.Errorf("engine: --resident is %q, allowed are auto, mmap, copy and lock: %w", how, ErrOption)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// mapAll maps the runs and reads them: the first token shall not wait for its pages one by one.
func (r *resident) mapAll(ctx context.Context, f *gguf.File, threads int) error {
	for _, n := range r.runs {
		b, err := mapRun(f.Shards[n.shard], n)
		if err != nil {
			return fmt.Errorf("engine: resident weights: %w", err)
		}
		r.parts = append(r.parts, b)
		if err := mem.Populate(ctx, b, threads); err != nil {
			return err
		}
	}
	return nil
}

// mapRun maps a run as far as the shard goes. One that was cut since its header was read is an error.
func mapRun(s gguf.Shard, n run) ([]byte, error) {
	g, err := os.Open(s.Path)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	// Asked for as a range it is read as a range; page faults alone read on into the experts behind it.
	_ = unix.Fadvise(int(g.Fd()), n.from, n.to-n.from, unix.FADV_WILLNEED)
	return mem.Map(g, n.from, min(n.to, s.Size)-n.from)
}

// lock keeps the mappings in memory, or says why not.
func (r *resident) lock() {
	for _, b := range r.parts {
		if err := mem.Lock(b); err != nil {
			r.lost = append(r.lost, uring.Loss{What: "memlock of resident weights", Reason: err.Error(),
				Remedy: "raise it with ulimit -l or LimitMEMLOCK=, or choose --resident copy"})
			return
		}
	}
}

// copyPiece is read at a time: large enough for the device's bandwidth with two in flight.
const copyPiece = 4 << 20

// copyAll reads the runs into one block, on several threads and past the page cache, where a second copy would lie.
func (r *resident) copyAll(ctx context.Context, f *gguf.File, threads int) error {
	sum := int64(0)
	for _, n := range r.runs {
		sum += n.to - n.from
	}
	if sum == 0 {
		return nil
	}
	var err error
	if r.block, err = mem.Alloc("resident weights", int(sum)); err != nil {
		return err
	}
	if err := r.block.TouchWhile(ctx, threads); err != nil {
		return err
	}
	at := int64(0)
	for _, n := range r.runs {
		end := at + n.to - n.from
		r.parts = append(r.parts, r.block.Bytes()[at:end:end])
		at = end
	}
	for i, n := range r.runs {
		if err := readRun(ctx, f.Shards[n.shard], n.from, r.parts[i], threads); err != nil {
			return err
		}
	}
	return nil
}

// readRun fills b, whole pages, from a shard; what lies past its end stays zero. A shard that was cut since its header was
// read is an error, and the cause of ctx when that ends.
func readRun(ctx context.Context, s gguf.Shard, from int64, b []byte, threads int) error {
	g, direct, err := openDirect(s.Path)
	if err != nil {
		return fmt.Errorf("engine: resident weights: %w", err)
	}
	defer g.Close()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, max(1, min(threads, len(b)/copyPiece+1)))
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil && ctx.Err() == nil {
				at := int(next.Add(copyPiece)) - copyPiece
				if at >= len(b) {
					return
				}
				errs[i] = readPiece(g, from+int64(at), s.Size, b[at:min(at+copyPiece, len(b))])
			}
		})
	}
	wg.Wait()
	if !direct {
		_ = unix.Fadvise(int(g.Fd()), from, int64(len(b)), unix.FADV_DONTNEED)
	}
	return cmp.Or(context.Cause(ctx), errors.Join(errs...))
}

// readPiece reads whole pages; a direct read that was cut short goes on from the last whole page.
func readPiece(g *os.File, at, size int64, b []byte) error {
	want := int(min(int64(len(b)), size-at))
	for got := 0; got < want; {
		from := got &^ (pageBytes - 1)
		n, err := unix.Pread(int(g.Fd()), b[from:], at+int64(from))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && from+n <= got {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("engine: resident weights: %d bytes at offset %d of %s, got %d: %w; check the disk", want, at, g.Name(), got, err)
		}
		got = from + n
	}
	return nil
}

// openDirect opens a file past the page cache, or as usual where that is refused (at once or at the first read).
func openDirect(path string) (g *os.File, direct bool, err error) {
	if g, err = os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0); err == nil {
		probe, err := mem.Alloc("probe", pageBytes)
		if err == nil {
			_, err = unix.Pread(int(g.Fd()), probe.Bytes(), 0)
			_ = probe.Free()
		}
		if err == nil {
			return g, true, nil
		}
		g.Close()
	}
	g, err = os.Open(path)
	return g, false, err
}

// Bytes implements model.Source.
func (r *resident) Bytes(t gguf.Tensor) ([]byte, error) {
	if t.Size == 0 {
		return nil, nil
	}
	for i, n := range r.runs {
		at := t.Offset - n.from
		if n.shard == t.Shard && at >= 0 && t.Offset+t.Size <= n.to && at+t.Size <= int64(len(r.parts[i])) {
			return r.parts[i][at : at+t.Size : at+t.Size], nil
		}
	}
	return nil, fmt.Errorf("engine: tensor %q was not loaded", t.Name)
}

func (r *resident) close() error {
	var errs []error
	if r.block != nil {
		errs = append(errs, r.block.Free())
	} else {
		for _, b := range r.parts {
			errs = append(errs, mem.Unmap(b))
		}
	}
	r.runs, r.parts, r.block = nil, nil, nil
	return errors.Join(errs...)
}
