package kernels

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/epq-uring/epq-uring/gguf"
)

// sets are all that this machine can run and the plain Go twin.
func sets() []*Set { return append([]*Set{plainSet}, All()...) }

func newActs(capacity, cols int, forms Form) *Acts {
	return NewActs(alignedBytes(ActsBytes(capacity, cols, forms)), capacity, cols, forms)
}

func newPanel(maxCols, cols int, forms Form) *Panel {
	return NewPanel(alignedBytes(PanelBytes(maxCols, cols, forms)), maxCols, cols, forms)
}

func slurp(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func slurpJSON(t testing.TB, name string, v any) {
	t.Helper()
	if err := json.Unmarshal(slurp(t, name), v); err != nil {
		t.Fatal(name, err)
	}
}

func floats(b []byte) []float32 {
	f := make([]float32, len(b)/4)
	for i := range f {
		f[i] = f32(b[4*i:])
	}
	return f
}

func doubles(b []byte) []float64 {
	f := make([]float64, len(b)/8)
	for i := range f {
		f[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return f
}

// setQ8K fills column col with stored blocks of Q8_K (float d, codes[256], sums), and returns its values.
func setQ8K(a *Acts, col int, stored []byte) (x []float64) {
	nb := a.cols / 256
	groups := unsafe.Slice((*actK)(a.column(1, col)), (nb+3)/4)
	for b := range nb {
		p := stored[292*b:]
		for s := b; s < 4*len(groups) && (s == b || nb == 2); s += 2 {
			g := &groups[s/4]
			g.d[s%4] = f32(p)
			for i := range 256 {
				g.q[s%4][i] = int8(p[4+i])
			}
			g.complete(s % 4)
		}
		for i := range 256 {
			x = append(x, float64(f32(p))*float64(int8(p[4+i])))
		}
	}
	return x
}

// setQ80 does the same with blocks of Q8_0 (half d, codes[32]) or Q8_1 (a half more before the codes).
func setQ80(a *Acts, col int, stored []byte, size int) (x []float64) {
	groups := unsafe.Slice((*act32)(a.column(2, col)), (a.cols+255)/256)
	for b := range a.cols / 32 {
		p, g := stored[size*b:], &groups[b/8]
		g.d[b%8] = half(p)
		for i := range 32 {
			g.q[b%8*32+i] = int8(p[size-32+i])
			x = append(x, float64(half(p))*float64(int8(p[size-32+i])))
		}
		g.complete(b % 8)
	}
	return x
}

type goldenType struct {
	Name, Bin, Dequantised, Activation, Dot string
	ID                                      uint32
	RowBytes                                int `json:"row_bytes"`
}

func goldenTypes(t testing.TB) []goldenType {
	var index struct{ Types []goldenType }
	slurpJSON(t, "golden/index.json", &index)
	if len(index.Types) != len(Types()) {
		t.Fatalf("%d golden types, %d formats", len(index.Types), len(Types()))
	}
	return index.Types
}

func TestDequantizeGolden(t *testing.T) {
	for _, g := range goldenTypes(t) {
		src, want := slurp(t, "golden/"+g.Bin), floats(slurp(t, "golden/"+g.Dequantised))
		got := make([]float32, len(want))
		if err := All()[0].Dequantize(gguf.Type(g.ID), got, src); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Errorf("%s[%d] = %g, want %g", g.Name, i, got[i], want[i])
				break
			}
		}
	}
}

func TestMulGolden(t *testing.T) {
	const rows, cols = 12, 512
	for _, g := range goldenTypes(t) {
		data, deq := slurp(t, "golden/"+g.Bin), floats(slurp(t, "golden/"+g.Dequantised))
		w, err := NewMatrix(gguf.Type(g.ID), rows, cols, data)
		if err != nil {
			t.Fatal(err)
		}
		form, _ := FormOf(w.Type)
		a := newActs(3, cols, form)
		var x [3][]float64
		for c := range 3 {
			switch g.Activation {
			case "q8_K":
				x[c] = setQ8K(a, c, slurp(t, "golden/activations.q8_K")[c*2*292:])
			case "q8_0":
				x[c] = setQ80(a, c, slurp(t, "golden/activations.q8_0")[c*16*34:], 34)
			case "q8_1":
				x[c] = setQ80(a, c, slurp(t, "golden/activations.q8_1")[c*16*36:], 36)
			default:
				v := floats(slurp(t, "golden/activations.f32"))[c*cols:][:cols]
				All()[0].Quantize(a, c, v)
				for _, f := range v {
					x[c] = append(x[c], float64(f))
				}
			}
		}
		for _, s := range sets() {
			p := newPanel(3, cols, form)
			y := make([]float32, 3*rows)
			for g := range s.Gather(p, a, nil, 3, form) {
				s.Pack(p, g)
			}
			s.Mul(&w, 0, rows, p, y, rows)
			worst := 0.0
			for c := range 3 {
				for r := range rows {
					sum, mag := 0.0, 1e-300
					for i, v := range x[c] {
						sum += float64(deq[r*cols+i]) * v
						mag += math.Abs(float64(deq[r*cols+i]) * v)
					}
					if g.Dot != "" {
						sum = doubles(slurp(t, "golden/"+g.Dot))[3*r+c]
					}
					worst = max(worst, math.Abs(float64(y[c*rows+r])-sum)/mag)
				}
			}
			if !(worst <= 1e-6) {
				t.Errorf("%s %s: error %g of the sum of magnitudes, allowed 1e-6", s.Name, g.Name, worst)
			}
		}
	}
}

func TestMulCases(t *testing.T) {
	var dots struct {
		Cases []struct {
			Name, Case, Type, Activation string
			Columns                      int
			Dot, Magnitude               float64
		}
	}
	slurpJSON(t, "cases/b40_dots.json", &dots)
	for _, k := range dots.Cases {
		typ, err := gguf.ParseType(k.Type)
		if err != nil {
			t.Fatal(err)
		}
		dir := "cases/" + strings.ToLower(k.Case) + "/" + k.Name
		w, err := NewMatrix(typ, 1, k.Columns, slurp(t, dir+".w"))
		if err != nil {
			t.Fatal(err)
		}
		form, _ := FormOf(typ)
		a := newActs(1, k.Columns, form)
		if form == FormK {
			setQ8K(a, 0, slurp(t, dir+".a"))
		} else {
			setQ80(a, 0, slurp(t, dir+".a"), 34)
		}
		for _, s := range sets() {
			for _, n := range []int{1, 16} {
				p := newPanel(n, k.Columns, form)
				y := make([]float32, n)
				for g := range s.Gather(p, a, make([]int32, n), n, form) {
					s.Pack(p, g)
				}
				s.Mul(&w, 0, 1, p, y, 1)
				for c := range y {
					if d := math.Abs(float64(y[c]) - k.Dot); !(d <= 1e-6*k.Magnitude) {
						t.Errorf("%s %s %d columns: %g, want %g", s.Name, k.Name, n, y[c], k.Dot)
						break
					}
				}
			}
		}
	}
}

// TestMulSameBits holds every set to the plain Go twin, bit for bit: shapes of rows and columns, splits of rows,
// odd addresses.
func TestMulSameBits(t *testing.T) {
	for _, typ := range Types() {
		t.Run(typ.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(typ)))
			unit := max(typ.BlockLen(), 1)
			for _, blocks := range []int{1, 2, 3, 4, 5, 8, 11} {
				cols := blocks * unit
				if unit == 1 {
					cols = []int{1, 24, 31, 32, 100, 256, 515}[r.IntN(7)]
				}
				rows := 1 + r.IntN(14)
				if blocks == 3 {
					rows = 60 + r.IntN(90) // more than a band of the wide shape
				}
				checkSameBits(t, r, randomMatrix(r, typ, rows, cols))
			}
		})
	}
}

