package invariants

import "testing"

func TestPoison(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 7, 64, 4097} {
		b := make([]byte, n)
		Poison(b)
		if got := Poisoned(b); got != (Enabled && n > 0) {
			t.Errorf("%d bytes: poisoned %v, enabled %v", n, got, Enabled)
		}
	}
}

func TestAssert(t *testing.T) {
	Assert(true, "never")
	defer func() {
		if r := recover(); (r != nil) != Enabled {
			t.Errorf("recovered %v, enabled %v", r, Enabled)
		}
	}()
	Assert(false, "slot %d", 7)
}
