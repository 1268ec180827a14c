package kernels

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

func TestSelfTest(t *testing.T) {
	for _, s := range sets() {
		if err := s.SelfTest(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Best().Check(gguf.Q8_1); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("a type without products: %v", err)
	}
}

// wrong is a set with one bit of one result wrong.
type wrong struct{ ggml_cgo.Mat }

func (w wrong) Rows(typ uint32, m unsafe.Pointer, rowBytes, rows int, x *ggml_cgo.Columns, n int, y *float32, ldy int) {
	w.Mat.Rows(typ, m, rowBytes, rows, x, n, y, ldy)
	*(*uint32)(unsafe.Pointer(y)) ^= 1
}

func TestSelfTestFindsAWrongSet(t *testing.T) {
	s := &Set{Name: "wrong", mat: wrong{plain{}}, vec: plainSet.vec}
	if err := s.SelfTest(gguf.Q4_K); !errors.Is(err, ErrSelfTest) {
		t.Errorf("got %v", err)
	}
}

// The fastest set that computes rightly is taken, and what was wrong with faster ones is told.
func TestWorking(t *testing.T) {
	bad := func(name string) *Set { return &Set{Name: name, mat: wrong{plain{}}, vec: plainSet.vec} }
	for _, c := range []struct {
		sets        []*Set
		works, says string
	}{
		{[]*Set{plainSet}, "scalar", ""},
		{[]*Set{plainSet, bad("fast"), bad("faster")}, "scalar", "faster"},
		{[]*Set{bad("slow"), plainSet}, "scalar", ""},
	} {
		s, lost, err := working(c.sets, []gguf.Type{gguf.Q4_K})
		if err != nil || s.Name != c.works || (lost != nil) != (c.says != "") {
			t.Fatalf("%v: %v, %v", s, lost, err)
		}
		if lost != nil && (!errors.Is(lost, ErrSelfTest) || !strings.Contains(lost.Error(), "set "+c.says+", ")) {
			t.Errorf("says %v", lost)
		}
	}
	if _, _, err := working([]*Set{bad("one"), bad("two")}, []gguf.Type{gguf.Q4_K}); !errors.Is(err, ErrSelfTest) || !strings.Contains(err.Error(), "set two, ") {
		t.Errorf("no set works: %v", err)
	}
	if _, _, err := working([]*Set{plainSet}, []gguf.Type{gguf.I8}); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("a type without products: %v", err)
	}
}

// A set whose operations on vectors are not those of its name is found too.
func TestSelfTestFindsWrongVectors(t *testing.T) {
	for i, r := range plainSet.vectors() {
		other := plainSet.vectors()
		other[i].out[len(r.out)-1]++
		if err := differ("x", other, plainSet.vectors()); !errors.Is(err, ErrSelfTest) || !strings.Contains(err.Error(), r.name) {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

func TestMeasure(t *testing.T) {
	if v, err := Best().Measure(gguf.Q4_K, 0); err != nil || !(v > 0) {
		t.Errorf("%g bytes per second, %v", v, err)
	}
	if _, err := Best().Measure(gguf.I8, 0); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("a type without products: %v", err)
	}
}

func TestStream(t *testing.T) {
	m, err := NewStream(Best(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if v, err := m.Read(0); err != nil || !(v > 0) {
		t.Errorf("read: %g, %v", v, err)
	}
	if v, err := m.Multiply(gguf.Q4_K, 0); err != nil || !(v > 0) {
		t.Errorf("Q4_K: %g, %v", v, err)
	}
	if _, err := m.Multiply(gguf.I8, 0); !errors.Is(err, gguf.ErrUnsupported) {
		t.Errorf("a type without products: %v", err)
	}
}