// TestMulAllocates: the hot path must not.
func TestMulAllocates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	w := randomMatrix(r, gguf.Q4_K, 16, 512)
	for _, s := range All() {
		if s == plainSet {
			continue // without cgo speed is not the point
		}
		a, p, y, x := newActs(20, 512, FormK), newPanel(20, 512, FormK), make([]float32, 20*16), make([]float32, 512)
		if n := testing.AllocsPerRun(10, func() {
			s.Quantize(a, 3, x)
			for g := range s.Gather(p, a, nil, 20, FormK) {
				s.Pack(p, g)
			}
			s.Mul(&w, 0, 16, p, y, 16)
		}); n != 0 {
			t.Errorf("%s: %g allocations", s.Name, n)
		}
	}
}

func TestNewMatrixRefuses(t *testing.T) {
	for _, k := range []struct {
		typ        gguf.Type
		rows, cols int
		data       int
		kind       error
	}{
		{gguf.Q8_1, 1, 32, 36, gguf.ErrUnsupported},
		{99, 1, 32, 36, gguf.ErrUnsupported},
		{gguf.Q4_K, 1, 100, 144, gguf.ErrCorrupt},
		{gguf.Q4_K, 2, 256, 287, gguf.ErrCorrupt},
		{gguf.Q4_K, -1, 256, 144, gguf.ErrCorrupt},
		{gguf.F32, 1 << 40, 1 << 29, 16, gguf.ErrCorrupt},
		{gguf.F32, 1, 0, 16, gguf.ErrCorrupt},
	} {
		if _, err := NewMatrix(k.typ, k.rows, k.cols, make([]byte, k.data)); !errors.Is(err, k.kind) {
			t.Errorf("%v, %d x %d in %d bytes: %v, want %v", k.typ, k.rows, k.cols, k.data, err, k.kind)
		}
	}
	if err := Best().Dequantize(gguf.Q4_K, make([]float32, 256), make([]byte, 143)); !errors.Is(err, gguf.ErrCorrupt) {
		t.Errorf("dequantising a short block: %v", err)
	}
	if err := Best().Dequantize(gguf.I8, make([]float32, 1), make([]byte, 1)); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("dequantising I8: %v", err)
	}
}

