// Package sim records which experts a run used and replays it: through the pager's own code under other budgets and
// policies, and against two bounds that no policy can beat.
//
//	run: Recorder <- Use, Batch        file: Read -> Trace        Trace -> Simulate(budgets, policies) -> Cells
package sim

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"

	"github.com/epq-uring/epq-uring/expert"
)

// Kinds of errors; match with errors.Is.
var (
	ErrTrace   = errors.New("not a whole trace")
	ErrVersion = errors.New("trace of another version")
)

// A trace file is one line of JSON (header), then records of unsigned varints:
//
//	0 layer n id*n   a use of n experts of a MoE layer, in the order of the use
//	1 tokens         the end of a batch of so many tokens
//	2                the end of the trace
const (
	version   = 1
	magic     = "epq-trace"
	recordUse = 0
	recordEnd = 1
	recordEOF = 2

	maxHeader = 16 << 20 // bytes
)

type header struct {
	Magic   string   `json:"format"`
	Version int      `json:"version"`
	Other   int64    `json:"other_bytes"` // what the plan counts beside the arena
	Shards  []string `json:"shards"`
	Sizes   []int64  `json:"sizes"` // of the shards
	Align   []int    `json:"align"`
	Layers  []layer  `json:"layers"`
}

type layer struct {
	Block   int    `json:"block"`
	Experts int    `json:"experts"`
	Used    int    `json:"used"`
	Merged  bool   `json:"merged,omitempty"`
	Parts   []part `json:"parts"`
}

