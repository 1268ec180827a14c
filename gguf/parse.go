package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sort"
	"strings"
)

// A GGUF file, version 2 and 3, little endian (ggml's docs/gguf.md):
//
//	"GGUF"  version u32  tensors u64  keys u64
//	key     length u64, text   kind u32   value                         (keys times)
//	        value: number of the kind's size | bool: 1 byte | string: length u64, text
//	             | array: kind u32, count u64, values without their kind
//	tensor  length u64, text   dims n u32   dim u64 (n times)   type u32   offset u64   (tensors times)
//	zeros up to a multiple of general.alignment (32 unless given): offsets count from here
//	data    each tensor at a multiple of the alignment

// Limits of what a header may hold. All are far above what models have: a vocabulary of a million tokens takes 20 MB.
const (
	maxKeys     = 1 << 16
	maxTensors  = 1 << 20
	maxName     = 1<<16 - 1 // bytes of a key or tensor name, from the format's description
	maxValue    = 1 << 28   // bytes of a string or array
	maxNesting  = 4         // an array in an array in an array in an array
	maxArrays   = 1 << 16   // arrays inside arrays, in one file
	maxDims     = 4
	bufferBytes = 64 << 10
)

// head is what the header of one shard says.
type head struct {
	keys    []string
	values  map[string]Value
	tensors []Tensor
	end     int64 // where the last tensor ends
}

// parser reads the header of one file front to back. The first error stays.
type parser struct {
	r      io.ReaderAt
	path   string
	size   int64 // of the file
	pos    int64 // of the next byte to read
	buf    []byte
	from   int64 // position of buf[0]
	where  string
	arrays int
}

// parse reads a header and checks everything that can be checked within one file. Extents get the given shard.
func parse(r io.ReaderAt, size int64, path string, shard int) (*head, error) {
	p := &parser{r: r, path: path, size: size, where: "header", buf: make([]byte, 0, bufferBytes)}
	tensors, keys, err := p.counts()
	if err != nil {
		return nil, err
	}
	h := &head{values: make(map[string]Value)}
	for i := range keys {
		if err := p.key(h, i); err != nil {
			return nil, err
		}
	}
	align, err := p.alignment(h)
	if err != nil {
		return nil, err
	}
	for i := range tensors {
		t, err := p.tensor(i)
		if err != nil {
			return nil, err
		}
		t.Shard = shard
		h.tensors = append(h.tensors, t)
	}
	return h, p.place(h, align)
}

func (p *parser) fail(kind error, format string, args ...any) error {
	return fmt.Errorf("gguf: %s: %s: %s: %w", p.path, p.where, fmt.Sprintf(format, args...), kind)
}

func (p *parser) left() int64 { return p.size - p.pos }

// next returns the next n bytes, n at most the buffer's size; they are valid until the next call.
func (p *parser) next(n int) ([]byte, error) {
	if p.left() < int64(n) {
		return nil, p.fail(ErrCorrupt, "file is truncated: %d bytes are wanted at %d, it has %d; download it again", n, p.pos, p.size)
	}
	i := p.pos - p.from
	if i < 0 || i+int64(n) > int64(len(p.buf)) {
		if err := p.fill(); err != nil {
			return nil, err
		}
		i = 0
	}
	p.pos += int64(n)
	return p.buf[i : i+int64(n)], nil
}

// fill reads the buffer anew from pos on.
func (p *parser) fill() error {
	p.from = p.pos
	p.buf = p.buf[:min(int64(cap(p.buf)), p.left())]
	n, err := p.r.ReadAt(p.buf, p.pos)
	if n == len(p.buf) {
		return nil
	}
	p.buf = p.buf[:0]
	if errors.Is(err, io.EOF) {
		return p.fail(ErrCorrupt, "file became shorter while it was read: truncated at %d, had %d bytes", p.pos+int64(n), p.size)
	}
	return fmt.Errorf("gguf: %s: %s: reading at %d: %w", p.path, p.where, p.pos, err)
}

