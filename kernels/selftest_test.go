package kernels

import (
	"errors"
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
	s := &Set{Name: "wrong", mat: wrong{plain{}}}
	if err := s.SelfTest(gguf.Q4_K); !errors.Is(err, ErrSelfTest) {
		t.Errorf("got %v", err)
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
