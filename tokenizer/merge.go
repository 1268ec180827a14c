package tokenizer

// noPair is the entry of two neighbours that do not merge; it sorts behind every other.
const noPair = ^uint64(0)

// mergeTable maps two neighbouring symbols to what they merge to: open addressing with linear probing, at most half
// full. A value is rank<<32 | symbol, so that the smaller value is the merge to do first.
type mergeTable struct {
	keys []uint64 // left<<32 | right, plus one; 0: free
	vals []uint64
	mask uint64
}

func newMergeTable(n int) mergeTable {
	size := 16
	for size < 2*n {
		size *= 2
	}
	return mergeTable{keys: make([]uint64, size), vals: make([]uint64, size), mask: uint64(size - 1)}
}

func mergeKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) + 1 }

// home spreads keys by Fibonacci hashing, which is well mixed in the upper half.
func (m *mergeTable) home(key uint64) uint64 { return (key * 0x9E3779B97F4A7C15) >> 32 & m.mask }

// add keeps the first value of a pair.
func (m *mergeTable) add(left, right int32, val uint64) {
	key := mergeKey(left, right)
	for i := m.home(key); ; i = (i + 1) & m.mask {
		switch m.keys[i] {
		case 0:
			m.keys[i], m.vals[i] = key, val
			return
		case key:
			return
		}
	}
}

func (m *mergeTable) find(left, right int32) uint64 {
	key := mergeKey(left, right)
	for i := m.home(key); ; i = (i + 1) & m.mask {
		switch m.keys[i] {
		case key:
			return m.vals[i]
		case 0:
			return noPair
		}
	}
}

// shortPiece is the number of symbols up to which looking at all pairs beats a heap.
const shortPiece = 48

// merger does the merges of one piece; its slices are kept from piece to piece.
type merger struct {
	table *mergeTable
	syms  []int32
	pairs []uint64 // pairs[i]: what symbol i and its right neighbour merge to
	next  []int32
	prev  []int32
	heap  []uint64 // rank<<32 | position
	steps int      // pairs looked up and heap moves, to count work
}

// merge merges m.syms by rank, the leftmost of equal ranks first, and leaves the result in m.syms.
func (m *merger) merge() {
	m.pairs = m.pairs[:0]
	for i := 1; i < len(m.syms); i++ {
		m.pairs = append(m.pairs, m.table.find(m.syms[i-1], m.syms[i]))
	}
	m.steps += len(m.pairs)
	if len(m.syms) <= shortPiece {
		m.mergeShort()
	} else {
		m.mergeLong()
	}
}

func (m *merger) mergeShort() {
	syms, pairs := m.syms, m.pairs
	for len(pairs) > 0 {
		at, best := 0, noPair
		for i, p := range pairs {
			if p>>32 < best>>32 {
				at, best = i, p
			}
		}
		if best == noPair {
			break
		}
		syms[at] = int32(uint32(best))
		syms = append(syms[:at+1], syms[at+2:]...)
		pairs = append(pairs[:at], pairs[at+1:]...)
		if at > 0 {
			pairs[at-1] = m.table.find(syms[at-1], syms[at])
		}
		if at < len(pairs) {
			pairs[at] = m.table.find(syms[at], syms[at+1])
		}
		m.steps += 2
	}
	m.syms = syms
}

// mergeLong keeps the symbols in a linked list and the pairs in a heap. An entry of the heap is stale when its pair has
// another rank by now: symbols only grow, so a pair that is gone never comes back.
func (m *merger) mergeLong() {
	m.link()
	for len(m.heap) > 0 {
		top := m.pop()
		at, rank := int32(uint32(top)), top>>32
		pair := m.pairs[at]
		if pair == noPair || pair>>32 != rank {
			continue
		}
		right := m.next[at]
		m.syms[at] = int32(uint32(pair))
		m.pairs[right] = noPair
		after := m.next[right]
		m.next[at] = after
		m.pair(at, after)
		if after >= 0 {
			m.prev[after] = at
		}
		if before := m.prev[at]; before >= 0 {
			m.pair(before, at)
		}
	}
	out := 0
	for at := int32(0); at >= 0; at = m.next[at] {
		m.syms[out] = m.syms[at]
		out++
	}
	m.syms = m.syms[:out]
}

// link sets up the list and the heap.
func (m *merger) link() {
	n := len(m.syms)
	m.pairs = append(m.pairs, noPair)
	m.next, m.prev, m.heap = m.next[:0], m.prev[:0], m.heap[:0]
	for i := range n {
		m.next = append(m.next, int32(i+1))
		m.prev = append(m.prev, int32(i-1))
		if p := m.pairs[i]; p != noPair {
			m.heap = append(m.heap, p>>32<<32|uint64(i))
		}
	}
	m.next[n-1] = -1
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
}

// pair looks up what left and right (-1: none) merge to, and queues it.
func (m *merger) pair(left, right int32) {
	m.pairs[left] = noPair
	if right < 0 {
		return
	}
	m.steps++
	p := m.table.find(m.syms[left], m.syms[right])
	if p == noPair {
		return
	}
	m.pairs[left] = p
	m.push(p>>32<<32 | uint64(left))
}

func (m *merger) push(x uint64) {
	m.heap = append(m.heap, x)
	for i := len(m.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if m.heap[up] <= m.heap[i] {
			return
		}
		m.heap[up], m.heap[i] = m.heap[i], m.heap[up]
		m.steps++
		i = up
	}
}

func (m *merger) pop() uint64 {
	top, last := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[last]
	m.heap = m.heap[:last]
	m.down(0)
	return top
}

func (m *merger) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(m.heap) {
			return
		}
		if child+1 < len(m.heap) && m.heap[child+1] < m.heap[child] {
			child++
		}
		if m.heap[i] <= m.heap[child] {
			return
		}
		m.heap[i], m.heap[child] = m.heap[child], m.heap[i]
		m.steps++
		i = child
	}
}
