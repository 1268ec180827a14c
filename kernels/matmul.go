package kernels

import (
	"fmt"
	"unsafe"

	"github.com/epq-uring/epq-uring/gguf"
)

// Matrix is a matrix as it lies in the file: Rows rows of Cols weights, RowBytes apart, at any address.
type Matrix struct {
	Type     gguf.Type
	Rows     int
	Cols     int
	RowBytes int
	Data     []byte
}

// NewMatrix checks that data holds rows x cols weights of type t, which some set can multiply.
func NewMatrix(t gguf.Type, rows, cols int, data []byte) (Matrix, error) {
	if _, err := FormOf(t); err != nil {
		return Matrix{}, err
	}
	if rows < 0 || cols <= 0 || cols > 1<<30 {
		return Matrix{}, fmt.Errorf("kernels: a matrix of %d x %d: %w", rows, cols, gguf.ErrCorrupt)
	}
	row, err := t.RowBytes(int64(cols))
	if err != nil {
		return Matrix{}, fmt.Errorf("kernels: %w", err)
	}
	if rows > 0 && int64(len(data))/int64(rows) < row {
		return Matrix{}, fmt.Errorf("kernels: %d x %d weights of %v need %d bytes, there are %d: %w", rows, cols, t, int64(rows)*row, len(data), gguf.ErrCorrupt)
	}
	return Matrix{Type: t, Rows: rows, Cols: cols, RowBytes: int(row), Data: data}, nil
}

// Mul computes y[c*ldy+r] = row r . column c for r0 <= r < r1 and all columns gathered in p; groups must be packed. The
// bits are the same for any split of rows, any number of columns and in every set.
func (s *Set) Mul(w *Matrix, r0, r1 int, p *Panel, y []float32, ldy int) {
	if r0 >= r1 || p.n == 0 {
		return
	}
	f := &formats[w.Type]
	if r0 < 0 || r1 > w.Rows || w.Cols != p.cols || len(y) < (p.n-1)*ldy+r1 || len(w.Data) < r1*w.RowBytes || p.acts.forms&f.form == 0 {
		panic("kernels: Mul beyond the matrix, the panel or y")
	}
	data, out, n := unsafe.Pointer(&w.Data[r0*w.RowBytes]), &y[r0], w.Cols/f.unit()
	i := f.index()
	if p.groups > 0 && p.group[i] > 0 && s.mat.HasWide(uint32(w.Type)) {
		s.mat.Wide(uint32(w.Type), data, w.RowBytes, r1-r0, p.packed[i], p.group[i], p.n, n, out, ldy)
		return
	}
	s.mat.Rows(uint32(w.Type), data, w.RowBytes, r1-r0, &p.columns[i], n, out, ldy)
}

// Dequantize writes the len(dst) weights at src, whole blocks of type t, as the reference does, bit for bit. One plain
// implementation serves every set: only embedding rows and small matrices pass through it.
func (s *Set) Dequantize(t gguf.Type, dst []float32, src []byte) error {
	f, ok := lookup(t)
	if !ok {
		return fmt.Errorf("kernels: no dequantising of %v: %w", t, gguf.ErrUnsupported)
	}
	need, err := t.RowBytes(int64(len(dst)))
	if err != nil {
		return fmt.Errorf("kernels: %w", err)
	}
	if int64(len(src)) < need {
		return fmt.Errorf("kernels: %d weights of %v need %d bytes, there are %d: %w", len(dst), t, need, len(src), gguf.ErrCorrupt)
	}
	f.dequantize(dst, src[:need])
	return nil
}
