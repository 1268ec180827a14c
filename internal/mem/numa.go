package mem

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Node is a NUMA node that has memory.
type Node struct {
	ID   int
	CPUs []int
}

// Nodes returns the nodes with memory, in order; none where the kernel does not say.
func Nodes() []Node { return nodesUnder("/") }

func nodesUnder(root string) []Node {
	const dir = "/sys/devices/system/node"
	var nodes []Node
	for _, id := range parseList(root, dir+"/has_memory") {
		nodes = append(nodes, Node{ID: id, CPUs: parseList(root, filepath.Join(dir, fmt.Sprintf("node%d", id), "cpulist"))})
	}
	return nodes
}

// parseList reads a list of numbers as the kernel writes it, "0-3,8"; what is no such list counts as empty.
func parseList(root, path string) []int {
	text, err := readText(root, path)
	if err != nil {
		return nil
	}
	var list []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, pair := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if pair && err == nil {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b >= maxNodes*64 || b < a {
			return nil
		}
		for n := a; n <= b; n++ {
			list = append(list, n)
		}
	}
	return list
}

// maxNodes is the most the kernel can be built for (CONFIG_NODES_SHIFT is at most 10).
const maxNodes = 1024

// Modes of mbind(2), include/uapi/linux/mempolicy.h.
const (
	Prefer     = 1 // MPOL_PREFERRED: this node as long as it has free pages
	Interleave = 3 // MPOL_INTERLEAVE: page by page in turn
)

type placement struct {
	mode int
	mask [maxNodes / 64]uint64
}

var current atomic.Pointer[placement]

// PlaceOn has blocks allocated from now on take their pages from the given nodes, by Prefer or Interleave; without nodes from
// where the kernel likes. The error is the kernel's refusal, and nothing changes then.
func PlaceOn(mode int, nodes []int) error {
	if len(nodes) == 0 {
		current.Store(nil)
		return nil
	}
	p := &placement{mode: mode}
	for _, n := range nodes {
		if n < 0 || n >= maxNodes {
			return fmt.Errorf("mem: NUMA node %d: %w", n, ErrSize)
		}
		p.mask[n/64] |= 1 << (n % 64)
	}
	before := current.Load()
	current.Store(p)
	probe, err := Alloc("probe", 1)
	if err != nil {
		current.Store(before)
		return err
	}
	return probe.Free()
}

// bind applies the placement to a block that was not touched yet.
func (p *placement) bind(b *Block) error {
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(b.base), uintptr(b.mapped), uintptr(p.mode),
		uintptr(unsafe.Pointer(&p.mask[0])), uintptr(len(p.mask)*64), 0)
	if errno != 0 {
		return fmt.Errorf("mbind: %w", errno)
	}
	return nil
}

// AllowedIn returns those of cpus that belong to the node, in their order.
func (n Node) AllowedIn(cpus []int) []int {
	return slices.DeleteFunc(slices.Clone(cpus), func(c int) bool { return !slices.Contains(n.CPUs, c) })
}
