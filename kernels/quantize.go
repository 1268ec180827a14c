package kernels

import (
	"fmt"
	"unsafe"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

// Form is how activations are held for a product: bits, since one input may be needed in several forms.
type Form uint8

// The forms. FormK and Form32 are integers with a scale per 256 (as Q8_K) and per 32 (as Q8_0, the scale in float32).
const (
	FormF32 Form = 1 << iota // float32, for F32, F16 and BF16
	FormK                    // super-blocks of 256: K, IQ1 to IQ4_XS and TQ types
	Form32                   // blocks of 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4, NVFP4, Q1_0, Q2_0
)

// The layouts of ggml_cgo/blocks.h.
type (
	actK struct {
		q, p [4][256]int8
		s32  [4][8]int16
		s16  [4][16]int16
		d    [4]float32
		_    [48]byte
	}
	act32 struct {
		q, h [256]int8
		sum  [8]int32
		d    [8]float32
	}
	wideK struct {
		q   [64][16][4]int8
		s32 [4][16][2]int16
		s16 [8][16][2]int16
		d   [16]float32
	}
	wide32 struct {
		q   [64][16][4]int8
		sum [8][16]int32
		d   [8][16]float32
	}
)

const (
	actKBytes   = int(unsafe.Sizeof(actK{}))
	act32Bytes  = int(unsafe.Sizeof(act32{}))
	wideKBytes  = int(unsafe.Sizeof(wideK{}))
	wide32Bytes = int(unsafe.Sizeof(wide32{}))

	wideCols = 16 // columns of a packed group
)

// FormOf returns the form that products with matrices of type t read; ErrUnsupported of gguf for a type that no set
// multiplies.
func FormOf(t gguf.Type) (Form, error) {
	if f, ok := lookup(t); ok {
		return f.form, nil
	}
	return 0, fmt.Errorf("kernels: no products with matrices of %v: %w", t, gguf.ErrUnsupported)
}

// columnBytes is the size of one column of cols values in each form asked for, in the order F32, K, 32.
func columnBytes(cols int, forms Form) (b [3]int) {
	if forms&FormF32 != 0 {
		b[0] = (cols + 31) / 32 * 128
	}
	if forms&FormK != 0 {
		b[1] = (cols + 1023) / 1024 * actKBytes
	}
	if forms&Form32 != 0 {
		b[2] = (cols + 255) / 256 * act32Bytes
	}
	return b
}

// Acts holds the quantised columns of one layer input: each is quantised once and read by every matrix of that input.
type Acts struct {
	cols     int
	capacity int
	forms    Form
	base     [3]unsafe.Pointer // by form: F32, K, 32
	stride   [3]int
}

// ActsBytes returns the memory that NewActs needs for capacity columns of cols values.
func ActsBytes(capacity, cols int, forms Form) int {
	b := columnBytes(cols, forms)
	return capacity * (b[0] + b[1] + b[2])
}

// NewActs lays capacity columns of cols values in the given forms out in mem: 64-byte aligned, at least ActsBytes long,
// not moved or freed while in use. FormK needs cols to be a multiple of 256, Form32 of 32.
func NewActs(mem []byte, capacity, cols int, forms Form) *Acts {
	a := &Acts{cols: cols, capacity: capacity, forms: forms, stride: columnBytes(cols, forms)}
	if len(mem) < ActsBytes(capacity, cols, forms) {
		panic("kernels: memory of NewActs is shorter than ActsBytes")
	}
	at := 0
	for i, s := range a.stride {
		if s > 0 && capacity > 0 {
			a.base[i] = unsafe.Pointer(&mem[at])
		}
		at += capacity * s
	}
	return a
}

// Cols returns the number of values of a column.
func (a *Acts) Cols() int { return a.cols }

// column returns the memory of column col in form i.
func (a *Acts) column(i, col int) unsafe.Pointer {
	if uint(col) >= uint(a.capacity) {
		panic("kernels: column out of range")
	}
	return unsafe.Add(a.base[i], col*a.stride[i])
}

// Quantize fills column col with x, len(x) = Cols, in all forms of a. Different columns may be filled in parallel.
// Values that are not finite give a scale of NaN: every product that reads them is NaN.
func (s *Set) Quantize(a *Acts, col int, x []float32) { s.QuantizePart(a, col, 0, x) }

// QuantizePart fills the piece [from, from+len(x)) of column col; from is a multiple of 256, and so is len(x) unless
// the piece ends the column. Different pieces may be filled in parallel.
func (s *Set) QuantizePart(a *Acts, col, from int, x []float32) {
	end := from + len(x)
	if from < 0 || from%256 != 0 || end > a.cols || end < a.cols && end%256 != 0 {
		panic("kernels: piece of a column out of range")
	}
	if len(x) == 0 {
		return
	}
	if a.forms&FormF32 != 0 {
		dst := unsafe.Slice((*float32)(a.column(0, col)), (a.cols+31)/32*32)
		copy(dst[from:], x)
		if end == a.cols {
			clear(dst[end:])
		}
	}
	if a.forms&FormK != 0 {
		s.mat.QuantizeK(a.column(1, col), a.cols, from, x)
	}
	if a.forms&Form32 != 0 {
		s.mat.Quantize32(a.column(2, col), a.cols, from, x)
	}
}

// Panel names the columns one product reads and holds them side by side where the wide shape is used.
type Panel struct {
	acts    *Acts
	index   []int32
	n       int
	groups  int
	forms   Form // packed
	cols    int
	packed  [3]unsafe.Pointer
	group   [3]int // bytes of a packed group
	columns [3]ggml_cgo.Columns
}

// packedBytes is the size of a group of 16 packed columns in each form.
func packedBytes(cols int, forms Form) (b [3]int) {
	if forms&FormK != 0 {
		b[1] = (cols + 255) / 256 * wideKBytes
	}
	if forms&Form32 != 0 {
		b[2] = (cols + 255) / 256 * wide32Bytes
	}
	return b
}

// PanelBytes returns the memory NewPanel needs for up to maxCols columns of cols values.
func PanelBytes(maxCols, cols int, forms Form) int {
	b := packedBytes(cols, forms)
	return (maxCols + wideCols - 1) / wideCols * (b[1] + b[2])
}

// NewPanel makes room for products with up to maxCols columns of cols values. mem: 64-byte aligned, at least PanelBytes
// long, the caller's.
func NewPanel(mem []byte, maxCols, cols int, forms Form) *Panel {
	p := &Panel{index: make([]int32, maxCols), cols: cols, forms: forms, group: packedBytes(cols, forms)}
	if len(mem) < PanelBytes(maxCols, cols, forms) {
		panic("kernels: memory of NewPanel is shorter than PanelBytes")
	}
	at := 0
	for i, g := range p.group {
		if g > 0 && maxCols > 0 {
			p.packed[i] = unsafe.Pointer(&mem[at])
		}
		at += (maxCols + wideCols - 1) / wideCols * g
	}
	return p
}

// Gather makes p read columns cols of a (nil: 0 to n-1), n of them; forms are those this product's matrices need. It
// returns how many groups must be packed before Mul: 0 where the rows shape serves.
func (s *Set) Gather(p *Panel, a *Acts, cols []int32, n int, forms Form) (groups int) {
	if n > len(p.index) || a.cols != p.cols || forms&^a.forms != 0 {
		panic("kernels: Gather beyond the panel or without the form")
	}
	p.acts, p.n, p.groups = a, n, 0
	for i := range n {
		c := int32(i)
		if cols != nil {
			c = cols[i]
		}
		if uint32(c) >= uint32(a.capacity) {
			panic("kernels: Gather of a column out of range")
		}
		p.index[i] = c
	}
	for i := range p.columns {
		p.columns[i] = ggml_cgo.Columns{Base: a.base[i], Stride: a.stride[i], Index: p.index[:n]}
	}
	forms &= p.forms & s.wide
	if n <= s.rowsK {
		forms &^= FormK
	}
	if n <= s.rows32 {
		forms &^= Form32
	}
	if forms != 0 {
		p.groups = (n + wideCols - 1) / wideCols
		p.group = packedBytes(p.cols, forms)
	}
	return p.groups
}

// Pack lays group g of the gathered columns side by side; groups may be packed in parallel.
func (s *Set) Pack(p *Panel, g int) {
	lo := g * wideCols
	hi := min(lo+wideCols, p.n)
	if p.group[1] > 0 {
		x := ggml_cgo.Columns{Base: p.acts.base[1], Stride: p.acts.stride[1], Index: p.index[lo:hi]}
		s.mat.PackK(x, p.cols/256, unsafe.Add(p.packed[1], g*p.group[1]))
	}
	if p.group[2] > 0 {
		x := ggml_cgo.Columns{Base: p.acts.base[2], Stride: p.acts.stride[2], Index: p.index[lo:hi]}
		s.mat.Pack32(x, p.cols/32, unsafe.Add(p.packed[2], g*p.group[2]))
	}
}
