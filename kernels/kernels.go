// Package kernels computes on ggml's quantised formats and on float32 vectors: sets of operations, one per instruction
// set, chosen by what the CPU and the operating system offer, and the workers that run them.
//
// All sets give the same bits: inside a super-block sums are exact integers, and floats are added in one fixed order.
package kernels
