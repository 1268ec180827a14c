package expert

import (
	"math"
	"slices"
	"testing"
)

// Scores that are not finite, or masked but for a few, leave only what can be named.
func TestTop(t *testing.T) {
	inf := float32(math.Inf(1))
	ids := make([]int32, 3)
	for _, c := range []struct {
		scores []float32
		want   []int32
	}{
		{[]float32{1, 3, 2, 3, 0}, []int32{1, 3, 2}},
		{[]float32{-inf, 5, -inf, -inf}, []int32{1}},
		{[]float32{float32(math.NaN()), inf, -inf}, nil},
		{[]float32{-math.MaxFloat32, math.MaxFloat32}, []int32{1, 0}},
	} {
		if n := Top(ids, c.scores); !slices.Equal(ids[:n], c.want) {
			t.Errorf("%v: %v, want %v", c.scores, ids[:n], c.want)
		}
	}
	if n := Top(nil, []float32{1}); n != 0 {
		t.Errorf("%d named, there is no room", n)
	}
}
