package model

import (
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

// state holds what sequences leave behind: keys and values of the attention layers, matrix and convolution state of the
// delta nets. Each of the sequences has its own part; nothing grows after loading.
type state struct {
	c            Config
	context      int // positions per sequence
	typeK, typeV gguf.Type
	rowK, rowV   int // bytes of one head at one position; rowV 0: the value is part of the key

	keys, values [][]byte    // [sequence*caches+cache]: [kv head][position][row]
	matrices     [][]float32 // [sequence*recurrents+recurrent]: [value head][value][key]
	taps         [][]float32 // [sequence*recurrents+recurrent]: planes [taps-1][channel], oldest first

	caches, recurrents int
}

func newState(c Config, layers []layer, opt Options) (*state, error) {
	s := &state{c: c, context: opt.Context, typeK: opt.TypeK, typeV: opt.TypeV}
	for i := range layers {
		if layers[i].mixer.recurrent() {
			s.recurrents++
		} else {
			s.caches++
		}
	}
	latent := c.Latent.Rank > 0
	if latent {
		s.typeV = s.typeK
	}
	if err := kernels.CheckCache(s.typeK, s.typeV, c.KeyDim, c.ValueDim); err != nil {
		return nil, err
	}
	s.rowK = kernels.KVBytes(s.typeK, c.KeyDim)
	if !latent {
		s.rowV = kernels.KVBytes(s.typeV, c.ValueDim)
	}
	return s, nil
}

// divide cuts the memory of n sequences, or counts it.
func (s *state) divide(kv, recurrent *space, n int) {
	for range n {
		for range s.caches {
			s.keys = append(s.keys, kv.bytes(s.c.KVHeads*s.context*s.rowK))
			s.values = append(s.values, kv.bytes(s.c.KVHeads*s.context*s.rowV))
		}
		for range s.recurrents {
			s.matrices = append(s.matrices, recurrent.floats(s.c.ValueHeads*s.c.StateDim*s.c.StateDim))
			s.taps = append(s.taps, recurrent.floats((s.c.ConvTaps-1)*s.c.convChannels()))
		}
	}
}

// key and value return the cache of one head from position 0 on.
func (s *state) key(seq int32, cache, head int) []byte {
	n := s.context * s.rowK
	return s.keys[int(seq)*s.caches+cache][head*n : (head+1)*n]
}

// value is nil where the value is part of the key.
func (s *state) value(seq int32, cache, head int) []byte {
	if s.rowV == 0 {
		return nil
	}
	n := s.context * s.rowV
	return s.values[int(seq)*s.caches+cache][head*n : (head+1)*n]
}

// reset forgets a sequence. Keys and values need no clearing: positions are written before they are read.
func (s *state) reset(seq int32) {
	for i := range s.recurrents {
		clear(s.matrices[int(seq)*s.recurrents+i])
		clear(s.taps[int(seq)*s.recurrents+i])
	}
}