type part struct {
	Tensor string `json:"tensor"`
	Shard  int    `json:"shard"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
}

// Recorder writes a trace while a model runs. Its methods are called in the order of the run, by one goroutine.
type Recorder struct {
	w   *bufio.Writer
	buf []byte
}

// NewRecorder writes the header: where the experts lie, and what the plan counts beside the arena, so that a budget means
// the same in a replay as in a run. sizes are the shards' in bytes.
func NewRecorder(w io.Writer, cat *expert.Catalog, plan *expert.Plan, sizes []int64) (*Recorder, error) {
	h := header{Magic: magic, Version: version, Other: plan.Budget - plan.ArenaBytes - plan.Unused, Sizes: sizes}
	paths, align := cat.Shards()
	h.Align = align
	for _, path := range paths {
		h.Shards = append(h.Shards, filepath.Base(path))
	}
	for _, l := range cat.Layers {
		out := layer{Block: l.Block, Experts: l.Experts, Used: l.Used, Merged: l.Merged}
		for _, p := range l.Parts {
			out.Parts = append(out.Parts, part{p.Tensor, p.Shard, p.Offset, p.Size})
		}
		h.Layers = append(h.Layers, out)
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("sim: header: %w", err)
	}
	r := &Recorder{w: bufio.NewWriterSize(w, 64<<10)}
	r.w.Write(append(line, '\n'))
	return r, nil
}

// Use notes the experts of a layer that are about to be used. A write error shows in Close.
func (r *Recorder) Use(layer int, ids []int32) {
	r.buf = binary.AppendUvarint(append(r.buf[:0], recordUse), uint64(layer))
	r.buf = binary.AppendUvarint(r.buf, uint64(len(ids)))
	for _, id := range ids {
		r.buf = binary.AppendUvarint(r.buf, uint64(id))
	}
	r.w.Write(r.buf)
}

// Batch notes that a batch of tokens is done.
func (r *Recorder) Batch(tokens int) {
	r.buf = binary.AppendUvarint(append(r.buf[:0], recordEnd), uint64(tokens))
	r.w.Write(r.buf)
}

// Close ends the trace and returns the first error of all writes. The writer stays open.
func (r *Recorder) Close() error {
	r.w.WriteByte(recordEOF)
	if err := r.w.Flush(); err != nil {
		return fmt.Errorf("sim: trace: %w", err)
	}
	return nil
}

// Trace is a recorded run.
type Trace struct {
	Catalog *expert.Catalog
	Other   int64   // bytes of all counted terms of the plan but the arena
	Sizes   []int64 // of the shards
	Tokens  int64

	uses []use
	ids  []int32
}

// Uses goes through the recorded uses in order. The ids belong to the trace.
func (t *Trace) Uses() iter.Seq2[int, []int32] {
	return func(yield func(int, []int32) bool) {
		for _, u := range t.uses {
			if u.layer >= 0 && !yield(int(u.layer), t.ids[u.from:u.to:u.to]) {
				return
			}
		}
	}
}

// Batches goes through the recorded batches in order: the tokens of each, and its uses.
func (t *Trace) Batches() iter.Seq2[int, iter.Seq2[int, []int32]] {
	return func(yield func(int, iter.Seq2[int, []int32]) bool) {
		first := 0
		for i, u := range t.uses {
			if u.layer >= 0 {
				continue
			}
			batch := Trace{uses: t.uses[first:i], ids: t.ids}
			if !yield(u.tokens, batch.Uses()) {
				return
			}
			first = i + 1
		}
	}
}

// use is one record: experts ids[from:to] of a layer, or, with layer -1, the end of a batch.
type use struct {
	layer    int32
	from, to int
	tokens   int // of the batch that ends
}

// Read reads a whole trace. errors.Is finds ErrTrace for what is cut, damaged or no trace, and ErrVersion.
func Read(r io.Reader) (*Trace, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	t, err := readHeader(in)
	if err != nil {
		return nil, err
	}
	for {
		more, err := t.readRecord(in)
		if err != nil {
			return nil, fmt.Errorf("sim: trace: record %d: %w: %w", len(t.uses), err, ErrTrace)
		}
		if !more {
			return t, nil
		}
	}
}

func readHeader(in *bufio.Reader) (*Trace, error) {
	line, err := readLine(in)
	if err != nil {
		return nil, fmt.Errorf("sim: trace: header: %w: %w", err, ErrTrace)
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil || h.Magic != magic {
		return nil, fmt.Errorf("sim: trace: the first line is no header (made by run --trace FILE): %w", ErrTrace)
	}
	if h.Version != version {
		return nil, fmt.Errorf("sim: trace: version %d, known is %d: record it again: %w", h.Version, version, ErrVersion)
	}
	if h.Other < 0 {
		return nil, fmt.Errorf("sim: trace: other_bytes is %d: %w", h.Other, ErrTrace)
	}
	var layers []expert.Layer
	total := 0
	for _, l := range h.Layers {
		out := expert.Layer{Block: l.Block, Experts: l.Experts, Used: l.Used, Merged: l.Merged}
		for _, p := range l.Parts {
			out.Parts = append(out.Parts, expert.Part{Tensor: p.Tensor, Shard: p.Shard, Offset: p.Offset, Size: p.Size})
		}
		if l.Experts > maxExperts-total {
			return nil, fmt.Errorf("sim: trace: %d experts up to block %d and %d in it, at most %d are possible: %w", total, l.Block, l.Experts, maxExperts, ErrTrace)
		}
		total += max(0, l.Experts)
		layers = append(layers, out)
	}
	cat, err := expert.Build(layers, h.Shards, h.Align)
	if err != nil {
		return nil, fmt.Errorf("sim: trace: %w: %w", err, ErrTrace)
	}
	if len(h.Sizes) != len(h.Shards) || len(h.Align) != len(h.Shards) {
		return nil, fmt.Errorf("sim: trace: sizes of %d files and alignments of %d, it names %d: %w", len(h.Sizes), len(h.Align), len(h.Shards), ErrTrace)
	}
	for _, l := range cat.Layers {
		for _, p := range l.Parts {
			if end := p.Offset + p.Size*int64(l.Experts); end > h.Sizes[p.Shard] {
				return nil, fmt.Errorf("sim: trace: %s ends at %d, its file at %d: %w", p.Tensor, end, h.Sizes[p.Shard], ErrTrace)
			}
		}
	}
	return &Trace{Catalog: cat, Other: h.Other, Sizes: h.Sizes}, nil
}

// maxExperts, of all layers, bounds what a damaged header can ask for; the largest models of 2026 have some 30,000.
const maxExperts = 1 << 20

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) < maxHeader {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
	return nil, fmt.Errorf("no end of line in %d bytes", maxHeader)
}

// readRecord reads one record and says whether there may be another.
func (t *Trace) readRecord(in *bufio.Reader) (more bool, err error) {
	kind, err := in.ReadByte()
	if err != nil {
		return false, whole(err)
	}
	switch kind {
	case recordEOF:
		return false, nil
	case recordEnd:
		tokens, err := number(in, 1<<32)
		t.Tokens += int64(tokens)
		t.uses = append(t.uses, use{layer: -1, tokens: tokens})
		return true, err
	case recordUse:
		return true, t.readUse(in)
	}
	return false, fmt.Errorf("kind %d", kind)
}

func (t *Trace) readUse(in *bufio.Reader) error {
	l, err := number(in, len(t.Catalog.Layers)-1)
	if err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	experts := t.Catalog.Layers[l].Experts
	n, err := number(in, experts)
	if err != nil {
		return fmt.Errorf("number of experts: %w", err)
	}
	from := len(t.ids)
	for range n {
		id, err := number(in, experts-1)
		if err != nil {
			return fmt.Errorf("expert: %w", err)
		}
		t.ids = append(t.ids, int32(id))
	}
	t.uses = append(t.uses, use{layer: int32(l), from: from, to: len(t.ids)})
	return nil
}

func number(in *bufio.Reader, most int) (int, error) {
	x, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, whole(err)
	}
	if x > uint64(most) {
		return 0, fmt.Errorf("%d, at most %d", x, most)
	}
	return int(x), nil
}

// whole makes the end of the file an error: a trace has an end of its own.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
