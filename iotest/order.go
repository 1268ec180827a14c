package iotest

import "math/rand/v2"

// order gives the offsets of a job's reads, pass after pass: each block of the file once, in order or shuffled. The last
// block is moved forward so that it ends with the file: every byte is read.
type order struct {
	bs     int64
	last   int64 // offset of the last block
	n, at  int64 // blocks; those given in this pass
	random bool
	half   uint // bits of permute's halves
	keys   [4]uint64
	rand   *rand.Rand
}

func newOrder(size, bs, align int64, random bool, seed uint64) *order {
	o := &order{bs: bs, last: (size - bs) / align * align, random: random, rand: rand.New(rand.NewPCG(seed, 1))}
	o.n = (o.last+bs-1)/bs + 1
	for o.half = 1; int64(1)<<(2*o.half) < o.n; {
		o.half++
	}
	o.shuffle()
	return o
}

func (o *order) shuffle() {
	for i := range o.keys {
		o.keys[i] = o.rand.Uint64()
	}
}

func (o *order) next() int64 {
	i := o.at
	if o.at++; o.at == o.n {
		o.at = 0
	}
	if o.random {
		i = o.permute(i)
		if o.at == 0 {
			o.shuffle()
		}
	}
	return min(i*o.bs, o.last)
}

// permute maps 0..n-1 one to one, without a table: a Feistel network over the next even power of two, walked until it
// comes back below n (Black and Rogaway 2002).
func (o *order) permute(i int64) int64 {
	half, mask := o.half, uint64(1)<<o.half-1
	for {
		left, right := uint64(i)>>half, uint64(i)&mask
		for _, k := range o.keys {
			z := (right + k) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>29) * 0x94d049bb133111eb
			left, right = right, left^(z>>32)&mask
		}
		if i = int64(left<<half | right); i < o.n {
			return i
		}
	}
}
