// Package uring reads ranges of files into registered memory, directly and asynchronously: with io_uring where the
// machine allows it, with pread and a few threads where it does not. It knows files, offsets and buffers, nothing of
// models.
//
// A Device is not safe for concurrent use. A ring belongs to the OS thread that opened it: the caller locks its
// goroutine to that thread (runtime.LockOSThread) before Open and makes every call from there.
package uring

// FileID is the index of a file in Files.
type FileID int

// Class orders reads that wait for room in the queue.
type Class uint8

const (
	Demand   Class = iota // somebody waits for it
	Prefetch              // a guess; overtaken by Demand
)

// Read asks for Length bytes of File from Offset into region Region at RegionOffset. All three numbers are multiples of
// the file's alignment. Only the first Need bytes must arrive: what lies beyond is widening and may be past the end of
// the file.
type Read struct {
	File         FileID
	Region       int
	Offset       int64
	RegionOffset int64
	Length       int
	Need         int
	Tag          uint64
	Class        Class
}

// Done reports one Read. Every accepted Read gives exactly one Done. N is the number of bytes that are there, at least
// Need when Err is nil. Err names file, offset, bytes wanted and got; errors.Is finds the errno, ErrShort or
// ErrCanceled.
type Done struct {
	Tag uint64
	N   int
	Err error
}

// Device reads. Ring, pread, null and fake.Disk satisfy it; uringtest.Run checks all of them.
type Device interface {
	// Submit hands in as many of reads as there is room for and says how many; 0 means: Wait first. It never waits for
	// the disk. An error means nothing was taken and the device is of no more use.
	Submit(reads []Read) (int, error)
	// Wait stores finished reads in done and returns their number, after at least min of them (fewer when fewer are in
	// flight). Wait(0, ...) only looks; it is what makes completions appear.
	Wait(min int, done []Done) (int, error)
	// Cancel is a wish; the Done still comes, and until then the kernel may write.
	Cancel(tag uint64)
	// Limits says what was got.
	Limits() Limits
	// Close waits for everything in flight.
	Close() error
}

// Limits describes an open Device.
type Limits struct {
	Backend string // "ring", "pread", "null" or "fake"
	Depth   int    // most reads in flight
	Fixed   bool   // buffers are registered
	Lost    []Loss // what the machine refused, each once
}

// Loss is something the machine refused and that was replaced by the next best way.
type Loss struct {
	What   string // literally: "io_uring", "memlock", "O_DIRECT", "huge pages"
	Reason string // which call failed and why, with numbers
	Remedy string // how to get it back
}