func checkSameBits(t *testing.T, r *rand.Rand, w Matrix) {
	const most = 37
	form, _ := FormOf(w.Type)
	a := newActs(most, w.Cols, form)
	x := make([]float32, w.Cols)
	ref := sets()[0]
	for c := range most {
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		ref.Quantize(a, c, x)
	}
	index := make([]int32, most)
	for i := range index {
		index[i] = int32(r.IntN(most))
	}
	ldy := w.Rows + r.IntN(3)
	want := make([]float32, most*ldy)
	p := newPanel(most, w.Cols, form)
	ref.Gather(p, a, index, most, form)
	ref.Mul(&w, 0, w.Rows, p, want, ldy)
	odd := make([]byte, len(w.Data)+1)[1:] // rows at any address
	copy(odd, w.Data)
	w.Data = odd
	for _, s := range All() {
		for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 20, 24, 25, 32, 33, most} {
			y := make([]float32, most*ldy)
			for g := range s.Gather(p, a, index, n, form) {
				s.Pack(p, g)
			}
			cut := r.IntN(w.Rows + 1)
			s.Mul(&w, cut, w.Rows, p, y, ldy)
			s.Mul(&w, 0, cut, p, y, ldy)
			for c := range n {
				for i := range w.Rows {
					if got, want := y[c*ldy+i], want[c*ldy+i]; math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("%s, %d x %d, %d columns: row %d, column %d = %g, plain %g", s.Name, w.Rows, w.Cols, n, i, c, got, want)
					}
				}
			}
			for i, v := range y[n*ldy:] {
				if v != 0 {
					t.Fatalf("%s, %d columns: wrote beyond them, at %d", s.Name, n, i)
				}
			}
		}
	}
}

// BenchmarkMul: every kind of format, one column and many.
func BenchmarkMul(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.Q8_0, gguf.Q4_0, gguf.IQ4XS, gguf.MXFP4, gguf.Q3_K, gguf.Q2_K, gguf.IQ2XXS, gguf.IQ3S, gguf.IQ1M, gguf.F32, gguf.BF16, gguf.F16} {
		benchmarkColumns(b, typ, 1, 4, 8, 16, 32, 64)
	}
}

// BenchmarkColumns: how the speed grows with the columns. A prompt of 128 tokens gives an expert 2 to 8 of them, and any
// batch leaves a remainder.
func BenchmarkColumns(b *testing.B) {
	for _, typ := range []gguf.Type{gguf.Q4_K, gguf.Q6_K, gguf.Q8_0, gguf.Q4_0} {
		benchmarkColumns(b, typ, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 20, 24, 28, 32, 36, 67)
	}
}

// benchmarkColumns, in names that benchstat can make columns of (-col /set): 512 rows of 2048 weights from memory, by 64 rows; the best of many runs, since a shared machine
// spoils the mean. The columns are packed beforehand: BenchmarkPack has that.
func benchmarkColumns(b *testing.B, typ gguf.Type, columns ...int) {
	const cols = 2048
	r := rand.New(rand.NewPCG(1, 2))
	row, _ := typ.RowBytes(cols)
	rows := int(64<<20/row) &^ 511
	one := randomMatrix(r, typ, 512, cols)
	data := alignedBytes(rows * int(row)) // far beyond the caches
	for i := 0; i < len(data); i += len(one.Data) {
		copy(data[i:], one.Data)
	}
	form, _ := FormOf(typ)
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, s := range All() {
		for _, n := range columns {
			b.Run(fmt.Sprintf("format=%v/set=%s/columns=%d", typ, s.Name, n), func(b *testing.B) {
				a, p, y := newActs(n, cols, form), newPanel(n, cols, form), make([]float32, n*512)
				for c := range n {
					s.Quantize(a, c, x)
				}
				for g := range s.Gather(p, a, nil, n, form) {
					s.Pack(p, g)
				}
				at, best := 0, time.Hour
				for b.Loop() {
					part := Matrix{Type: typ, Rows: 512, Cols: cols, RowBytes: int(row), Data: data[at*int(row):]}
					start := time.Now()
					for r0 := 0; r0 < 512; r0 += 64 {
						s.Mul(&part, r0, r0+64, p, y, 512)
					}
					best = min(best, time.Since(start))
					at = (at + 512) % rows
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(512*row)/best.Seconds()/1e9, "GB/s")
				b.ReportMetric(2*512*cols*float64(n)/best.Seconds()/1e9, "Gop/s")
			})
		}
	}
}
