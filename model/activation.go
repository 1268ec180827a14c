package model

import "github.com/epq-uring/epq-uring/kernels"

// joint says how gate and up of one expert become its hidden state:
//
//	SwiGLU:     silu(g) u;  with a limit: min(silu(g), limit) clip(u, -limit, limit)
//	SwiGLUOAI:  g <- min(g, 7), u <- clip(u, -7, 7);  g sigmoid(1.702 g) (u + 1)
type joint struct {
	kind             Activation
	limit            float32   // of SwiGLU; 0: none
	gateBias, upBias []float32 // of all rows, or nil
}

// Constants of SwiGLUOAI, which files do not hold.
const (
	oaiLimit = 7
	oaiAlpha = 1.702
)

// jointOf is that of routed expert e, whose hidden state has f numbers.
func (l *layer) jointOf(spec Spec, e, f int) joint {
	j := joint{kind: spec.Activation, limit: l.limit}
	if l.gateBias != nil {
		j.gateBias, j.upBias = l.gateBias[e*f:(e+1)*f], l.upBias[e*f:(e+1)*f]
	}
	return j
}

// apply makes of rows [r0, r0+len(gate)) their hidden state, in gate; up is lost.
func (j *joint) apply(set *kernels.Set, gate, up []float32, r0 int) {
	if j.gateBias != nil {
		set.Add(gate, j.gateBias[r0:r0+len(gate)])
		set.Add(up, j.upBias[r0:r0+len(up)])
	}
	switch {
	case j.kind == SwiGLUOAI:
		up = up[:len(gate)]
		for i, g := range gate {
			g = min(g, oaiLimit)
			gate[i], up[i] = oaiAlpha*g, g*(clip(up[i], oaiLimit)+1)
		}
		set.SigmoidMul(gate, up, gate)
	case j.limit > 0:
		set.SiLU(gate, gate)
		for i, g := range gate {
			gate[i] = min(g, j.limit) * clip(up[i], j.limit)
		}
	default:
		set.SiLUMul(gate, gate, up)
	}
}

func clip(x, limit float32) float32 { return max(-limit, min(x, limit)) }
