package tokenizer

import (
	"bytes"
	"hash/maphash"
)

// index finds a symbol by its bytes: open addressing with linear probing over the symbols of a Tokenizer.
type index struct {
	t     *Tokenizer
	seed  maphash.Seed
	slots []uint64 // upper half of the hash | symbol + 1; 0: free
	used  int
	last  int32 // the symbol found or made last
}

func newIndex(t *Tokenizer, n int) *index {
	size := 1024
	for size < 2*n {
		size *= 2
	}
	return &index{t: t, seed: maphash.MakeSeed(), slots: make([]uint64, size)}
}

const hashPart uint64 = 0xFFFFFFFF_00000000

// slot gives the place of b, with its symbol or free, and the hash of b.
func (x *index) slot(b []byte) (*uint64, uint64) {
	mask, hash := uint64(len(x.slots)-1), maphash.Bytes(x.seed, b)
	for i := hash & mask; ; i = (i + 1) & mask {
		s := &x.slots[i]
		if *s == 0 || (*s^hash)&hashPart == 0 && bytes.Equal(x.t.symbol(slotSymbol(*s)), b) {
			return s, hash
		}
	}
}

func slotSymbol(s uint64) int32 { return int32(uint32(s)) - 1 }

func (x *index) find(b []byte) (int32, bool) {
	s, _ := x.slot(b)
	return slotSymbol(*s), *s != 0
}

// add keeps the first symbol of equal bytes; false: there was one.
func (x *index) add(id int32) bool {
	s, hash := x.slot(x.t.symbol(id))
	if *s != 0 {
		return false
	}
	*s = hash&hashPart | uint64(uint32(id)+1)
	if x.used++; 2*x.used > len(x.slots) {
		x.grow()
	}
	return true
}

func (x *index) grow() {
	old := x.slots
	x.slots = make([]uint64, 2*len(old))
	for _, s := range old {
		if s != 0 {
			to, _ := x.slot(x.t.symbol(slotSymbol(s)))
			*to = s
		}
	}
}

// symbol finds or makes the symbol of b. Vocabularies list the products of merges in the order of merges: the one after
// the last symbol asked for is tried first.
func (x *index) symbol(b []byte) int32 {
	t := x.t
	if next := x.last + 1; int(next) < t.size && bytes.Equal(t.symbol(next), b) && t.types[next] == typeNormal {
		x.last = next
		return next
	}
	id, ok := x.find(b)
	if !ok {
		id = int32(len(t.ends))
		t.text = append(t.text, b...)
		t.ends = append(t.ends, uint32(len(t.text)))
		x.add(id)
	}
	x.last = id
	return id
}

// part is symbol for the halves of a merge.
func (x *index) part(b []byte) int32 {
	if len(b) == 1 {
		return x.t.bytes[b[0]]
	}
	last := x.last
	id := x.symbol(b)
	x.last = last
	return id
}
