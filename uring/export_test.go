package uring

import "testing"

// NeedRing skips a test where the machine is known to refuse io_uring.
func NeedRing(t *testing.T) { needRing(t) }

// PlainRing makes Open set up rings as on a kernel without SINGLE_ISSUER and DEFER_TASKRUN, for the time of a test: the
// first flag is of no kernel yet.
func PlainRing(t *testing.T) {
	old := setupFlags
	setupFlags = []uint32{1 << 30, 0}
	t.Cleanup(func() { setupFlags = old })
}
