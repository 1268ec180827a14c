package kernels

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/epq-uring/epq-uring/gguf"
)

// ErrSelfTest is the kind of error of a set whose results are not those of its plain twin.
var ErrSelfTest = errors.New("it computes wrong results on this CPU")

// Types returns the types that every set multiplies, by their numbers.
func Types() []gguf.Type {
	var types []gguf.Type
	for t := range gguf.Type(len(formats)) {
		if _, ok := lookup(t); ok {
			types = append(types, t)
		}
	}
	return types
}

// SelfTest checks the operations on vectors and the products with the given types (none: all), a few milliseconds each: a
// compiler or a CPU that does not do what it should is found before it computes a token.
func (s *Set) SelfTest(types ...gguf.Type) error {
	if err := s.CheckVectors(); err != nil {
		return err
	}
	if types == nil {
		types = Types()
	}
	for _, t := range types {
		if _, err := s.Check(t); err != nil {
			return err
		}
	}
	return nil
}

// Working returns the fastest set of this machine that passes SelfTest for the given types. wrong says what faster ones got
// wrong, nil if there is none. The error is that of the fastest where no set passes, an ErrSelfTest, or that of a type that
// no set multiplies.
func Working(types ...gguf.Type) (set *Set, wrong, err error) { return working(All(), types) }

func working(sets []*Set, types []gguf.Type) (set *Set, wrong, err error) {
	for _, s := range slices.Backward(sets) {
		err := s.SelfTest(types...)
		if err == nil {
			return s, wrong, nil
		}
		if !errors.Is(err, ErrSelfTest) {
			return nil, nil, err
		}
		wrong = cmp.Or(wrong, err)
	}
	return nil, nil, fmt.Errorf("%w, and so do all other sets", wrong)
}

// Check multiplies a small matrix of type t, all code patterns in it, by 1 to 32 columns. The bits must be those of the
// plain Go twin; maxError is the worst error against float64 over the quantised values, relative to the sum of
// magnitudes. ErrSelfTest says that they are not; the set must not be used then.
func (s *Set) Check(t gguf.Type) (maxError float64, err error) {
	form, err := FormOf(t)
	if err != nil {
		return 0, err
	}
	const rows, cols, most = 5, 1280, 32
	r := rand.New(rand.NewPCG(uint64(t), 1))
	w := randomMatrix(r, t, rows, cols)
	mine, ref := checkInput(s, form, cols, most), checkInput(plainSet, form, cols, most)
	want := make([]float32, most*rows)
	plainSet.mulAll(&w, ref, most, want)
	for _, n := range []int{1, 2, 4, 8, 17, most} {
		got := make([]float32, n*rows)
		s.mulAll(&w, mine, n, got)
		for i, v := range got {
			if math.Float32bits(v) != math.Float32bits(want[i]) {
				return 0, fmt.Errorf("kernels: set %s, %v, %d columns: row %d of column %d is %g, the plain twin has %g: %w",
					s.Name, t, n, i%rows, i/rows, v, want[i], ErrSelfTest)
			}
		}
	}
	maxError = worstError(&w, ref, want, most)
	if !(maxError <= 1e-6) {
		return maxError, fmt.Errorf("kernels: set %s, %v: error %.3g of the sum of magnitudes, allowed 1e-6: %w", s.Name, t, maxError, ErrSelfTest)
	}
	return maxError, nil
}

// CheckVectors compares the operations on vectors, attention and the delta net among them, with those of the plain set, bit
// for bit. An ErrSelfTest names the first that differs; the set must not be used then.
func (s *Set) CheckVectors() error { return differ(s.Name, s.vectors(), plainSet.vectors()) }

func differ(set string, mine, ref []result) error {
	for i := range mine {
		for k, v := range mine[i].out {
			if w := ref[i].out[k]; math.Float32bits(v) != math.Float32bits(w) {
				return fmt.Errorf("kernels: set %s, %s: element %d is %g, the plain twin has %g: %w", set, mine[i].name, k, v, w, ErrSelfTest)
			}
		}
	}
	return nil
}

// result is what one operation made of the inputs of vectors.
type result struct {
	name string
	out  []float32
}

