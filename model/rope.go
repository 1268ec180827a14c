package model

import (
	"math"

	"github.com/epq-uring/epq-uring/kernels"
)

// Rope turns pairs of components of queries and keys by angles that grow with the position:
//
//	angle of pair i at position p = p Base^(-2i/Dim) / Factor[i]
type Rope struct {
	Dim      int // components that turn, even
	Base     float64
	Sections []int     // pairs per axis of a multi-axis rope; nil: plain
	Factor   []float32 // per pair; nil: 1
	Size     float32   // of the turned vectors
}

// rope reads the rotation; Rope.Dim and Scale are known.
func (r *reader) rope(c *Config) {
	c.Rope.Size = 1
	if r.err == nil && c.Rope.Dim%2 != 0 {
		r.fail("rope.dimension_count", "is %d, an even number is needed", c.Rope.Dim)
	}
	c.Rope.Base = r.float("rope.freq_base", 1, 1e12, 10000)
	r.sections(c)
	if r.err != nil {
		return
	}
	kind, _, err := r.f.String(r.prefix + "rope.scaling.type")
	switch {
	case err != nil:
		r.fail("rope.scaling.type", "is not a text: %v", err)
	case kind == "yarn":
		r.yarn(c)
	case kind == "linear" || kind == "":
		if f := r.float("rope.scaling.factor", 0, 1e6, 1); f > 0 && f != 1 {
			c.Rope.divide(func(int) float64 { return f })
		}
	case kind != "none":
		r.fail("rope.scaling.type", "is %q, supported are linear, yarn and none", kind)
	}
	c.Rope.freeze()
}

func (r *reader) sections(c *Config) {
	v, ok, err := r.f.Ints(r.prefix + "rope.dimension_sections")
	if err != nil {
		r.fail("rope.dimension_sections", "is not a list of whole numbers: %v", err)
	}
	if !ok || err != nil {
		return
	}
	sum := 0
	for _, s := range v {
		if s < 0 || s > int64(c.Rope.Dim) {
			r.fail("rope.dimension_sections", "holds %d, allowed is 0 to %d", s, c.Rope.Dim)
			return
		}
		sum += int(s)
		c.Rope.Sections = append(c.Rope.Sections, int(s))
	}
	if len(v) < 3 || sum == 0 {
		c.Rope.Sections = nil
	}
}

// yarn stretches slow pairs by a factor and keeps fast ones (Peng et al. 2023); with n = Dim, C the original context:
//
//	P(x) = n ln(C / (2 pi x)) / (2 ln base)      the pair that makes x turns within C
//	lo = max(0, floor(P(beta_fast)))    hi = min(n - 1, ceil(P(beta_slow)))
//	keep = 1 - clip((i - lo) / max(0.001, hi - lo), 0, 1)      angle = p base^(-2i/n) (keep + (1 - keep) / factor)
//
// The turned vectors grow by 1 + 0.1 ln factor. In latent attention the whole score does, squared, and the vectors keep
// their size where yarn_log_multiplier is given (0.1 times the checkpoint's mscale_all_dim).
func (r *reader) yarn(c *Config) {
	n := float64(c.Rope.Dim)
	f := r.float("rope.scaling.factor", 1, 1e6, math.NaN())
	ctx := float64(r.number("rope.scaling.original_context_length", 1, maxContext, c.Context))
	fast := r.float("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32)
	slow := r.float("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1)
	multiplier := r.float("rope.scaling.yarn_log_multiplier", 0, 1e3, 0)
	size := r.float("rope.scaling.attn_factor", 1e-3, 1e3, 1)
	if r.err == nil && c.Rope.Base <= 1 {
		r.fail("rope.freq_base", "is %g, which yarn cannot stretch", c.Rope.Base)
	}
	if r.err != nil {
		return
	}
	pairAt := func(turns float64) float64 { return n * math.Log(ctx/(turns*2*math.Pi)) / (2 * math.Log(c.Rope.Base)) }
	lo, hi := max(0, math.Floor(pairAt(fast))), min(n-1, math.Ceil(pairAt(slow)))
	c.Rope.divide(func(i int) float64 {
		keep := 1 - min(max((float64(i)-lo)/max(0.001, hi-lo), 0), 1)
		return 1 / (keep + (1-keep)/f)
	})
	grow := func(m float64) float64 { return 1 + 0.1*m*math.Log(f) }
	if c.Latent.Rank > 0 {
		m := multiplier / 0.1
		if m == 0 {
			m = 1
			size *= grow(1)
		}
		c.Scale *= float32(grow(m) * grow(m))
	} else {
		size *= grow(1)
	}
	c.Rope.Size = float32(size)
}

// divide slows each pair down by f(pair).
func (r *Rope) divide(f func(pair int) float64) {
	if r.Factor == nil {
		r.Factor = make([]float32, r.Dim/2)
		for i := range r.Factor {
			r.Factor[i] = 1
		}
	}
	for i := range r.Factor {
		r.Factor[i] *= float32(f(i))
	}
}

// freeze stops the pairs of a multi-axis rope that belong to no axis; in text all axes have the same position, so the
// others turn as ever (interleaved sections, docs/models/qwen35moe.md).
func (r *Rope) freeze() {
	sum := 0
	for _, s := range r.Sections {
		sum += s
	}
	if sum == 0 {
		return
	}
	r.divide(func(i int) float64 {
		if at := i % sum; at >= 3*r.Sections[at%3] {
			return math.Inf(1)
		}
		return 1
	})
}

// table sets cosine and sine of the pairs at a position, Dim/2 each.
func (r *Rope) table(cos, sin []float32, pos int) {
	kernels.RopeTable(cos, sin, pos, r.Base, r.Factor)
	if r.Size == 1 {
		return
	}
	for i := range cos {
		cos[i] *= r.Size
		sin[i] *= r.Size
	}
}