func (p *parser) u32() (uint32, error) {
	b, err := p.next(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (p *parser) u64() (uint64, error) {
	b, err := p.next(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// copyTo fills dst with the next bytes, which are known to be there.
func (p *parser) copyTo(dst []byte) error {
	for len(dst) > 0 {
		b, err := p.next(min(len(dst), cap(p.buf)))
		if err != nil {
			return err
		}
		dst = dst[copy(dst, b):]
	}
	return nil
}

// length reads the length of a string and checks it.
func (p *parser) length(what string, limit int64) (int, error) {
	n, err := p.u64()
	switch {
	case err != nil:
		return 0, err
	case n > uint64(p.left()):
		return 0, p.fail(ErrCorrupt, "%s of %d bytes at %d, the file has %d left: truncated or damaged, download it again", what, n, p.pos, p.left())
	case n > uint64(limit):
		return 0, p.fail(ErrCorrupt, "%s of %d bytes at %d, at most %d are allowed", what, n, p.pos, limit)
	}
	return int(n), nil
}

func (p *parser) text(what string, limit int64) (string, error) {
	n, err := p.length(what, limit)
	if err != nil {
		return "", err
	}
	if n <= cap(p.buf) {
		b, err := p.next(n)
		return string(b), err
	}
	b := make([]byte, n)
	err = p.copyTo(b)
	return string(b), err
}

// counts reads magic, version and the two counts.
func (p *parser) counts() (tensors, keys int, err error) {
	if err := p.magic(); err != nil {
		return 0, 0, err
	}
	v, err := p.u32()
	switch {
	case err != nil:
		return 0, 0, err
	case v > 0xffff && bits.ReverseBytes32(v) <= 0xffff:
		return 0, 0, p.fail(ErrUnsupported, "big-endian file (version %d), only little-endian ones can be read; convert the model again", bits.ReverseBytes32(v))
	case v != 2 && v != 3:
		return 0, 0, p.fail(ErrUnsupported, "version %d, only 2 and 3 can be read; convert the model again", v)
	}
	t, err := p.u64()
	if err != nil {
		return 0, 0, err
	}
	k, err := p.u64()
	if err != nil {
		return 0, 0, err
	}
	// The least a key takes: a name of 1 byte, the kind, a value of 1 byte; a tensor: an empty name, no dimension, type, offset.
	if keys, err = p.count("keys", k, 8+1+4+1, maxKeys); err != nil {
		return 0, 0, err
	}
	tensors, err = p.count("tensors", t, 8+4+4+8, maxTensors)
	return tensors, keys, err
}

// count checks a number of things of at least min bytes each. Division, as the product could overflow.
func (p *parser) count(what string, n uint64, min, limit int64) (int, error) {
	if possible := uint64(p.left() / min); n > possible {
		return 0, p.fail(ErrCorrupt, "%d %s at %d, the %d bytes left hold at most %d: truncated or damaged, download it again", n, what, p.pos, p.left(), possible)
	}
	if n > uint64(limit) {
		return 0, p.fail(ErrCorrupt, "%d %s at %d, at most %d are allowed", n, what, p.pos, limit)
	}
	return int(n), nil
}

// magic reads the first four bytes; a file of another kind is named, as downloads often fail this way.
func (p *parser) magic() error {
	if p.size == 0 {
		return p.fail(ErrCorrupt, "the file is empty, download it again")
	}
	start := make([]byte, min(p.size, 512))
	if _, err := p.r.ReadAt(start, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("gguf: %s: reading its start: %w", p.path, err)
	}
	s := strings.ToLower(strings.TrimLeft(string(start), " \t\r\n\ufeff"))
	switch {
	case string(start[:min(4, len(start))]) == "GGUF":
		p.pos = 4
		return nil
	case strings.HasPrefix("GGUF", string(start)):
		return p.fail(ErrCorrupt, "file is truncated after %d bytes, download it again", p.size)
	case strings.HasPrefix(s, "version https://git-lfs"):
		return p.fail(ErrCorrupt, "not a model but a git lfs pointer to one: fetch it with `git lfs pull`, or download the file itself")
	case strings.HasPrefix(s, "<!doctype") || strings.HasPrefix(s, "<html") || strings.HasPrefix(s, "<?xml"):
		return p.fail(ErrCorrupt, "not a model but a web page (html): the download failed, download it again")
	case len(start) > 8 && start[8] == '{' && binary.LittleEndian.Uint64(start) < 1<<32:
		return p.fail(ErrUnsupported, "a safetensors file, convert it to GGUF")
	case strings.HasPrefix(s, "{") || strings.HasPrefix(s, "entry not found") || strings.HasPrefix(s, "invalid "):
		return p.fail(ErrCorrupt, "not a model but a text beginning with %s: the download failed, download it again", short(string(start[:min(40, len(start))])))
	case strings.HasPrefix(s, "pk\x03\x04"):
		return p.fail(ErrUnsupported, "a zip archive or PyTorch file, convert it to GGUF")
	case strings.HasPrefix(s, "ggjt") || strings.HasPrefix(s, "tjgg") || strings.HasPrefix(s, "lmgg") || strings.HasPrefix(s, "fmgg"):
		return p.fail(ErrUnsupported, "a model in a format older than GGUF, convert it again")
	}
	return p.fail(ErrUnsupported, "not a GGUF file: it begins with % x instead of 47 47 55 46", start[:min(4, len(start))])
}

// key reads one key and its value.
func (p *parser) key(h *head, i int) error {
	p.where = fmt.Sprintf("key %d", i)
	name, err := p.text("name", maxName)
	if err != nil {
		return err
	}
	if name == "" {
		return p.fail(ErrCorrupt, "the name is empty")
	}
	p.where = "key " + short(name)
	if _, twice := h.values[name]; twice {
		return p.fail(ErrCorrupt, "appears twice")
	}
	k, err := p.kind()
	if err != nil {
		return err
	}
	v, err := p.value(k, 0)
	if err != nil {
		return err
	}
	h.keys, h.values[name] = append(h.keys, name), v
	return nil
}

func (p *parser) kind() (Kind, error) {
	k, err := p.u32()
	if err == nil && !Kind(k).known() {
		err = p.fail(ErrUnsupported, "unknown value type %d at %d", k, p.pos-4)
	}
	return Kind(k), err
}

func (p *parser) value(k Kind, depth int) (Value, error) {
	switch k {
	case KindString:
		s, err := p.text("string", maxValue)
		return Value{kind: k, data: s}, err
	case KindArray:
		return p.array(depth)
	}
	b, err := p.next(kinds[k].bytes)
	if err != nil {
		return Value{}, err
	}
	return Value{kind: k, data: scalar(k, b)}, nil
}

func scalar(k Kind, b []byte) any {
	switch d := decode(k, b, 1).(type) {
	case []uint8:
		return d[0]
	case []int8:
		return d[0]
	case []uint16:
		return d[0]
	case []int16:
		return d[0]
	case []uint32:
		return d[0]
	case []int32:
		return d[0]
	case []uint64:
		return d[0]
	case []int64:
		return d[0]
	case []float32:
		return d[0]
	case []float64:
		return d[0]
	case []bool:
		return d[0]
	}
	panic("gguf: kind " + k.String() + " is no scalar")
}

// decode reads n plain values from bytes of just that size.
func decode(k Kind, b []byte, n int) any {
	switch k {
	case KindUint8:
		return numbers[uint8](b, n)
	case KindInt8:
		return numbers[int8](b, n)
	case KindUint16:
		return numbers[uint16](b, n)
	case KindInt16:
		return numbers[int16](b, n)
	case KindUint32:
		return numbers[uint32](b, n)
	case KindInt32:
		return numbers[int32](b, n)
	case KindUint64:
		return numbers[uint64](b, n)
	case KindInt64:
		return numbers[int64](b, n)
	case KindFloat32:
		return numbers[float32](b, n)
	case KindFloat64:
		return numbers[float64](b, n)
	}
	list := make([]bool, n) // any byte but 0 is true
	for i := range list {
		list[i] = b[i] != 0
	}
	return list
}

func numbers[T number](b []byte, n int) []T {
	list := make([]T, n)
	if _, err := binary.Decode(b, binary.LittleEndian, list); err != nil {
		panic(err) // b has just that size
	}
	return list
}

func (p *parser) array(depth int) (Value, error) {
	if depth == maxNesting {
		return Value{}, p.fail(ErrUnsupported, "arrays nested more than %d deep at %d", maxNesting, p.pos)
	}
	k, err := p.kind()
	if err != nil {
		return Value{}, err
	}
	claim, err := p.u64()
	if err != nil {
		return Value{}, err
	}
	least := int64(kinds[k].bytes)
	n, err := p.count("array elements of "+k.String(), claim, least, maxValue/least)
	if err != nil {
		return Value{}, err
	}
	v := Value{kind: KindArray, elem: k}
	switch k {
	case KindString:
		v.data, err = p.stringArray(n)
	case KindArray:
		v.data, err = p.nested(n, depth+1)
	default:
		b := make([]byte, n*kinds[k].bytes)
		if err = p.copyTo(b); err == nil {
			v.data = decode(k, b, n)
		}
	}
	return v, err
}

func (p *parser) nested(n, depth int) ([]Value, error) {
	if p.arrays += n; p.arrays > maxArrays {
		return nil, p.fail(ErrUnsupported, "%d arrays inside arrays, at most %d are allowed", p.arrays, maxArrays)
	}
	var list []Value
	for range n {
		v, err := p.array(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// stringArray walks over the strings to learn their lengths, then reads their text into one piece of memory.
func (p *parser) stringArray(n int) (stringArray, error) {
	start := p.pos
	total := 0
	for range n {
		l, err := p.length("string", maxValue)
		if err != nil {
			return stringArray{}, err
		}
		p.pos += int64(l)
		if total += l; total > maxValue {
			return stringArray{}, p.fail(ErrCorrupt, "array of strings of more than %d bytes", maxValue)
		}
	}
	p.pos = start
	var text strings.Builder
	text.Grow(total)
	ends := make([]uint32, n)
	for i := range ends {
		l, err := p.length("string", maxValue)
		if err != nil {
			return stringArray{}, err
		}
		for l > 0 {
			b, err := p.next(min(l, cap(p.buf)))
			if err != nil {
				return stringArray{}, err
			}
			text.Write(b)
			l -= len(b)
		}
		ends[i] = uint32(text.Len())
	}
	return stringArray{text: text.String(), ends: ends}, nil
}

// alignment returns general.alignment or its default.
func (p *parser) alignment(h *head) (uint64, error) {
	v, ok := h.values["general.alignment"]
	if !ok {
		return 32, nil
	}
	p.where = `key "general.alignment"`
	a, ok := v.data.(uint32)
	if !ok {
		return 0, p.fail(ErrCorrupt, "is %s, wanted a uint32", v.describe())
	}
	if bits.OnesCount32(a) != 1 {
		return 0, p.fail(ErrCorrupt, "is %d, wanted a power of two", a)
	}
	return uint64(a), nil
}

// tensor reads one line of the tensor table; its offset still counts from the start of the data.
func (p *parser) tensor(i int) (Tensor, error) {
	p.where = fmt.Sprintf("tensor %d", i)
	name, err := p.text("name", maxName)
	if err != nil {
		return Tensor{}, err
	}
	p.where = "tensor " + short(name)
	dims, err := p.dims()
	if err != nil {
		return Tensor{}, err
	}
	t, err := p.u32()
	if err != nil {
		return Tensor{}, err
	}
	off, err := p.u64()
	if err != nil {
		return Tensor{}, err
	}
	x := Tensor{Name: name, Type: Type(t), Dims: dims}
	x.Offset = int64(off) // may wrap; place looks at it as unsigned
	row, err := x.Type.RowBytes(x.cols())
	if err != nil {
		return Tensor{}, fmt.Errorf("gguf: %s: %s: %w", p.path, p.where, err)
	}
	hi, size := bits.Mul64(uint64(row), uint64(x.Rows()))
	if hi != 0 || int64(size) < 0 {
		return Tensor{}, p.fail(ErrCorrupt, "the bytes of dimensions %v overflow", dims)
	}
	x.Size = int64(size)
	return x, nil
}

func (p *parser) dims() ([]int64, error) {
	n, err := p.u32()
	if err != nil {
		return nil, err
	}
	if n > maxDims {
		return nil, p.fail(ErrCorrupt, "%d dimensions, at most %d are allowed", n, maxDims)
	}
	dims, elements := make([]int64, n), uint64(1)
	for i := range dims {
		d, err := p.u64()
		if err != nil {
			return nil, err
		}
		hi, lo := bits.Mul64(elements, max(d, 1)) // a dimension of 0 does not excuse the others
		if hi != 0 || int64(lo) < 0 {
			return nil, p.fail(ErrCorrupt, "dimension %d is %d, too large with those before it", i, d)
		}
		dims[i], elements = int64(d), lo
	}
	return dims, nil
}

// place turns the offsets into absolute ones and checks them against alignment, file and each other.
func (p *parser) place(h *head, align uint64) error {
	start := (uint64(p.pos) + align - 1) &^ (align - 1) // both far below 2^63
	h.end = p.pos
	order := make([]int, 0, len(h.tensors))
	for i := range h.tensors {
		t := &h.tensors[i]
		p.where = "tensor " + short(t.Name)
		off := uint64(t.Offset)
		if off%align != 0 {
			return p.fail(ErrCorrupt, "offset %d is no multiple of the alignment %d", off, align)
		}
		// An empty tensor may lie where the data would start, even if there is none.
		room := max(uint64(p.size), start) - start
		if t.Size > 0 && uint64(p.size) < start {
			room = 0
		}
		if off > room || uint64(t.Size) > room-off {
			return p.fail(ErrCorrupt, "the file is incomplete: %d bytes at %d of its data, which begins at %d, but it has %d in all; download it again", t.Size, off, start, p.size)
		}
		t.Offset = int64(start + off)
		if t.Size > 0 {
			order = append(order, i)
			h.end = max(h.end, t.Offset+t.Size)
		}
	}
	sort.Slice(order, func(a, b int) bool { return h.tensors[order[a]].Offset < h.tensors[order[b]].Offset })
	for i := 1; i < len(order); i++ {
		a, b := &h.tensors[order[i-1]], &h.tensors[order[i]]
		if a.Offset+a.Size > b.Offset {
			p.where = "tensor " + short(a.Name)
			return p.fail(ErrCorrupt, "overlaps tensor %s: ends at %d, the other begins at %d", short(b.Name), a.Offset+a.Size, b.Offset)
		}
	}
	return nil
}
