package ggml_cgo

import (
	"encoding/binary"
	"math"
)

// HalfToFloat converts IEEE half precision.
func HalfToFloat(h uint16) float32 {
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112 // moves the exponent's bias; subnormals come out exact
	x := math.Float32bits(f)
	if h&0x7c00 == 0x7c00 {
		x |= 0x7f800000
	}
	return math.Float32frombits(x | uint32(h&0x8000)<<16)
}

// FloatToHalf converts to IEEE half precision, to nearest, ties to even.
func FloatToHalf(f float32) uint16 {
	x := math.Float32bits(f)
	sign := uint16(x >> 16 & 0x8000)
	switch x &= 0x7fffffff; {
	case x > 0x7f800000:
		return sign | 0x7e00 | uint16(x>>13&0x1ff)
	case x >= 0x477ff000: // 65520 and above
		return sign | 0x7c00
	case x >= 0x38800000:
		return sign | uint16((x+0xfff+x>>13&1-112<<23)>>13)
	}
	return sign | uint16(math.Float32bits(math.Float32frombits(x)+0.5)-0x3f000000) // the last bit of 0.5 is worth the unit of subnormal halves
}

// StoreKV writes one head's key or value in the type of the cache. Q8_0 needs a length that is a multiple of 32.
func (Plain) StoreKV(dst []byte, x []float32, cacheType int) {
	switch cacheType {
	case CacheF32:
		for i, v := range x {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case CacheF16:
		for i, v := range x {
			binary.LittleEndian.PutUint16(dst[2*i:], FloatToHalf(v))
		}
	case CacheQ80:
		for i := 0; i+32 <= len(x); i += 32 {
			storeQ80(dst[i/32*34:], x[i:i+32])
		}
	}
}

func storeQ80(dst []byte, x []float32) {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max32([]float32{top, v, -v})
	}
	inv := float32(0)
	if top != 0 {
		inv = 127 / top
	}
	binary.LittleEndian.PutUint16(dst, FloatToHalf(top/127))
	for i, v := range x {
		const shift = 12582912 // rounds to nearest even
		c := float32(v*inv) + shift
		c -= shift
		if !(c >= -127) {
			c = -127 // a NaN becomes -127
		}
		dst[2+i] = byte(int8(min(c, 127)))
	}
}

func cached(row []byte, cacheType int32, i int) float32 {
	switch cacheType {
	case CacheF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
	case CacheF16:
		return HalfToFloat(binary.LittleEndian.Uint16(row[2*i:]))
	}
	b := row[i/32*34:]
	return float32(int8(b[2+i%32])) * HalfToFloat(binary.LittleEndian.Uint16(b))
}

const attendBlock = 32 // positions; the running softmax steps at multiples of it

// Attend fills a part per query row: accumulated values, largest score, sum of weights (VDim+2 floats) over the positions
// [from, min(to, limit[row])). k and v begin at position 0.
func (Plain) Attend(part, q []float32, rows int, limit []int32, k, v []byte, c *CacheShape, from, to int, scale float32) {
	dk, dv := int(c.KeyDim), int(c.VDim)
	for r := range rows {
		p, x := part[r*(dv+2):(r+1)*(dv+2)], q[r*dk:(r+1)*dk]
		clear(p)
		p[dv] = float32(math.Inf(-1))
		end := min(to, int(limit[r]))
		for b := from; b < end; {
			n := min(attendBlock-b%attendBlock, end-b)
			attendOne(p, x, k, v, c, b, n, scale)
			b += n
		}
	}
}

// attendOne adds positions [b, b+n) of one block to the part of one row.
func attendOne(p, q []float32, k, v []byte, c *CacheShape, b, n int, scale float32) {
	var s [attendBlock]float32
	dv := int(c.VDim)
	for j := range n {
		row := k[int64(b+j)*c.KStride:]
		var t lanes
		for i := range q {
			t[i%16] += float32(q[i] * cached(row, c.KType, i))
		}
		s[j] = foldLanes(&t) * scale
	}
	old := p[dv]
	top := max32([]float32{max32(s[:n]), old})
	fade := exp32(old - top)
	var sum lanes
	for j := range n {
		s[j] = exp32(s[j] - top)
		sum[j%16] += s[j]
	}
	p[dv], p[dv+1] = top, float32(p[dv+1]*fade)+foldLanes(&sum)
	for i := range dv {
		t := float32(0)
		for j := range n {
			t += float32(s[j] * cached(v[int64(b+j)*c.VStride:], c.VType, i))
		}
		p[i] = float32(p[i]*fade) + t
	}
}

// Merge joins the parts of one row, stride floats apart, in order, into len(out) values; a sink is one more score, without
// a value. A row that saw no position gives 0.
func (p Plain) Merge(out, parts []float32, count, stride int, sink []float32) {
	dv := len(out)
	top, weight := float32(math.Inf(-1)), float32(0)
	if len(sink) > 0 {
		top = sink[0]
	}
	for i := range count {
		if m := parts[i*stride+dv]; m > top {
			top = m
		}
	}
	clear(out)
	for i := range count {
		a := parts[i*stride : i*stride+dv+2]
		if a[dv+1] == 0 {
			continue
		}
		e := exp32(a[dv] - top)
		weight += float32(a[dv+1] * e)
		p.AddScaled(out, a[:dv], e)
	}
	if len(sink) > 0 {
		weight += exp32(sink[0] - top)
	}
	if weight != 0 {
		p.Scale(out, 1/weight)
	}
}

// Delta runs the gated delta net over the tokens of one head; the equations are in delta.h.
func (p Plain) Delta(state, q, k, v, decay, beta, o []float32, d *DeltaShape) {
	n := int(d.KeyDim)
	for t := range int(d.Tokens) {
		at := func(x []float32, step int64) []float32 { return x[t*int(step):] }
		qt, kt, g, b := at(q, d.QStep)[:n], at(k, d.KStep)[:n], at(decay, d.DecayStep), at(beta, d.BetaStep)[0]
		kq := p.Dot(kt, qt)
		for j := range int(d.ValueDim) {
			row := state[j*n : (j+1)*n]
			for i := range row {
				row[i] *= g[i*int(d.PerKey)]
			}
			e := b * (at(v, d.VStep)[j] - p.Dot(row, kt))
			at(o, d.OStep)[j] = p.Dot(row, qt) + float32(e*kq)
			p.AddScaled(row, kt, e)
		}
	}
}
