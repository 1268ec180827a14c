package bench

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-4*max(1, math.Abs(b)) }

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		x              []float64
		median, spread float64
	}{
		{nil, 0, 0}, {[]float64{3}, 3, 0}, {[]float64{4, 1}, 2.5, 1.2}, {[]float64{9, 1, 2}, 2, 4}, {[]float64{4, 3, 2, 1}, 2.5, 1.2}, {[]float64{0, 0, 5}, 0, 0},
	} {
		x := append([]float64(nil), c.x...)
		if m, s := median(x), spread(x); !near(m, c.median) || !near(s, c.spread) {
			t.Errorf("%v: median %g, spread %g, want %g, %g", c.x, m, s, c.median, c.spread)
		}
		for i := range x {
			if x[i] != c.x[i] {
				t.Errorf("%v was sorted in place", c.x)
			}
		}
	}
}

func TestMeanInterval(t *testing.T) {
	if i := meanInterval([]float64{7}); i != nil {
		t.Errorf("one value: %v", i)
	}
	// ln 1, 2, 3 for e, e^2, e^3: mean 2, deviation 1, so 4.303 / sqrt(3). A run without a figure does not count.
	i := meanInterval([]float64{math.E, 0, math.Exp(2), math.Exp(3)})
	if half := 4.303 / math.Sqrt(3); !near(i.Low, math.Exp(2-half)) || !near(i.High, math.Exp(2+half)) {
		t.Errorf("%+v", i)
	}
	if i := meanInterval([]float64{5, 5, 5, 5}); !near(i.Low, 5) || !near(i.High, 5) {
		t.Errorf("no spread: %+v", i)
	}
}

func TestStudent(t *testing.T) {
	for _, c := range []struct{ freedom, want float64 }{{1, 12.706}, {4.9, 2.776}, {30, 2.042}, {30.9, 2.042}, {31, 2.0395}, {60, 2.0003}, {120, 1.9799}, {math.Inf(1), 1.95996}} {
		if got := student(c.freedom); math.Abs(got-c.want) > 1e-3 {
			t.Errorf("%g degrees: %g, want %g", c.freedom, got, c.want)
		}
	}
}

func TestPaired(t *testing.T) {
	// A drift that hits both arms alike is no noise: each pair has the ratio 1.5.
	d := paired([]float64{10, 4, 7}, []float64{15, 6, 10.5})
	if !near(d.Ratio, 1.5) || d.Noise || !near(d.Interval.Low, 1.5) || !near(d.Interval.High, 1.5) {
		t.Errorf("%+v", d)
	}
	// Ratios 2 and 1/2: nothing shown. Half the width is 12.706 * ln 2.
	d = paired([]float64{1, 2}, []float64{2, 1})
	if !near(d.Ratio, 1) || !d.Noise || !near(d.Interval.High, math.Exp(12.706*math.Ln2)) {
		t.Errorf("%+v", d)
	}
	if d := paired([]float64{1}, []float64{9}); !near(d.Ratio, 9) || !d.Noise || d.Interval != nil {
		t.Errorf("one pair shows nothing: %+v", d)
	}
	if d := paired([]float64{0, 1, 1}, []float64{5, 3, 3}); !near(d.Ratio, 3) || d.Noise {
		t.Errorf("a pair without a value counts: %+v", d)
	}
	if d := paired(nil, nil); !d.Noise || d.Ratio != 0 {
		t.Errorf("%+v", d)
	}
}

func TestUnpaired(t *testing.T) {
	// The same drift between unpaired runs hides the ratio.
	if d := unpaired([]float64{10, 4, 7}, []float64{15, 6, 10.5}); !near(d.Ratio, 1.5) || !d.Noise {
		t.Errorf("%+v", d)
	}
	if d := unpaired([]float64{10, 10.1, 9.9}, []float64{12, 12.1, 11.9}); d.Noise || d.Interval.Low < 1.15 || d.Interval.High > 1.25 {
		t.Errorf("%+v", d)
	}
	if d := unpaired([]float64{10, 10}, []float64{12, 12}); d.Noise || !near(d.Interval.Low, 1.2) {
		t.Errorf("no spread: %+v", d)
	}
	if d := unpaired([]float64{10}, []float64{12, 12}); !d.Noise || d.Interval != nil || !near(d.Ratio, 1.2) {
		t.Errorf("one run: %+v", d)
	}
	// Equal variances and sizes: Welch has 2 (n - 1) degrees. ln values 0, 1 against 2, 3: 4.303 * sqrt(0.25 + 0.25).
	e := math.E
	d := unpaired([]float64{1, e}, []float64{e * e, e * e * e})
	if want := 4.303 * math.Sqrt(0.5); !near(math.Log(d.Interval.High), 2+want) || !d.Noise {
		t.Errorf("%+v, want a half width of %g", d, want)
	}
}
