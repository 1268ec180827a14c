package expert

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
)

// pageBytes is the least granularity of slot parts: whole pages keep the segments of a read few.
const pageBytes = 4096

// maxAlign is the largest alignment of reads, a power of two. Most file systems ask for 512 or 4096.
const maxAlign = 1 << 20

// maxSlotBytes is the largest slot: io_uring registers at most 1 GiB as one buffer, and a slot never spans two.
const maxSlotBytes = 1 << 30

// MaxParts is the most parts an expert has: gate, up and down.
const MaxParts = 3

// Part is one tensor that holds a slice for every expert of a layer, one after the other.
type Part struct {
	Tensor string
	Shard  int
	Offset int64 // of expert 0's slice, absolute in the shard
	Size   int64 // bytes of one expert's slice

	align int64 // of reads from the shard
	slot  int64 // where the widened slice lies in a slot, a multiple of pageBytes and of every shard's alignment
}

// widened returns the aligned read that covers slice i.
func (p *Part) widened(i int64) (offset, length int64) {
	from := p.Offset + i*p.Size
	offset = from / p.align * p.align
	return offset, (from + p.Size - offset + p.align - 1) / p.align * p.align
}

// Layer is one MoE layer.
type Layer struct {
	Block   int    // N of the tensors blk.N.*
	Experts int    // routed experts
	Used    int    // chosen for one token
	Class   int    // index into Catalog.Classes
	Merged  bool   // gate and up are one tensor: the first half of a slice is the gate
	Parts   []Part // gate, up, down; or gate and up merged, down
}

// Class is a size of slots; an expert goes only into slots of its layer's class.
type Class struct {
	SlotBytes int64
	Experts   int // of all its layers
	Layers    int
	Used      int // most experts that one token of one layer needs at once
}

// Piece is one read of an expert: ReadLength bytes at ReadOffset of the shard (both multiples of the shard's alignment)
// go to SlotOffset of the slot; the wanted Size bytes, at Offset of the file, start at SlotOffset+Shift.
type Piece struct {
	Tensor     string
	Shard      int
	Offset     int64
	Size       int64
	ReadOffset int64
	ReadLength int
	SlotOffset int
	Shift      int
}

// Need is how many bytes of the read must arrive; what lies beyond is widening and may be past the end of the file.
func (p Piece) Need() int { return p.Shift + int(p.Size) }

// Catalog says where the routed experts of a model lie and what slots hold them. It is read-only.
type Catalog struct {
	Layers     []Layer
	Classes    []Class // smallest first
	TotalBytes int64   // of all routed experts in the file

	shards []string // paths
	align  []int    // of reads, per shard
	base   []int32  // of each layer in the dense numbering of all experts, and their number at the end
}

// Build lays out the parts of layers: align[i] is the alignment of reads from shard i, whose path is shards[i]. It fills
// in Class of every layer. Layers whose slices have the same sizes share a class, wherever their bytes lie modulo the
// alignment; its slots are as large as the widest of them.
func Build(layers []Layer, shards []string, align []int) (*Catalog, error) {
	c := &Catalog{Layers: slices.Clone(layers), shards: shards, align: align, base: make([]int32, 0, len(layers)+1)}
	if len(layers) == 0 {
		return nil, fmt.Errorf("expert: %w", ErrNoExperts)
	}
	grain, err := grainOf(align)
	if err != nil {
		return nil, err
	}
	sizes := make([]layerSize, len(layers))
	total := int64(0)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Parts = slices.Clone(l.Parts)
		size, err := l.layout(align, grain)
		if err != nil {
			return nil, err
		}
		size.layer = i
		sizes[i] = size
		c.base = append(c.base, int32(total))
		total += int64(l.Experts)
		if total > 1<<30 {
			return nil, fmt.Errorf("expert: %d routed experts up to block %d, at most %d are possible: %w", total, l.Block, 1<<30, ErrLayout)
		}
		for _, p := range l.Parts {
			c.TotalBytes += int64(l.Experts) * p.Size
		}
	}
	c.base = append(c.base, int32(total))
	c.classify(sizes)
	return c, nil
}

// grainOf is what slot parts start at multiples of: whole pages, and what the reads of every shard must be aligned to.
func grainOf(align []int) (int64, error) {
	grain := pageBytes
	for i, a := range align {
		if a < 1 || a > maxAlign || a&(a-1) != 0 {
			return 0, fmt.Errorf("expert: shard %d is read in multiples of %d bytes, it must be a power of two up to %d: %w", i, a, maxAlign, ErrLayout)
		}
		grain = max(grain, a)
	}
	return int64(grain), nil
}

// layerSize is what an expert of a layer takes: its pages without regard to alignment, and the slot that really holds it.
type layerSize struct {
	layer         int
	nominal, slot int64
}

