// Package invariants holds checks that cost too much for a release. Built with `-tags invariants` they are on; without
// the tag they are empty and cost nothing.
package invariants

import "fmt"

// poison is the byte that fills released memory.
const poison = 0xFF

// Assert panics with its values when cond is false and the checks are on: a broken invariant is a bug, not an error.
func Assert(cond bool, format string, args ...any) {
	if Enabled && !cond {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}

// Poisoned says whether b consists of released bytes only. An empty b is not poisoned.
func Poisoned(b []byte) bool {
	for _, x := range b {
		if x != poison {
			return false
		}
	}
	return len(b) > 0
}
