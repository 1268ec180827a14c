// Package expert holds the words that pager, prefetch and model share about routed experts: keys, parts, where their
// bytes lie, and the arithmetic that turns a budget into slots.
//
//	tensor table --NewCatalog--> Catalog --NewPlan(budget, terms)--> Plan: slots per size class
//
// Nothing here reads weights or allocates by their size.
package expert

import "errors"

// Kinds of errors; match with errors.Is.
var (
	// ErrNoExperts: the model has no routed experts, so there is nothing to page.
	ErrNoExperts = errors.New("no routed experts")
	// ErrLayout: the expert tensors contradict each other or the model's hyper-parameters.
	ErrLayout = errors.New("expert tensors do not fit together")
)

// Key names one routed expert: Layer counts the MoE layers of the model from 0 (not the blocks), Expert is the router's
// index.
type Key struct {
	Layer  int32
	Expert int32
}

// Weights lends the bytes of one expert for the time of a call. Slices begin at any address.
type Weights interface {
	// GateUp returns the rows of the gate and of the up projection, each as stored in the file. They are there.
	GateUp() (gate, up []byte)
	// Down returns the down projection; it waits if that slice is still on its way.
	Down() ([]byte, error)
}

// Guess is an expert that may be needed soon.
type Guess struct {
	Key Key
	P   float32 // probability that the next visit of its layer uses it
}

// Ready is an expert that can be computed now: Index is its position in the ids given to Use.
type Ready struct {
	Index int
	Weights
}
