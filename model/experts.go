package model

import "github.com/epq-uring/epq-uring/expert"

// Experts brings routed experts into memory: the pager, or all of them in RAM (the reference run).
type Experts interface {
	// Use reads what is missing of the experts ids (distinct) of a MoE layer and calls fn with those that became
	// usable, at most group at a time: first those in memory, then the others as they land, until every id was given
	// exactly once. What fn gets is valid until it returns. The first error ends it; no call of fn is running then.
	Use(layer int, ids []int32, group int, fn func(ready []expert.Ready) error) error
	// Hint shows, before Use, the hidden state (rows of the model's width) that the next layers' routers may be guessed from
	// (Foresee); layer -1: the embeddings. It stays as it is until Use returns.
	Hint(layer int, hidden []float32)
}
