package kernels

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
)

// Stream measures how fast all workers together read memory, and multiply weights that lie in it: what bounds decoding.
type Stream struct {
	pool *Pool
	mem  *mem.Block
	set  *Set

	// of the operation that runs
	w    Matrix
	p    *Panel
	y    []float32
	rows int // of a unit
	dot  []float32
}

// Sizes: far beyond any cache, and pieces like those of a layer.
const (
	streamBytes = 256 << 20
	streamUnit  = 256 << 10
	streamCols  = 2048
)

// NewStream starts the workers and fills the memory. Close it.
func NewStream(s *Set, threads int) (*Stream, error) {
	block, err := mem.Alloc("bandwidth", streamBytes)
	if err != nil {
		return nil, err
	}
	block.Touch(threads)
	pool, err := NewPool(threads, AllowedCPUs())
	if err != nil {
		return nil, errors.Join(err, block.Free())
	}
	return &Stream{pool: pool, mem: block, set: s, dot: make([]float32, streamCols)}, nil
}

// Close ends the workers and gives the memory back.
func (m *Stream) Close() error {
	m.pool.Close()
	return m.mem.Free()
}

// Read returns the bytes per second that the workers read, the median of the passes within the given time: the faster of
// reading alone and of products with F32, which ask for memory further ahead than the CPU does by itself.
func (m *Stream) Read(limit time.Duration) (float64, error) {
	m.rows = 0
	alone := m.median(streamBytes/streamUnit, streamBytes, limit/2)
	f32, err := m.Multiply(gguf.F32, limit/2)
	return max(alone, f32), err
}

// Multiply returns the bytes of weights of type t per second that the workers multiply by one column, likewise.
func (m *Stream) Multiply(t gguf.Type, limit time.Duration) (float64, error) {
	form, err := FormOf(t)
	if err != nil {
		return 0, err
	}
	one := randomMatrix(rand.New(rand.NewPCG(1, uint64(t))), t, 64, streamCols)
	data := m.mem.Bytes()
	rows := len(data) / len(one.Data) * 64
	for at := 0; at < rows*one.RowBytes; at += len(one.Data) {
		copy(data[at:], one.Data)
	}
	defer clear(data) // the next may read it as floats
	if m.w, err = NewMatrix(t, rows, streamCols, data); err != nil {
		return 0, err
	}
	m.rows = max(1, streamUnit/one.RowBytes)
	m.p, m.y = NewPanel(nil, 1, streamCols, 0), make([]float32, rows)
	m.set.Gather(m.p, checkInput(m.set, form, streamCols, 1), nil, 1, form)
	return m.median((rows+m.rows-1)/m.rows, float64(rows*one.RowBytes), limit), nil
}

func (m *Stream) median(units int, bytes float64, limit time.Duration) float64 {
	var rates []float64
	for end := time.Now().Add(limit); len(rates) < 3 || time.Now().Before(end); {
		start := time.Now()
		m.pool.Run(m, units)
		rates = append(rates, bytes/time.Since(start).Seconds())
	}
	slices.Sort(rates)
	return rates[len(rates)/2]
}

// Do implements Task.
func (m *Stream) Do(_, unit int) {
	if m.rows > 0 {
		r := unit * m.rows
		m.set.Mul(&m.w, r, min(r+m.rows, m.w.Rows), m.p, m.y, m.w.Rows)
		return
	}
	f := unsafe.Slice((*float32)(unsafe.Pointer(&m.mem.Bytes()[unit*streamUnit])), streamUnit/4)
	for ; len(f) > 0; f = f[streamCols:] {
		m.set.Dot(f[:streamCols], m.dot)
	}
}
