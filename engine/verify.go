package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// ErrSums: there is no usable file of checksums.
var ErrSums = errors.New("no usable checksums")

// sums are CRC32Cs of all slices of all experts, kept in a file beside the model. On disk, little endian:
//
//	"epqsums1"  identity, 32 bytes  number of slices uint32  CRC32C uint32 per slice  a byte per expert: 1 when summed  CRC32C of all before
//
// Slices are in the order of expert.Catalog.Index, an expert's parts side by side.
type sums struct {
	path  string
	id    identity
	cat   *expert.Catalog
	first []int32 // slice of a layer's first expert
	crc   []uint32
	known []byte // per expert
}

const (
	sumsMagic  = "epqsums1"
	sumsSuffix = ".crc32c"
	sumsHeader = len(sumsMagic) + len(identity{}) + 4
)

// newSums makes an empty list; path "" means beside the first shard.
func newSums(f *gguf.File, cat *expert.Catalog, path string) *sums {
	if path == "" {
		path = f.Shards[0].Path + sumsSuffix
	}
	s := &sums{path: path, id: identify(f), cat: cat, known: make([]byte, cat.Experts())}
	n := 0
	for _, l := range cat.Layers {
		s.first = append(s.first, int32(n))
		n += l.Experts * len(l.Parts)
	}
	s.crc = make([]uint32, n)
	return s
}

func (s *sums) at(k expert.Key, part int) *uint32 {
	return &s.crc[int(s.first[k.Layer])+int(k.Expert)*len(s.cat.Layers[k.Layer].Parts)+part]
}

// load reads the file. errors.Is finds fs.ErrNotExist, ErrForeign and ErrDamaged.
func (s *sums) load() error {
	b, err := readSmall(s.path, sumsHeader+4*len(s.crc)+len(s.known)+4)
	if err != nil {
		return fmt.Errorf("engine: checksums: %w", err)
	}
	body := b[:len(b)-4]
	switch {
	case string(b[:len(sumsMagic)]) != sumsMagic, identity(b[len(sumsMagic):sumsHeader-4]) != s.id, binary.LittleEndian.Uint32(b[sumsHeader-4:]) != uint32(len(s.crc)):
		err = ErrForeign
	case crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(b[len(body):]):
		err = ErrDamaged
	}
	if err != nil {
		return fmt.Errorf("engine: checksums %s: %w; remove it and make it again with epq-uring verify", s.path, err)
	}
	for i := range s.crc {
		s.crc[i] = binary.LittleEndian.Uint32(body[sumsHeader+4*i:])
	}
	copy(s.known, body[sumsHeader+4*len(s.crc):])
	return nil
}

func (s *sums) save() error {
	b := append([]byte(sumsMagic), s.id[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.crc)))
	for _, c := range s.crc {
		b = binary.LittleEndian.AppendUint32(b, c)
	}
	b = append(b, s.known...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if err := replaceFile(s.path, b); err != nil {
		return fmt.Errorf("engine: checksums: %w; choose another place with --sums", err)
	}
	return nil
}

// missing is the number of experts without checksums.
func (s *sums) missing() (n int) {
	for _, k := range s.known {
		n += int(1 - k&1)
	}
	return n
}

// check is pager.Options.Verify.
func (s *sums) check(k expert.Key, part int, b []byte) error {
	if got, want := crc32.Checksum(b, castagnoli), *s.at(k, part); got != want {
		return fmt.Errorf("its CRC32C is %08x, it was %08x", got, want)
	}
	return nil
}

// openSums loads what Options.Verify asks for; nil if it does not.
func (e *Engine) openSums() (*sums, error) {
	if !e.opt.Verify {
		return nil, nil
	}
	s := newSums(e.file, e.whole, e.opt.Sums)
	err := s.load()
	switch n := s.missing(); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("engine: --verify: there is no %s: make it once with epq-uring verify -m %s: %w", s.path, e.opt.Model, ErrSums)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", err, ErrSums)
	case n > 0:
		return nil, fmt.Errorf("engine: --verify: %s lacks %d of %d experts: let epq-uring verify -m %s finish: %w", s.path, n, len(s.known), e.opt.Model, ErrSums)
	}
	return s, nil
}

