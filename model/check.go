package model

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/kernels"
)

// LayerCheck is how the second half of one layer compares to a plain float64 reference on the same weights.
type LayerCheck struct {
	Block     int          // number of the layer in the file
	Experts   []int32      // as the reference chooses them, best first
	SameRoute bool         // the kernels chose the same
	Outputs   []Comparison // of each expert's output, by rank of the kernels' choice
	Whole     Comparison   // of what the layer adds to the hidden state: the experts that the kernels chose by weight, and what stands beside them
}

// Comparison is the worst error relative to the largest reference value, and the correlation with the reference.
type Comparison struct {
	MaxError, Correlation float64
}

// CheckLayer runs the experts of MoE layer moe for one random token, through router, kernels and pager as for any other,
// and again in float64 from the dequantised weights. What differs beyond rounding is the quantisation of activations to 8
// bits. It is for a model that does nothing else meanwhile; sequences are not touched.
func (m *Model) CheckLayer(moe int, seed uint64) (LayerCheck, error) {
	l := m.moeLayer(moe)
	if l == nil {
		return LayerCheck{}, fmt.Errorf("model: layer %d of %d with experts: %w", moe, m.MoELayers(), ErrTensor)
	}
	r := rand.New(rand.NewPCG(seed, uint64(moe)))
	x := m.s.x[:m.Config.Width]
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	before := slices.Clone(x)
	m.tasks.norm = normTask{m: m, weight: l.ffnNorm, sw: l.sharedSwitch}
	m.pool.Run(&m.tasks.norm, 1)
	a := widen(m.s.a[:m.Config.Width])
	if err := m.feedForward(l, &Batch{Tokens: []int32{0}, Seqs: []int32{0}, Pos: []int32{0}}); err != nil {
		return LayerCheck{}, err
	}
	added := make([]float32, len(x))
	for i := range x {
		added[i] = x[i] - before[i]
	}
	ids := slices.Clone(m.s.ids[:m.Config.Used])
	c := LayerCheck{Block: l.block, Outputs: make([]Comparison, len(ids))}
	ref := reference{m: m, l: l}
	weights := ref.route(a, &c)
	c.SameRoute = slices.Equal(sorted(ids), sorted(c.Experts))

	sum := make([]float64, len(x))
	err := m.experts.Use(moe, ids, 1, func(ready []expert.Ready) error {
		rank := ready[0].Index
		y, err := ref.expert(ready[0], int(ids[rank]), a)
		if err != nil {
			return err
		}
		row := int(m.s.rowOf[rank])
		c.Outputs[rank] = compare(m.s.out[row*len(x):(row+1)*len(x)], y)
		ref.addBias(y, int(ids[rank]))
		for i, v := range y {
			sum[i] += weights[ids[rank]] * v
		}
		return nil
	})
	ref.addShared(sum, a)
	c.Whole = compare(added, sum)
	return c, err
}

// reference computes in float64, one multiplication after the other.
type reference struct {
	m *Model
	l *layer
}

// route chooses experts for a, by the equation of route.go, and returns every expert's weight.
func (r reference) route(a []float64, c *LayerCheck) map[int32]float64 {
	cfg := r.m.Config
	z := product64(r.m.set, &r.l.router, a)
	p, choice := make([]float64, len(z)), make([]float64, len(z))
	top, all := slices.Max(z), 0.0
	for e := range z {
		if r.l.routerBias != nil {
			z[e] += float64(r.l.routerBias[e])
		}
		p[e] = math.Exp(z[e] - top)
		all += p[e]
	}
	for e := range z {
		switch cfg.Gating {
		case Sigmoid:
			p[e] = 1 / (1 + math.Exp(-z[e]))
		case Softmax:
			p[e] /= all
		}
		choice[e] = p[e]
		if r.l.choiceBias != nil {
			choice[e] += float64(r.l.choiceBias[e])
		}
	}
	leaveGroups(choice, cfg.Groups, cfg.GroupsUsed)
	c.Experts = largest(choice, cfg.Used)
	sum := 0.0
	for _, e := range c.Experts {
		sum += p[e]
	}
	if !cfg.Normalise && cfg.Gating != SoftmaxOfChosen {
		sum = 1
	}
	weights := map[int32]float64{}
	for e := range p {
		weights[int32(e)] = p[e] / sum * float64(cfg.ExpertWeightScale)
	}
	return weights
}