// layout places the parts of l in a slot, one after the other at multiples of grain.
func (l *Layer) layout(align []int, grain int64) (layerSize, error) {
	fail := func(format string, args ...any) (layerSize, error) {
		return layerSize{}, fmt.Errorf("expert: block %d: "+format+": %w", append(append([]any{l.Block}, args...), ErrLayout)...)
	}
	if l.Used < 1 || l.Used > l.Experts {
		return fail("%d experts are used of %d, it must be 1 to all of them", l.Used, l.Experts)
	}
	if len(l.Parts) < 1 || len(l.Parts) > MaxParts {
		return fail("%d tensors per expert, it must be 1 to %d", len(l.Parts), MaxParts)
	}
	var size layerSize
	for i := range l.Parts {
		p := &l.Parts[i]
		if p.Size < 1 || p.Size > maxSlotBytes {
			return fail("%s: an expert's slice takes %d bytes, it must be 1 to %d", p.Tensor, p.Size, maxSlotBytes)
		}
		if p.Offset < 0 || p.Offset > 1<<62 {
			return fail("%s: offset %d", p.Tensor, p.Offset)
		}
		if p.Shard < 0 || p.Shard >= len(align) {
			return fail("%s: in shard %d of %d", p.Tensor, p.Shard, len(align))
		}
		p.align, p.slot = int64(align[p.Shard]), size.slot
		size.slot += multiple(p.widest(l.Experts), grain)
		size.nominal += multiple(p.Size, pageBytes)
	}
	if size.slot > maxSlotBytes {
		return fail("a slot takes %d bytes, at most %d can be registered in one piece", size.slot, maxSlotBytes)
	}
	return size, nil
}

// widest returns the length of the longest widened read of n slices. The shifts repeat after align slices at the latest.
func (p *Part) widest(n int) int64 {
	longest := int64(0)
	for i := range min(int64(n), p.align) {
		_, length := p.widened(i)
		longest = max(longest, length)
	}
	return longest
}

// multiple rounds up to a multiple of a number.
func multiple(bytes, of int64) int64 { return (bytes + of - 1) / of * of }

// classify makes one class per nominal size.
func (c *Catalog) classify(sizes []layerSize) {
	slices.SortStableFunc(sizes, func(a, b layerSize) int { return cmp.Compare(a.nominal, b.nominal) })
	for i, s := range sizes {
		if i == 0 || s.nominal != sizes[i-1].nominal {
			c.Classes = append(c.Classes, Class{})
		}
		l, k := &c.Layers[s.layer], &c.Classes[len(c.Classes)-1]
		l.Class = len(c.Classes) - 1
		k.SlotBytes = max(k.SlotBytes, s.slot)
		k.Experts += l.Experts
		k.Layers++
		k.Used = max(k.Used, l.Used)
	}
}

// First is the catalog of the first n layers, with the same classes of slots.
func (c *Catalog) First(n int) *Catalog {
	d := *c
	d.Layers, d.base = c.Layers[:n:n], c.base[:n+1:n+1]
	return &d
}

// Shards returns what Build was given: the paths of the shards and the alignment of reads from each.
func (c *Catalog) Shards() (paths []string, align []int) { return c.shards, c.align }

// Experts returns the number of routed experts of all layers.
func (c *Catalog) Experts() int { return int(c.base[len(c.Layers)]) }

// Index numbers all experts densely, layer by layer. k must be valid.
func (c *Catalog) Index(k Key) int { return int(c.base[k.Layer] + k.Expert) }

// KeyAt is the inverse of Index.
func (c *Catalog) KeyAt(index int) Key {
	l, found := slices.BinarySearch(c.base, int32(index))
	if !found {
		l--
	}
	return Key{Layer: int32(l), Expert: int32(index) - c.base[l]}
}

// Valid says whether k names an expert of the model.
func (c *Catalog) Valid(k Key) bool {
	return k.Layer >= 0 && int(k.Layer) < len(c.Layers) && k.Expert >= 0 && int(k.Expert) < c.Layers[k.Layer].Experts
}

// ExpertBytes is what one expert of a layer takes in the file; a read is wider by less than two alignments a part.
func (c *Catalog) ExpertBytes(layer int) int64 {
	sum := int64(0)
	for i := range c.Layers[layer].Parts {
		sum += c.Layers[layer].Parts[i].Size
	}
	return sum
}

// Piece returns the i-th read of a valid k, 0 <= i < len(Layers[k.Layer].Parts).
func (c *Catalog) Piece(k Key, i int) Piece {
	p := &c.Layers[k.Layer].Parts[i]
	offset, length := p.widened(int64(k.Expert))
	from := p.Offset + int64(k.Expert)*p.Size
	return Piece{
		Tensor: p.Tensor, Shard: p.Shard, Offset: from, Size: p.Size,
		ReadOffset: offset, ReadLength: int(length), SlotOffset: int(p.slot), Shift: int(from - offset),
	}
}

// Pieces returns all reads of a valid k: gate, up and down, or gate and up merged and down.
func (c *Catalog) Pieces(k Key) []Piece {
	out := make([]Piece, len(c.Layers[k.Layer].Parts))
	for i := range out {
		out[i] = c.Piece(k, i)
	}
	return out
}

// Describe names a piece for an error message: file, tensor, layer (the block's number), expert, offset and size.
func (c *Catalog) Describe(k Key, piece int) string {
	p := c.Piece(k, piece)
	file := fmt.Sprintf("shard %d", p.Shard)
	if p.Shard < len(c.shards) {
		file = filepath.Base(c.shards[p.Shard])
	}
	return fmt.Sprintf("%s: %s, layer %d, expert %d, offset %d, %d bytes", file, p.Tensor, c.Layers[k.Layer].Block, k.Expert, p.Offset, p.Size)
}

// MinSlots returns, per class, the slots that one token of one layer needs at once: the least an arena must have.
func (c *Catalog) MinSlots() []int {
	n := make([]int, len(c.Classes))
	for i, k := range c.Classes {
		n[i] = k.Used
	}
	return n
}