// VerifyOptions say what Verify reads.
type VerifyOptions struct {
	Model    string
	Sums     string                  // file of checksums; "": beside the first shard
	Threads  int                     // that read and sum; 0: 2
	Progress func(done, total int64) // bytes of experts; called from several goroutines
}

// BadSlice is a slice that is not what it was, cannot be read, or holds what is no number.
type BadSlice struct {
	File   string `json:"file"`
	Tensor string `json:"tensor"`
	Layer  int    `json:"layer"` // the block's number
	Expert int    `json:"expert"`
	Offset int64  `json:"offset"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
}

// VerifyResult is what Verify found.
type VerifyResult struct {
	Experts int        `json:"experts"`
	Bad     []BadSlice `json:"bad"`
	Made    int        `json:"made"` // experts whose checksums were missing until now
	Sums    string     `json:"sums"` // the file of checksums
}

// Verify reads all routed experts as a run does. It compares those whose checksums are known and takes down the others', so
// the first call on a model makes its list and later ones check it; and it looks for scales and numbers that are NaN or
// infinite. When it ends early, what was summed is kept.
func Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) {
	e := &Engine{}
	var err error
	if e.file, err = gguf.Open(o.Model); err != nil {
		return VerifyResult{}, err
	}
	if err := e.openFiles(); err != nil {
		return VerifyResult{}, errors.Join(err, e.release())
	}
	defer func() { _ = e.release() }() // only read
	v := &verifier{files: e.files, cat: e.whole, sums: newSums(e.file, e.whole, o.Sums), progress: o.Progress, result: VerifyResult{Experts: e.whole.Experts(), Bad: []BadSlice{}}}
	v.types = partTypes(e.file, v.cat)
	if err := v.sums.load(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return VerifyResult{}, err
	}
	v.result.Sums = v.sums.path
	if v.sums.missing() > 0 { // a place that cannot be written to is found before 20 GB are read
		if err := v.sums.save(); err != nil {
			return VerifyResult{}, err
		}
	}
	err = v.run(ctx, max(1, cmp.Or(o.Threads, 2)))
	if v.result.Made > 0 {
		err = errors.Join(err, v.sums.save())
	}
	return v.result, err
}

// partTypes are the types of the tensors that the parts of every layer come from.
func partTypes(f *gguf.File, cat *expert.Catalog) [][]gguf.Type {
	types := make([][]gguf.Type, len(cat.Layers))
	for i, l := range cat.Layers {
		for _, p := range l.Parts {
			t, _ := f.Tensor(p.Tensor)
			types[i] = append(types[i], t.Type)
		}
	}
	return types
}

// verifier shares the experts among workers, each with a device and buffers of its own.
type verifier struct {
	files    *uring.Files
	cat      *expert.Catalog
	types    [][]gguf.Type // per layer and part
	progress func(done, total int64)

	mu      sync.Mutex // all below
	sums    *sums
	next    int // expert
	done    int64
	unsaved int64
	result  VerifyResult
}

const (
	verifyBytes = 16 << 20 // buffers of a worker, unless one expert takes more
	saveEvery   = 2 << 30  // bytes summed
)

func (v *verifier) run(ctx context.Context, workers int) error {
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			runtime.LockOSThread() // a ring belongs to its thread
			defer runtime.UnlockOSThread()
			errs[i] = v.work(ctx)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reader is one worker's device with its buffers.
type reader struct {
	dev   uring.Device
	mem   []byte
	slots []verified
	size  int // of a slot
}

// verified is an expert on its way through a slot.
type verified struct {
	key     expert.Key
	left    int // slices; 0: the slot is free
	queued  int // slices handed in
	crc     [expert.MaxParts]uint32
	failure [expert.MaxParts]error
	broken  [expert.MaxParts]int // 1 + block with weights that are no numbers; 0: none
}

func (v *verifier) work(ctx context.Context) (err error) {
	r := &reader{}
	for _, k := range v.cat.Classes {
		r.size = max(r.size, int(k.SlotBytes))
	}
	r.slots = make([]verified, max(1, verifyBytes/r.size))
	block, err := mem.Alloc("verify", r.size*len(r.slots))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, block.Free()) }()
	r.mem = block.Bytes()
	if r.dev, err = uring.Open(v.files, [][]byte{r.mem}, uring.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.dev.Close()) }()
	done := make([]uring.Done, 16)
	for {
		busy, err := v.fill(ctx, r)
		if err != nil || !busy {
			return errors.Join(err, context.Cause(ctx))
		}
		n, err := r.dev.Wait(1, done)
		if err != nil {
			return err
		}
		for _, d := range done[:n] {
			if err := v.sum(r, d); err != nil {
				return err
			}
		}
	}
}

// fill gives free slots further experts and hands in their reads; it says whether anything is on its way.
func (v *verifier) fill(ctx context.Context, r *reader) (busy bool, err error) {
	for i := range r.slots {
		s := &r.slots[i]
		if s.left == 0 && ctx.Err() == nil {
			if index, ok := v.take(); ok {
				k := v.cat.KeyAt(index)
				*s = verified{key: k, left: len(v.cat.Layers[k.Layer].Parts)}
			}
		}
		if err := v.submit(r, i); err != nil {
			return false, err
		}
		busy = busy || s.left > 0
	}
	return busy, nil
}

func (v *verifier) submit(r *reader, slot int) error {
	s := &r.slots[slot]
	if s.left == 0 {
		return nil
	}
	for s.queued < len(v.cat.Layers[s.key.Layer].Parts) {
		p := v.cat.Piece(s.key, s.queued)
		n, err := r.dev.Submit([]uring.Read{{
			File: uring.FileID(p.Shard), Offset: p.ReadOffset, RegionOffset: int64(slot*r.size + p.SlotOffset), Length: p.ReadLength, Need: p.Need(),
			Tag: uint64(slot)<<2 | uint64(s.queued),
		}})
		if err != nil || n == 0 {
			return err
		}
		s.queued++
	}
	return nil
}

func (v *verifier) take() (index int, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next++
	return v.next - 1, v.next <= v.cat.Experts()
}

// sum takes in one slice, and judges its expert when it was the last.
func (v *verifier) sum(r *reader, d uring.Done) error {
	slot, part := int(d.Tag>>2), int(d.Tag&3)
	s := &r.slots[slot]
	p := v.cat.Piece(s.key, part)
	from := slot*r.size + p.SlotOffset + p.Shift
	s.failure[part] = d.Err
	if d.Err == nil {
		b := r.mem[from : from+int(p.Size)]
		s.crc[part] = crc32.Checksum(b, castagnoli)
		if block, found := v.types[s.key.Layer][part].NotFinite(b); found {
			s.broken[part] = 1 + block
		}
	}
	if s.left--; s.left > 0 {
		return nil
	}
	return v.judge(s)
}

// judge compares an expert with what is known of it, or takes it down.
func (v *verifier) judge(s *verified) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	known, bytes, whole := &v.sums.known[v.cat.Index(s.key)], int64(0), true
	for i, p := range v.cat.Pieces(s.key) {
		bytes += p.Size
		want := v.sums.at(s.key, i)
		switch {
		case s.failure[i] != nil:
			whole = false
			v.bad(s.key, p, s.failure[i].Error())
		case *known == 0:
			*want = s.crc[i]
		case s.crc[i] != *want:
			v.bad(s.key, p, fmt.Sprintf("its CRC32C is %08x, it was %08x", s.crc[i], *want))
		}
		if s.broken[i] > 0 && s.crc[i] == *want { // as it was made: not the disk's doing
			v.bad(s.key, p, fmt.Sprintf("block %d is NaN or infinite: get another conversion of the model", s.broken[i]-1))
		}
	}
	v.done += bytes
	if v.progress != nil {
		v.progress(v.done, v.cat.TotalBytes)
	}
	if *known == 1 || !whole {
		return nil
	}
	*known = 1
	v.result.Made++
	if v.unsaved += bytes; v.unsaved < saveEvery {
		return nil
	}
	v.unsaved = 0
	return v.sums.save()
}

func (v *verifier) bad(k expert.Key, p expert.Piece, reason string) {
	paths, _ := v.cat.Shards()
	v.result.Bad = append(v.result.Bad, BadSlice{
		File: filepath.Base(paths[p.Shard]), Tensor: p.Tensor, Layer: v.cat.Layers[k.Layer].Block, Expert: int(k.Expert), Offset: p.Offset, Bytes: p.Size, Reason: reason,
	})
}
