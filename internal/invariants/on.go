//go:build invariants

package invariants

// Enabled says whether this build checks itself.
const Enabled = true

// Poison overwrites bytes that nobody may read any more. 0xFF is NaN in every float format and as the scale of every
// quantised block, so one use of a released slot shows in the logits at once.
func Poison(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = poison
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}