// vectors runs every operation on vectors once, with lengths that no vector register divides.
func (s *Set) vectors() (results []result) {
	const (
		n, heads, positions  = 197, 3, 37
		channels, taps, head = 47, 4, 64
	)
	r := rand.New(rand.NewPCG(3, 5))
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	x, w, unit := random(n), random(n), random(1)[0]
	run := func(name string, f func(y []float32)) {
		y := slices.Clone(x)
		f(y)
		results = append(results, result{name, y})
	}
	run("RMS norm", func(y []float32) { s.RMSNorm(y, x, w, 1e-6) })
	run("L2 norm", func(y []float32) { s.L2Norm(y, x, 1e-6, 0.5) })
	run("sum", func(y []float32) { s.Add(y, w) })
	run("scaled sum", func(y []float32) { s.AddScaled(y, w, unit) })
	run("scaling", func(y []float32) { s.Scale(y, unit) })
	run("SiLU", func(y []float32) { s.SiLU(y, x) })
	run("SiLU times", func(y []float32) { s.SiLUMul(y, x, w) })
	run("sigmoid", func(y []float32) { s.Sigmoid(y, x) })
	run("sigmoid times", func(y []float32) { s.SigmoidMul(y, x, w) })
	run("exp", func(y []float32) { s.Exp(y, x) })
	run("softmax", func(y []float32) { s.Softmax(y) })
	run("dot product", func(y []float32) { y[0] = s.Dot(x, w) })
	run("largest element", func(y []float32) { y[0] = float32(s.ArgMax(x)) })
	run("rope, halves", func(y []float32) { s.Rope(y, x[:n/2], w[:n/2], Half) })
	run("rope, neighbours", func(y []float32) { s.Rope(y, x[:n/2], w[:n/2], Adjacent) })
	run("convolution", func(y []float32) {
		s.Conv(y, x, random(taps*channels), y[channels:], channels, 1, channels, taps, true)
	})
	run("delta net", func(y []float32) { s.DeltaStep(random(24*40), x[:24], w[:24], w[24:64], 0.75, unit, y[:40]) })
	for _, t := range []gguf.Type{gguf.F32, gguf.F16, gguf.Q8_0} {
		run("attention over "+t.String(), func(y []float32) {
			row := KVBytes(t, head)
			k, v := make([]byte, positions*row), make([]byte, positions*row)
			for p := range positions {
				s.StoreKV(k[p*row:], random(head), t)
				s.StoreKV(v[p*row:], random(head), t)
			}
			part := make([]float32, 2*heads*PartLen(head))
			limit := []int32{positions, positions - 1, 19}
			q := random(heads * head)
			s.AttendPart(part, q, heads, limit, k, v, t, t, head, head, 0, 16, 0.125)
			s.AttendPart(part[heads*PartLen(head):], q, heads, limit, k, v, t, t, head, head, 16, positions, 0.125)
			for h := range heads {
				s.AttendMergeSink(y[h*head:], part[h*PartLen(head):], 2, heads*PartLen(head), head, unit)
			}
		})
	}
	return results
}

// checkInput quantises the same columns with the set given.
func checkInput(s *Set, form Form, cols, n int) *Acts {
	r := rand.New(rand.NewPCG(7, 7))
	a := NewActs(alignedBytes(ActsBytes(n, cols, form)), n, cols, form)
	x := make([]float32, cols)
	for c := range n {
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		s.Quantize(a, c, x)
	}
	return a
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+64)
	return b[-int(uintptr(unsafe.Pointer(&b[0])))&63:]
}

func (s *Set) mulAll(w *Matrix, a *Acts, n int, y []float32) {
	p := NewPanel(alignedBytes(PanelBytes(n, w.Cols, a.forms)), n, w.Cols, a.forms)
	for g := range s.Gather(p, a, nil, n, a.forms) {
		s.Pack(p, g)
	}
	s.Mul(w, 0, w.Rows, p, y, w.Rows)
}

// worstError compares y to float64 sums over the dequantised weights and columns.
func worstError(w *Matrix, a *Acts, y []float32, n int) (worst float64) {
	row := make([]float32, w.Cols)
	for i := range w.Rows {
		formats[w.Type].dequantize(row, w.Data[i*w.RowBytes:(i+1)*w.RowBytes])
		for c := range n {
			sum, mag := 0.0, 1e-300
			for k, v := range row {
				p := float64(v) * a.value(c, k)
				sum += p
				mag += math.Abs(p)
			}
			worst = max(worst, math.Abs(float64(y[c*w.Rows+i])-sum)/mag)
		}
	}
	return worst
}

// value returns value i of column col as the form that a has (one) holds it.
func (a *Acts) value(col, i int) float64 {
	switch a.forms {
	case FormK:
		g := &unsafe.Slice((*actK)(a.column(1, col)), (a.cols+1023)/1024)[i/1024]
		return float64(g.d[i/256%4]) * float64(g.q[i/256%4][i%256])
	case Form32:
		g := &unsafe.Slice((*act32)(a.column(2, col)), (a.cols+255)/256)[i/256]
		return float64(g.d[i/32%8]) * float64(g.q[i%256])
	}
	return float64(unsafe.Slice((*float32)(a.column(0, col)), a.cols)[i])
}

// randomMatrix is rows x cols random weights of type t: every code pattern, with scales of sensible size.
func randomMatrix(r *rand.Rand, t gguf.Type, rows, cols int) Matrix {
	row, _ := t.RowBytes(int64(cols))
	data := make([]byte, rows*int(row))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for b := data; len(b) > 0; b = b[t.BlockBytes():] {
		tame(t, b, r)
	}
	return Matrix{Type: t, Rows: rows, Cols: cols, RowBytes: int(row), Data: data}
}

// tame overwrites the scales of the block at b, which in random bits may be infinite or not numbers.
func tame(t gguf.Type, b []byte, r *rand.Rand) {
	switch t {
	case gguf.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(r.Float32()-0.5))
	case gguf.BF16:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(r.Float32()-0.5)>>16))
	case gguf.MXFP4:
		b[0] = 110 + b[0]%10
	case gguf.NVFP4:
		for i := range 4 {
			b[i] &= 0x3f
		}
	case gguf.IQ1M: // the top nibbles of four words
		b[55] = b[55]&15 | 0x10
	default:
		for _, at := range scalesAt(t) {
			binary.LittleEndian.PutUint16(b[at:], uint16(0x1000+r.IntN(0x1000)|r.IntN(2)<<15))
		}
	}
}

// scalesAt returns where a block keeps its scale and minimum in half precision.
func scalesAt(t gguf.Type) []int {
	switch t {
	case gguf.Q4_K, gguf.Q5_K, gguf.Q4_1, gguf.Q5_1:
		return []int{0, 2}
	case gguf.Q2_K:
		return []int{80, 82}
	case gguf.Q3_K:
		return []int{108}
	case gguf.Q6_K:
		return []int{208}
	case gguf.TQ1_0:
		return []int{52}
	case gguf.TQ2_0:
		return []int{64}
	}
	return []int{0}
}
