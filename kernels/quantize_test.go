package kernels

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// toHalf rounds to half precision, nearest even, for numbers of its normal range and 0.
func toHalf(f float32) uint16 {
	if f == 0 {
		return 0
	}
	u := math.Float32bits(f)
	u += 0xfff + u>>13&1
	return uint16(u>>16&0x8000 | (u>>13&0x3ffff - 112<<10))
}

// storedQ8K, storedQ80 and storedQ81 are column col as the reference stores it.
func storedQ8K(a *Acts, col int) (b []byte) {
	groups := unsafe.Slice((*actK)(a.column(1, col)), (a.cols+1023)/1024)
	for i := range a.cols / 256 {
		g, s := &groups[i/4], i%4
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(g.d[s]))
		for _, q := range g.q[s] {
			b = append(b, byte(q))
		}
		for k := range 16 {
			b = binary.LittleEndian.AppendUint16(b, uint16(g.s16[s][k]/-16))
		}
	}
	return b
}

func storedQ80(a *Acts, col int, sums bool) (b []byte) {
	groups := unsafe.Slice((*act32)(a.column(2, col)), (a.cols+255)/256)
	for i := range a.cols / 32 {
		g, s := &groups[i/8], i%8
		b = binary.LittleEndian.AppendUint16(b, toHalf(g.d[s]))
		if sums {
			b = binary.LittleEndian.AppendUint16(b, toHalf(float32(g.sum[s])*g.d[s]))
		}
		for _, q := range g.q[32*s : 32*s+32] {
			b = append(b, byte(q))
		}
	}
	return b
}

func TestQuantizeGolden(t *testing.T) {
	const cols = 512
	x := floats(slurp(t, "golden/activations.f32"))
	for _, s := range sets() {
		a := newActs(3, cols, FormK|Form32)
		var k, q80, q81 []byte
		for c := range 3 {
			s.Quantize(a, c, x[c*cols:][:cols])
			k, q80, q81 = append(k, storedQ8K(a, c)...), append(q80, storedQ80(a, c, false)...), append(q81, storedQ80(a, c, true)...)
		}
		for _, f := range []struct {
			name string
			got  []byte
		}{{"q8_K", k}, {"q8_0", q80}, {"q8_1", q81}} {
			want := slurp(t, "golden/activations."+f.name)
			for i := range want {
				if len(f.got) != len(want) || f.got[i] != want[i] {
					t.Errorf("%s %s: byte %d of %d is %#x, want %#x", s.Name, f.name, i, len(want), f.got[i], want[i])
					break
				}
			}
		}
	}
}

// memory returns the bytes of a column in every form.
func memory(a *Acts, col int) (b []byte) {
	for i, n := range a.stride {
		if n > 0 {
			b = append(b, unsafe.Slice((*byte)(a.column(i, col)), n)...)
		}
	}
	return b
}

// TestQuantizeSameBits holds every set to the plain twin, and pieces to the whole, byte for byte.
func TestQuantizeSameBits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, cols := range []int{256, 512, 768, 1024, 1280, 2048} {
		x := make([]float32, cols)
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(40)-20)))
		}
		x[r.IntN(cols)] = -x[0]
		ref := newActs(1, cols, FormF32|FormK|Form32)
		plainSet.Quantize(ref, 0, x)
		for _, s := range All() {
			a := newActs(2, cols, FormF32|FormK|Form32)
			s.Quantize(a, 0, x)
			for from := cols - 256; from >= 0; from -= 256 {
				s.QuantizePart(a, 1, from, x[from:from+256])
			}
			for c := range 2 {
				got, want := memory(a, c), memory(ref, 0)
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("%s, %d values, in pieces %v: byte %d is %#x, plain %#x", s.Name, cols, c == 1, i, got[i], want[i])
					}
				}
			}
		}
	}
}

// TestQuantizeShortColumns: micro models have columns that fill no group.
func TestQuantizeShortColumns(t *testing.T) {
	for _, cols := range []int{32, 64, 96, 288} {
		x := make([]float32, cols)
		for i := range x {
			x[i] = float32(i) - 20
		}
		ref := newActs(1, cols, FormF32|Form32)
		plainSet.Quantize(ref, 0, x)
		for _, s := range All() {
			a := newActs(1, cols, FormF32|Form32)
			s.Quantize(a, 0, x)
			if string(memory(a, 0)) != string(memory(ref, 0)) {
				t.Errorf("%s, %d values: not the plain twin's bytes", s.Name, cols)
			}
		}
	}
}

type oddRow struct {
	Name string
	Fill json.Number
	At   map[string]any
}

func (o oddRow) values(t *testing.T) []float32 {
	x := make([]float32, 256)
	fill, err := o.Fill.Float64()
	if err != nil {
		t.Fatal(err)
	}
	for i := range x {
		x[i] = float32(fill)
	}
	for k, v := range o.At {
		var i int
		if err := json.Unmarshal([]byte(k), &i); err != nil {
			t.Fatal(err)
		}
		switch v := v.(type) {
		case float64:
			x[i] = float32(v)
		case string:
			x[i] = map[string]float32{"nan": float32(math.NaN()), "inf": float32(math.Inf(1))}[v]
		}
	}
	return x
}

// TestQuantizeCases: zeros, subnormals, huge values, ties; not finite input must show.
func TestQuantizeCases(t *testing.T) {
	var cases struct{ Cases []oddRow }
	slurpJSON(t, "cases/b41_activations.json", &cases)
	for _, k := range cases.Cases {
		x := k.values(t)
		for _, s := range sets() {
			for _, form := range []Form{FormK, Form32} {
				a := newActs(1, 256, form)
				s.Quantize(a, 0, x)
				checkOdd(t, s.Name+" "+k.Name, a, x)
			}
		}
	}
}

func checkOdd(t *testing.T, name string, a *Acts, x []float32) {
	top, finite := 0.0, true
	for _, v := range x {
		top = max(top, math.Abs(float64(v)))
		finite = finite && !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
	}
	bad := 0
	for i, v := range x {
		got := a.value(0, i)
		if math.IsNaN(got) {
			bad++
			continue
		}
		if finite && !(math.Abs(got-float64(v)) <= max(top/127*0.5001, 0x1p-116)) {
			t.Errorf("%s: value %d is %g, want about %g", name, i, got, v)
		}
	}
	if finite != (bad == 0) {
		t.Errorf("%s: %d values are NaN", name, bad)
	}
}

func BenchmarkQuantize(b *testing.B) {
	x := make([]float32, 2048)
	for i := range x {
		x[i] = float32(i%97) - 40
	}
	for _, s := range All() {
		for name, form := range map[string]Form{"K": FormK, "32": Form32} {
			b.Run(s.Name+"/"+name, func(b *testing.B) {
				a := newActs(1, len(x), form)
				for b.Loop() {
					s.Quantize(a, 0, x)
				}
			})
		}
	}
}

func BenchmarkPack(b *testing.B) {
	const cols = 2048
	for _, s := range All() {
		for name, form := range map[string]Form{"K": FormK, "32": Form32} {
			if s.wide&form == 0 {
				continue
			}
			b.Run(s.Name+"/"+name, func(b *testing.B) {
				a, p := newActs(16, cols, form), newPanel(16, cols, form)
				for c := range 16 {
					s.Quantize(a, c, make([]float32, cols))
				}
				s.Gather(p, a, nil, 16, form)
				for b.Loop() {
					s.Pack(p, 0)
				}
			})
		}
	}
}
