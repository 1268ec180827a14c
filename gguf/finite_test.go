package gguf

import (
	"encoding/binary"
	"math"
	"os"
	"testing"
)

// A scale that is NaN or infinite is found in whichever block it is, and nothing else is taken for one.
func TestNotFinite(t *testing.T) {
	const blocks = 5
	for typ, offsets := range scales {
		b := make([]byte, blocks*typ.BlockBytes())
		for i := range b {
			b[i] = 0xff // quants of all kinds
		}
		set := func(block, offset int, v uint16) {
			binary.LittleEndian.PutUint16(b[block*typ.BlockBytes()+offset:], v)
		}
		for block := range blocks {
			for _, offset := range offsets {
				set(block, offset, 0x7bff) // the largest half
			}
		}
		if block, found := typ.NotFinite(b); found {
			t.Errorf("%v: block %d of finite ones", typ, block)
		}
		for _, offset := range offsets {
			for _, v := range []uint16{0x7c00, 0xfc00, 0x7e01} {
				set(3, offset, v)
				if block, found := typ.NotFinite(b); !found || block != 3 {
					t.Errorf("%v: %#x at %d of block 3: %d, %v", typ, v, offset, block, found)
				}
				set(3, offset, 0)
			}
		}
	}
}

func TestNotFiniteNumbers(t *testing.T) {
	for typ, c := range map[Type]struct {
		put           func(b []byte, v float32)
		largest, nans float32
	}{
		F32:  {func(b []byte, v float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(v)) }, math.MaxFloat32, float32(math.NaN())},
		BF16: {func(b []byte, v float32) { binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16)) }, -1e38, float32(math.Inf(-1))},
	} {
		for n := range 9 {
			b := make([]byte, n*typ.BlockBytes())
			for i := range n {
				c.put(b[i*typ.BlockBytes():], c.largest)
			}
			if at, found := typ.NotFinite(b); found {
				t.Errorf("%v: number %d of %d finite ones", typ, at, n)
			}
			for i := range n {
				c.put(b[i*typ.BlockBytes():], c.nans)
				if at, found := typ.NotFinite(b); !found || at != i {
					t.Errorf("%v: number %d of %d is broken, found %d, %v", typ, i, n, at, found)
				}
				c.put(b[i*typ.BlockBytes():], 0)
			}
		}
	}
	if at, found := F16.NotFinite([]byte{0xff, 0x7b, 0, 0x7c}); !found || at != 1 {
		t.Errorf("F16: %d, %v", at, found)
	}
}

// One expert of a published kind of file has a scale that is no number.
func TestNotFiniteScale(t *testing.T) {
	const path = "testdata/b41_nan_scale.gguf"
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	x, _ := f.Tensor("blk.0.ffn_down_exps.weight")
	for expert := range int(x.Slices()) {
		s := x.Slice(expert)
		block, found := x.Type.NotFinite(raw[s.Offset : s.Offset+s.Size])
		if found != (expert == 2) || block != 0 {
			t.Errorf("expert %d: block %d, %v", expert, block, found)
		}
	}
}
