package engine

import (
	"fmt"
	"strings"

	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/uring"
)

// places says where workers run and where memory comes from.
type places struct {
	cpus  []int // for the workers, in the order they take them
	mode  int   // of mem.PlaceOn
	nodes []int // none: as the kernel likes
}

// placesFor carries out --numa on a machine with these nodes, for workers that may run on the allowed CPUs:
//
//	interleave  pages of all nodes in turn, workers on nodes in turn: every worker reads from every memory controller. The
//	            default where there are several nodes, because any worker may compute any expert
//	bind        all workers on the node with the most CPUs allowed, pages from there as long as it has some
//	off         as the kernel likes
//
// llama.cpp's words distribute, isolate and numactl stand for the three.
//
// threads 0 asks for as many as there are CPUs to choose from, at most quota.
func placesFor(mode string, nodes []mem.Node, allowed []int, threads, quota int) (places, int, error) {
	several := 0
	var best mem.Node
	var bestCPUs []int
	for _, n := range nodes {
		if cpus := n.AllowedIn(allowed); len(cpus) > 0 {
			several++
			if len(cpus) > len(bestCPUs) {
				best, bestCPUs = n, cpus
			}
		}
	}
	use := threads
	if threads == 0 {
		use = quota
	}
	switch strings.ToLower(mode) {
	case "off", "numactl":
		return places{cpus: allowed}, use, nil
	case "", "auto", "interleave", "distribute":
		if several < 2 {
			return places{cpus: allowed}, use, nil
		}
		p := places{cpus: inTurn(nodes, allowed), mode: mem.Interleave}
		for _, n := range nodes {
			p.nodes = append(p.nodes, n.ID)
		}
		return p, use, nil
	case "bind", "isolate":
		if several < 2 {
			return places{cpus: allowed}, use, nil
		}
		if threads == 0 {
			use = min(quota, len(bestCPUs))
		}
		if use > len(bestCPUs) {
			return places{}, 0, fmt.Errorf("engine: --numa bind: %d threads, but node %d has %d of the CPUs allowed; use -t %d or --numa interleave: %w",
				use, best.ID, len(bestCPUs), len(bestCPUs), ErrOption)
		}
		return places{cpus: bestCPUs, mode: mem.Prefer, nodes: []int{best.ID}}, use, nil
	}
	return places{}, 0, fmt.Errorf("engine: --numa is %q, allowed are interleave, bind and off: %w", mode, ErrOption)
}

// inTurn orders the allowed CPUs so that neighbours belong to different nodes; within a node their order stays.
func inTurn(nodes []mem.Node, allowed []int) []int {
	var groups [][]int
	for _, n := range nodes {
		groups = append(groups, n.AllowedIn(allowed))
	}
	var cpus []int
	for i := 0; len(cpus) < len(allowed); i++ {
		more := false
		for _, g := range groups {
			if i < len(g) {
				cpus, more = append(cpus, g[i]), true
			}
		}
		if !more {
			break // CPUs of nodes without memory: not used
		}
	}
	return cpus
}

// place puts what is allocated from here on where p says. A refusal costs speed only.
func (p places) place() []uring.Loss {
	if err := mem.PlaceOn(p.mode, p.nodes); err != nil {
		return []uring.Loss{{What: "NUMA placement", Reason: err.Error(), Remedy: "allow mbind (in containers: CAP_SYS_NICE), or say --numa off"}}
	}
	return nil
}
