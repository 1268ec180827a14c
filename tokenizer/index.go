package tokenizer

import (
	"bytes"
	"hash/maphash"
)

// index finds a symbol by its bytes: open addressing with linear probing over the symbols of a Tokenizer.
type index struct {
	t     *Tokenizer
	seed  maphash.Seed
	slots []uint32 // symbol + 1; 0: free
	used  int
}

func newIndex(t *Tokenizer, n int) *index {
	size := 1024
	for size < 2*n {
		size *= 2
	}
	return &index{t: t, seed: maphash.MakeSeed(), slots: make([]uint32, size)}
}

// slot gives the place of b: with its symbol, or free.
func (x *index) slot(b []byte) *uint32 {
	mask := uint64(len(x.slots) - 1)
	for i := maphash.Bytes(x.seed, b) & mask; ; i = (i + 1) & mask {
		s := &x.slots[i]
		if *s == 0 || bytes.Equal(x.t.symbol(int32(*s-1)), b) {
			return s
		}
	}
}

func (x *index) find(b []byte) (int32, bool) {
	s := *x.slot(b)
	return int32(s) - 1, s != 0
}

// add keeps the first symbol of equal bytes.
func (x *index) add(id int32) {
	s := x.slot(x.t.symbol(id))
	if *s != 0 {
		return
	}
	*s = uint32(id) + 1
	if x.used++; 2*x.used > len(x.slots) {
		x.grow()
	}
}

func (x *index) grow() {
	old := x.slots
	x.slots = make([]uint32, 2*len(old))
	for _, s := range old {
		if s != 0 {
			*x.slot(x.t.symbol(int32(s - 1))) = s
		}
	}
}
