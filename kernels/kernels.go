// Package kernels computes on ggml's quantised formats and on float32 vectors: sets of operations, one per instruction
// set, chosen by what the CPU and the operating system offer, and the workers that run them.
//
// All sets give the same bits: inside a super-block sums are exact integers, and floats are added in one fixed order.
package kernels

import (
	"errors"
	"fmt"
	"strings"

	"github.com/epq-uring/epq-uring/ggml_cgo"
)

// Kinds of errors of this package.
var (
	ErrUnknownSet     = errors.New("unknown kernel set")
	ErrUnsupportedCPU = errors.New("kernel set not supported by this CPU")
)

// Set is one implementation of all operations, for one instruction set. vec is nil where cgo is off: the plain Go
// twins run then.
type Set struct {
	Name string
	vec  *ggml_cgo.VecSet
}

// All returns the sets this machine can run, slowest first.
func All() []*Set {
	sets := []*Set{}
	for _, v := range ggml_cgo.VecSets() {
		if v.Name == "scalar" {
			sets = append(sets, &Set{Name: v.Name, vec: v})
		}
	}
	if len(sets) == 0 {
		sets = append(sets, &Set{Name: "scalar"})
	}
	return sets
}

// Best returns the fastest set this machine can run.
func Best() *Set { all := All(); return all[len(all)-1] }

// ByName returns the set called name.
func ByName(name string) (*Set, error) {
	var names []string
	for _, s := range All() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("kernels: no set %q, there are: %s: %w", name, strings.Join(names, ", "), ErrUnknownSet)
}
