package bench

import (
	"math"
	"slices"
)

// Interval is a range that holds the true value with 95 % confidence.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// median returns the middle value, the mean of the two middle ones for an even number, 0 for none.
func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// spread returns (max - min) / median, 0 where that is not defined.
func spread(x []float64) float64 {
	m := median(x)
	if len(x) == 0 || m == 0 {
		return 0
	}
	return (slices.Max(x) - slices.Min(x)) / m
}

// meanInterval returns Student's interval of the geometric mean, for measures that are positive and vary by factors; nil for
// fewer than two such values, which say nothing of their spread.
func meanInterval(x []float64) *Interval {
	x = logs(x)
	if len(x) < 2 {
		return nil
	}
	m, v := meanVariance(x)
	half := student(float64(len(x)-1)) * math.Sqrt(v/float64(len(x)))
	return &Interval{math.Exp(m - half), math.Exp(m + half)}
}

// Difference compares a measure with the same measure elsewhere.
type Difference struct {
	Ratio    float64   `json:"ratio"`          // this one's over the other's: geometric mean
	Interval *Interval `json:"ci95,omitempty"` // of Ratio; nil: too few runs to tell
	Noise    bool      `json:"noise"`          // the interval holds 1, or there is none: no difference was shown
}

// paired compares runs that were made side by side: a and b have the same length, and what slowed the machine in one round
// slowed both of the round. Pairs that are not positive are left out.
func paired(a, b []float64) Difference {
	var logs []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			logs = append(logs, math.Log(b[i]/a[i]))
		}
	}
	if len(logs) == 0 {
		return Difference{Noise: true}
	}
	mean, v := meanVariance(logs)
	return difference(mean, v/float64(len(logs)), float64(len(logs)-1))
}

// unpaired compares runs of different times by Welch's interval.
func unpaired(a, b []float64) Difference {
	a, b = logs(a), logs(b)
	if len(a) == 0 || len(b) == 0 {
		return Difference{Noise: true}
	}
	ma, va := meanVariance(a)
	mb, vb := meanVariance(b)
	if len(a) < 2 || len(b) < 2 {
		return difference(mb-ma, 0, 0)
	}
	va, vb = va/float64(len(a)), vb/float64(len(b))
	freedom := math.Inf(1) // without any spread
	if d := va*va/float64(len(a)-1) + vb*vb/float64(len(b)-1); d > 0 {
		freedom = (va + vb) * (va + vb) / d
	}
	return difference(mb-ma, va+vb, freedom)
}

// difference turns a mean of logarithms, its variance and the degrees of freedom into a ratio.
func difference(mean, variance, freedom float64) Difference {
	d := Difference{Ratio: math.Exp(mean), Noise: true}
	if freedom < 1 {
		return d
	}
	half := student(freedom) * math.Sqrt(variance)
	d.Interval = &Interval{math.Exp(mean - half), math.Exp(mean + half)}
	d.Noise = d.Interval.Low <= 1 && 1 <= d.Interval.High
	return d
}

func logs(x []float64) (l []float64) {
	for _, v := range x {
		if v > 0 {
			l = append(l, math.Log(v))
		}
	}
	return l
}

// meanVariance returns the mean and the variance of the sample (divided by n - 1; 0 for one value).
func meanVariance(x []float64) (mean, variance float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / max(1, float64(len(x)-1))
	}
	return mean, variance
}

// quantiles are the 0.975 quantiles of Student's t distribution for 1 to 30 degrees of freedom.
var quantiles = [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042}

// student returns the quantile for at least one degree of freedom: fractions are cut, which widens the interval; above
// 30 by the first terms of its expansion in 1/freedom (within 0.001).
func student(freedom float64) float64 {
	if freedom < float64(len(quantiles)+1) {
		return quantiles[int(freedom)-1]
	}
	return 1.95996 + 2.37227/freedom + 2.8225/(freedom*freedom)
}
