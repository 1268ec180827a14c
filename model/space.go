package model

import "unsafe"

// space hands out pieces of one block of memory. Without memory it only counts, so that the same code says how much is
// needed and divides it afterwards.
type space struct {
	mem  []byte
	used int
}

// cacheLine also is the alignment that the widest vector loads want.
const cacheLine = 64

// bytes returns the next n bytes, aligned; nil while counting.
func (s *space) bytes(n int) []byte {
	at := (s.used + cacheLine - 1) &^ (cacheLine - 1)
	s.used = at + n
	if s.mem == nil {
		return nil
	}
	return s.mem[at : at+n : at+n]
}

func (s *space) floats(n int) []float32 {
	b := s.bytes(4 * n)
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n)
}

func (s *space) ints(n int) []int32 {
	b := s.bytes(4 * n)
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), n)
}

// overlay lets each of the users divide the same region, which becomes as large as the largest of them needs: what one
// leaves there is lost when the next one runs.
func (s *space) overlay(users ...func()) {
	from, end := s.used, s.used
	for _, divide := range users {
		s.used = from
		divide()
		end = max(end, s.used)
	}
	s.used = end
}
