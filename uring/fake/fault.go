package fake

import (
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/epq-uring/epq-uring/uring"
)

// Fault makes reads go wrong that touch bytes [From, To) of File. The zero values of the place mean everywhere in file 0;
// set File to AnyFile for all.
type Fault struct {
	File        uring.FileID
	From, To    int64   // To 0: to the end
	Times       int     // the first so many reads that meet it; 0: always
	Probability float64 // of each read that meets it; 0: certain

	// What happens; several may.
	Errno     syscall.Errno // fails with it
	Short     int           // gives at most so many bytes: ErrShort where more are needed
	Delay     time.Duration // comes later
	Misdirect int64         // silently gives the bytes of this many further on
}

// AnyFile stands for every file.
const AnyFile uring.FileID = -1

// armed is a fault with what is left of it.
type armed struct {
	Fault
	left int
}

// effect is what all faults together do to one read.
type effect struct {
	err       error
	short     int
	delay     time.Duration
	misdirect int64
}

func arm(faults []Fault) []armed {
	a := make([]armed, len(faults))
	for i, f := range faults {
		a[i] = armed{Fault: f, left: f.Times}
	}
	return a
}

func (d *Disk) meet(r *uring.Read) effect { return meet(d.faults, d.rand, r) }

// meet adds up the faults that a read meets and uses them up.
func meet(faults []armed, rnd *rand.Rand, r *uring.Read) (e effect) {
	for i := range faults {
		f := &faults[i]
		if !f.hits(r) || f.Probability > 0 && rnd.Float64() >= f.Probability {
			continue
		}
		if f.Times > 0 {
			if f.left == 0 {
				continue
			}
			f.left--
		}
		if f.Errno != 0 {
			e.err = f.Errno
		}
		if f.Short > 0 {
			e.short = f.Short
		}
		e.delay += f.Delay
		e.misdirect += f.Misdirect
	}
	return e
}

func (f *Fault) hits(r *uring.Read) bool {
	if f.File != AnyFile && f.File != r.File {
		return false
	}
	return r.Offset+int64(r.Length) > f.From && (f.To == 0 || r.Offset < f.To)
}
