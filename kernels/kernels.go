// Package kernels computes on ggml's quantised formats and on float32 vectors: sets of operations, one per instruction
// set, chosen by what the CPU and the operating system offer, and the workers that run them.
//
// All sets give the same bits: inside a super-block sums are exact integers, and floats are added in one fixed order.
package kernels

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

// Kinds of errors of this package.
var (
	ErrUnknownSet     = errors.New("unknown kernel set")
	ErrUnsupportedCPU = errors.New("kernel set not supported by this CPU")
)

// Set is one implementation of all operations, for one instruction set.
type Set struct {
	Name string
	mat  ggml_cgo.Mat
	vec  *ggml_cgo.VecSet
	wide Form // forms of which the set has the wide shape

	// Up to so many columns of FormK and of Form32 the rows shape is faster (BenchmarkColumns): blocks of 32 cost the
	// rows shape more, since each has a sum across lanes of its own.
	rowsK, rows32 int
}

// plainSet is the plain Go twin: what runs without cgo, and what tests hold the others to.
var plainSet = &Set{Name: "scalar", mat: plain{}, vec: vecSet("scalar")}

// built are the sets in this program, slowest first.
var built = sync.OnceValue(func() []*Set {
	var sets []*Set
	for _, m := range ggml_cgo.MatSets() {
		sets = append(sets, newSet(m))
	}
	if sets == nil {
		sets = []*Set{plainSet}
	}
	return sets
})

func newSet(m ggml_cgo.Mat) *Set {
	s := &Set{Name: m.Name(), mat: m, vec: vecSet(m.Name()), rowsK: 4, rows32: 2}
	if s.Name == "avx512" {
		s.rowsK = 6
	}
	if m.HasWide(uint32(gguf.Q4_K)) {
		s.wide |= FormK
	}
	if m.HasWide(uint32(gguf.Q8_0)) {
		s.wide |= Form32
	}
	return s
}

func vecSet(name string) *ggml_cgo.VecSet {
	for _, v := range ggml_cgo.VecSets() {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// All returns the sets this machine can run, slowest first.
func All() []*Set {
	var sets []*Set
	for _, s := range built() {
		if missing(s.Name, machine()) == "" {
			sets = append(sets, s)
		}
	}
	return sets
}

// Best returns the fastest set this machine can run.
func Best() *Set { all := All(); return all[len(all)-1] }

// ByName returns the set called name. ErrUnknownSet: there is none; ErrUnsupportedCPU: this machine cannot run it. Both
// name the sets there are.
func ByName(name string) (*Set, error) {
	for _, s := range built() {
		if s.Name != name {
			continue
		}
		if m := missing(name, machine()); m != "" {
			return nil, fmt.Errorf("kernels: set %s needs %s; use one of: %s: %w", name, m, names(All()), ErrUnsupportedCPU)
		}
		return s, nil
	}
	return nil, fmt.Errorf("kernels: no set %q; use one of: %s: %w", name, names(All()), ErrUnknownSet)
}

// Names returns the names of all sets of this program, those that this machine cannot run included.
func Names() []string {
	var n []string
	for _, s := range built() {
		n = append(n, s.Name)
	}
	return n
}

func names(sets []*Set) string {
	var n []string
	for _, s := range sets {
		n = append(n, s.Name)
	}
	return strings.Join(n, ", ")
}

// Explain says in one line which set Best chose and why not the next better one.
func Explain() string { return explain(built(), machine()) }

func explain(sets []*Set, f features) string {
	best, why := "", ""
	for _, s := range sets {
		if m := missing(s.Name, f); m != "" {
			if why == "" {
				why = fmt.Sprintf("; %s needs %s", s.Name, m)
			}
			continue
		}
		best, why = s.Name, ""
	}
	return best + why
}