// leaveGroups takes the experts outside the best groups out of the choice.
func leaveGroups(choice []float64, groups, used int) {
	if groups <= 1 {
		return
	}
	size := len(choice) / groups
	best := make([]float64, groups)
	for g := range groups {
		s := slices.Sorted(slices.Values(choice[g*size : (g+1)*size]))
		best[g] = s[size-1] + s[max(size-2, 0)]
	}
	stay := largest(best, used)
	for e := range choice {
		if !slices.Contains(stay, int32(e/size)) {
			choice[e] = math.Inf(-1)
		}
	}
}

// largest are the indices of the n largest values, of equals the lower.
func largest(x []float64, n int) []int32 {
	ids := make([]int32, len(x))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(i, j int32) int { return cmp.Compare(x[j], x[i]) })
	return ids[:n]
}

// expert is the output of one routed expert without the bias of its down projection.
func (r reference) expert(w expert.Ready, e int, a []float64) ([]float64, error) {
	c, l := r.m.Config, r.l
	gateBytes, upBytes := w.GateUp()
	downBytes, err := w.Down()
	if err != nil {
		return nil, err
	}
	var ws [3]kernels.Matrix
	for i, t := range []struct {
		typ        gguf.Type
		rows, cols int
		data       []byte
	}{{l.gateType, c.ExpertWidth, c.Width, gateBytes}, {l.upType, c.ExpertWidth, c.Width, upBytes}, {l.downType, c.Width, c.ExpertWidth, downBytes}} {
		if ws[i], err = kernels.NewMatrix(t.typ, t.rows, t.cols, t.data); err != nil {
			return nil, err
		}
	}
	gate, up := product64(r.m.set, &ws[0], a), product64(r.m.set, &ws[1], a)
	join64(l.jointOf(r.m.spec, e, c.ExpertWidth), gate, up)
	return product64(r.m.set, &ws[2], gate), nil
}

func (r reference) addBias(y []float64, e int) {
	if b := r.l.downBias; b != nil {
		for i := range y {
			y[i] += float64(b[e*len(y)+i])
		}
	}
}

// addShared adds what stands beside the routed experts.
func (r reference) addShared(sum, a []float64) {
	l := r.l
	if l.sharedGate.Rows == 0 {
		return
	}
	gate, up := product64(r.m.set, &l.sharedGate, a), product64(r.m.set, &l.sharedUp, a)
	join64(joint{kind: r.m.spec.Activation, limit: l.sharedLimit}, gate, up)
	part := 1.0
	if l.sharedSwitch != nil {
		part = 1 / (1 + math.Exp(-dot64(l.sharedSwitch, a)))
	}
	for i, v := range product64(r.m.set, &l.sharedDown, gate) {
		sum[i] += part * v
	}
}

// join64 is joint.apply for all rows at once.
func join64(j joint, gate, up []float64) {
	for i, g := range gate {
		u := up[i]
		if j.gateBias != nil {
			g, u = g+float64(j.gateBias[i]), u+float64(j.upBias[i])
		}
		switch {
		case j.kind == SwiGLUOAI:
			g, u = min(g, oaiLimit), max(-oaiLimit, min(u, oaiLimit))
			gate[i] = g / (1 + math.Exp(-oaiAlpha*g)) * (u + 1)
		case j.limit > 0:
			limit := float64(j.limit)
			gate[i] = min(g/(1+math.Exp(-g)), limit) * max(-limit, min(u, limit))
		default:
			gate[i] = g / (1 + math.Exp(-g)) * u
		}
	}
}

// product64 is W a over dequantised weights.
func product64(set *kernels.Set, w *kernels.Matrix, a []float64) []float64 {
	y, row := make([]float64, w.Rows), make([]float32, w.Cols)
	for i := range y {
		// The type was checked when the matrix was made.
		_ = set.Dequantize(w.Type, row, w.Data[i*w.RowBytes:(i+1)*w.RowBytes])
		y[i] = dot64(row, a)
	}
	return y
}

func dot64(w []float32, a []float64) float64 {
	s := 0.0
	for i, v := range w {
		s += float64(v) * a[i]
	}
	return s
}

func compare(got []float32, want []float64) Comparison {
	n := float64(len(want))
	var worst, top, g, w, gg, ww, gw float64
	for i, v := range want {
		u := float64(got[i])
		worst, top = max(worst, math.Abs(u-v)), max(top, math.Abs(v))
		g, w, gg, ww, gw = g+u, w+v, gg+u*u, ww+v*v, gw+u*v
	}
	return Comparison{MaxError: worst / max(top, math.SmallestNonzeroFloat32), Correlation: (gw - g*w/n) / math.Sqrt((gg-g*g/n)*(ww-w*w/n))}
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func sorted(ids []int32) []int32 { return slices.Sorted(slices.Values(ids)) }
