package pager

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/internal/invariants"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

// rig is a pager over a fake disk whose bytes are a function of file and offset.
type rig struct {
	t     *testing.T
	cat   *expert.Catalog
	disk  *fake.Disk
	arena *Arena
	*Pager
}

// testCatalog has layers of experts with parts of the given sizes, one after the other in file 0.
func testCatalog(t testing.TB, layers, experts, used, align int, sizes ...int64) *expert.Catalog {
	t.Helper()
	offset := int64(96)
	var all []expert.Layer
	for b := range layers {
		l := expert.Layer{Block: b, Experts: experts, Used: used, Merged: len(sizes) == 2}
		for i, size := range sizes {
			l.Parts = append(l.Parts, expert.Part{Tensor: fmt.Sprintf("blk.%d.part%d", b, i), Offset: offset, Size: size})
			offset += size*int64(experts) + 32
		}
		all = append(all, l)
	}
	cat, err := expert.Build(all, []string{"/models/model.gguf"}, []int{align})
	if err != nil {
		t.Fatal(err)
	}
	return cat
}

func fileSize(cat *expert.Catalog, shard int) int64 {
	end := int64(0)
	for _, l := range cat.Layers {
		for _, p := range l.Parts {
			if p.Shard == shard {
				end = max(end, p.Offset+p.Size*int64(l.Experts))
			}
		}
	}
	return end
}

func newRig(t *testing.T, cat *expert.Catalog, slots []int, opt Options, disk fake.Options) *rig {
	t.Helper()
	r := openRig(t, cat, slots, opt, disk)
	t.Cleanup(r.close)
	return r
}

func openRig(t *testing.T, cat *expert.Catalog, slots []int, opt Options, disk fake.Options) *rig {
	t.Helper()
	arena, err := NewArena(cat, slots)
	if err != nil {
		t.Fatal(err)
	}
	if disk.Files == nil {
		disk.Files = []fake.File{{Name: "model.gguf", Size: fileSize(cat, 0)}}
	}
	d := fake.New(disk, arena.Regions())
	p, err := New(d, cat, arena, opt)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, cat: cat, disk: d, arena: arena, Pager: p}
}

// close checks what must hold at the end of every test: nothing in flight, nothing held.
func (r *rig) close() {
	if err := r.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
	if n := r.disk.InFlight(); n != 0 {
		r.t.Errorf("%d reads in flight after Close", n)
	}
	r.check()
	_ = r.disk.Close()
	if err := r.arena.Free(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) check() {
	r.t.Helper()
	if err := r.Check(); err != nil {
		r.t.Fatal(err)
	}
}

// verify compares lent weights with the file.
func verify(cat *expert.Catalog, k expert.Key, w expert.Weights) error {
	l := cat.Layers[k.Layer]
	want := make([][]byte, len(l.Parts))
	for i, piece := range cat.Pieces(k) {
		want[i] = make([]byte, piece.Size)
		fake.Fill(want[i], uring.FileID(piece.Shard), piece.Offset)
	}
	gate, up := w.GateUp()
	if l.Merged {
		half := len(want[0]) / 2
		want = [][]byte{want[0][:half], want[0][half:], want[1]}
	}
	if !bytes.Equal(gate, want[0]) || !bytes.Equal(up, want[1]) {
		return fmt.Errorf("%+v: wrong gate or up", k)
	}
	down, err := w.Down()
	if err != nil {
		return err
	}
	if !bytes.Equal(down, want[2]) {
		return fmt.Errorf("%+v: wrong down", k)
	}
	return nil
}

// use runs a Use, checks all bytes and returns the order in which experts were given.
func (r *rig) use(layer int, ids ...int32) (order []int32, err error) {
	r.t.Helper()
	err = r.Use(layer, ids, 0, func(ready []expert.Ready) error {
		for _, w := range ready {
			k := expert.Key{Layer: int32(layer), Expert: ids[w.Index]}
			if err := verify(r.cat, k, w); err != nil {
				return err
			}
			order = append(order, k.Expert)
		}
		return nil
	})
	r.check()
	return order, err
}

func (r *rig) mustUse(layer int, ids ...int32) []int32 {
	r.t.Helper()
	order, err := r.use(layer, ids...)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(order) != len(ids) {
		r.t.Fatalf("asked for %v, given %v", ids, order)
	}
	return order
}

// settle lets everything in flight land.
func (r *rig) settle() {
	r.t.Helper()
	for r.pending > 0 {
		if err := r.wait(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// expect compares the counters of uses.
func (r *rig) expect(hits, joined, misses int64) {
	r.t.Helper()
	if s := r.Stats(); s.Hits != hits || s.Joined != joined || s.Misses != misses {
		r.t.Errorf("hits, joined, misses: %d, %d, %d; want %d, %d, %d", s.Hits, s.Joined, s.Misses, hits, joined, misses)
	}
}

func TestHitsComeFirst(t *testing.T) {
	r := newRig(t, testCatalog(t, 2, 16, 4, 512, 1000, 1000, 1500), []int{10}, Options{}, fake.Options{Align: 512})
	r.mustUse(0, 1, 2, 3)
	if order := r.mustUse(0, 7, 3, 9, 1); order[0] != 3 || order[1] != 1 {
		t.Errorf("order %v, in the arena were 3 and 1", order)
	}
	r.expect(2, 0, 5)
	if s := r.Stats(); s.ColdMisses != 5 || s.Reads != 15 || s.WarmHitRate() != 1 {
		t.Errorf("%+v", s)
	}
}

// TestGateUpBeforeDown: an expert is given while its down projection is on its way, and found by nobody else until it
// is whole.
func TestGateUpBeforeDown(t *testing.T) {
	cat := testCatalog(t, 1, 4, 1, 512, 600, 600, 600)
	piece := cat.Piece(expert.Key{Expert: 2}, 2)
	r := newRig(t, cat, []int{2}, Options{}, fake.Options{Align: 512, Reorder: true,
		Faults: []fake.Fault{{From: piece.ReadOffset, To: piece.ReadOffset + 1, Delay: 1e6, Times: 1}}})
	seen := false
	err := r.Use(0, []int32{2}, 0, func(ready []expert.Ready) error {
		seen = true
		if n := r.table[2]; n >= 0 || r.counts[reading] != 1 {
			t.Errorf("slot %d is found before its last part is there", n)
		}
		r.check()
		return verify(cat, expert.Key{Expert: 2}, ready[0])
	})
	if err != nil || !seen {
		t.Fatal(seen, err)
	}
	r.expect(0, 0, 1)
}

// TestWideAlignment: a file system that wants reads of 64 KiB gets them, and the experts between are whole.
func TestWideAlignment(t *testing.T) {
	const align = 64 << 10
	r := newRig(t, testCatalog(t, 2, 12, 3, align, 700, 70000, 1500), []int{5}, Options{}, fake.Options{Align: align, Reorder: true})
	for token := range int32(20) {
		for layer := range 2 {
			r.mustUse(layer, token%12, (token+5)%12, (token+7)%12)
		}
		r.Tick()
	}
	if r.Stats().Evictions == 0 {
		t.Error("nothing was evicted")
	}
}

func TestGroups(t *testing.T) {
	for _, group := range []int{0, 1, 3} {
		r := newRig(t, testCatalog(t, 1, 16, 8, 512, 100, 100), []int{8}, Options{}, fake.Options{Align: 512})
		r.mustUse(0, 0, 1, 2, 3, 4, 5, 6, 7)
		var sizes []int
		err := r.Use(0, []int32{0, 1, 2, 3, 4, 5, 6, 7}, group, func(ready []expert.Ready) error {
			sizes = append(sizes, len(ready))
			return nil
		})
		want := map[int]string{0: "[8]", 1: "[1 1 1 1 1 1 1 1]", 3: "[3 3 2]"}[group]
		if err != nil || fmt.Sprint(sizes) != want {
			t.Errorf("group %d: %v, want %s: %v", group, sizes, want, err)
		}
	}
}

// TestMinimumArena is case B30: more experts than slots, down to one token's worth.
func TestMinimumArena(t *testing.T) {
	cat := testCatalog(t, 3, 64, 8, 512, 700, 700, 900)
	all := make([]int32, 64)
	for i := range all {
		all[i] = int32(i * 37 % 64)
	}
	for _, name := range Policies() {
		for _, slots := range []int{8, 9} {
			r := newRig(t, cat, []int{slots}, Options{Policy: name}, fake.Options{Align: 512, Depth: 4, Reorder: true, LatencyMean: 1e5})
			for layer := range 3 {
				r.mustUse(layer, all...)
				r.mustUse(layer, all[:9]...)
				r.Tick()
			}
			if r.Stats().Evictions == 0 {
				t.Errorf("%s: nothing was evicted", name)
			}
		}
	}
	if _, err := NewArena(cat, []int{7}); !errors.Is(err, ErrSlots) {
		t.Errorf("7 slots for 8 experts of a token: %v", err)
	}
}

// TestNothingNeededIsEvicted is case B31: what the same use still needs survives its own misses, under every policy.
func TestNothingNeededIsEvicted(t *testing.T) {
	for _, name := range Policies() {
		r := newRig(t, testCatalog(t, 1, 32, 8, 512, 300, 300, 300), []int{9}, Options{Policy: name}, fake.Options{Align: 512})
		for token := range int32(200) {
			var ids []int32
			for i := range int32(8) {
				ids = append(ids, (token*3+i*5)%32)
			}
			r.mustUse(0, ids...)
			before := r.Stats().Hits
			r.mustUse(0, ids...)
			if got := r.Stats().Hits - before; got != 8 {
				t.Fatalf("%s: %d of 8 experts survived their own use", name, got)
			}
			r.Prefetch([]expert.Guess{{Key: expert.Key{Expert: (token * 7) % 32}, P: 0.9}, {Key: expert.Key{Expert: (token * 11) % 32}, P: 0.5}})
			r.settle()
			r.Tick()
		}
	}
}

// TestThirdPartFails is case B32: nothing is found of an expert that did not arrive whole.
func TestThirdPartFails(t *testing.T) {
	cat := testCatalog(t, 1, 8, 2, 512, 512, 512, 512)
	k := expert.Key{Expert: 5}
	piece := cat.Piece(k, 2)
	r := newRig(t, cat, []int{3}, Options{Retries: -1}, fake.Options{Align: 512,
		Faults: []fake.Fault{{From: piece.Offset, To: piece.Offset + 1, Errno: syscall.EIO, Times: 1}}})
	if _, err := r.use(0, 5); !errors.Is(err, ErrRead) {
		t.Fatal(err)
	}
	if r.table[5] >= 0 || r.inflight[5] >= 0 {
		t.Error("the broken expert can be found")
	}
	r.mustUse(0, 5)
	r.expect(0, 0, 2)
}

// TestReadError is case B34: one retry; then an error that says everything; others and later uses go on.
func TestReadError(t *testing.T) {
	cat := testCatalog(t, 2, 8, 2, 512, 1024, 1024, 1024)
	piece := cat.Piece(expert.Key{Layer: 1, Expert: 3}, 1)
	bad := piece.ReadOffset + 512 // a block that no other expert's widened read touches
	for _, times := range []int{1, 2, 4} {
		r := newRig(t, cat, []int{4}, Options{}, fake.Options{Align: 512,
			Faults: []fake.Fault{{From: bad, To: bad + 1, Errno: syscall.EIO, Times: times}}})
		for try := range times / 2 {
			_, err := r.use(1, 3)
			var failed *ReadError
			if !errors.As(err, &failed) || !errors.Is(err, syscall.EIO) || failed.Tries != 2 || failed.Wanted != piece.Need() {
				t.Fatalf("try %d: %v", try, err)
			}
			for _, want := range []string{"model.gguf", "blk.1.part1", "layer 1", "expert 3", fmt.Sprint("offset ", piece.Offset),
				fmt.Sprintf("got %d of %d bytes", failed.Got, piece.Need()), "input/output error", "errno 5", "check the disk"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %s", want, err)
				}
			}
			if strings.Count(err.Error(), "pager:") != 1 || strings.Contains(err.Error(), "uring:") || strings.Contains(err.Error(), "\n") {
				t.Errorf("prefix or line: %s", err)
			}
			r.mustUse(1, 2)
			r.mustUse(0, 3)
		}
		r.mustUse(1, 3)
		if s := r.Stats(); s.Retries != int64(times+1)/2 || s.Failures != int64(times/2) {
			t.Errorf("%d faults: %d retries, %d failures", times, s.Retries, s.Failures)
		}
	}
}

// TestFailureHitsOnlyWhoNeedsIt: of a use with a bad expert the others are complete afterwards.
func TestFailureHitsOnlyWhoNeedsIt(t *testing.T) {
	cat := testCatalog(t, 1, 8, 4, 512, 512, 512, 512)
	piece := cat.Piece(expert.Key{Expert: 0}, 0)
	r := newRig(t, cat, []int{6}, Options{}, fake.Options{Align: 512, Faults: []fake.Fault{{From: piece.Offset, To: piece.Offset + 1, Errno: syscall.EIO}}})
	if _, err := r.use(0, 0, 1, 2, 3); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	r.mustUse(0, 1, 2, 3)
	if s := r.Stats(); s.Misses != 4 || s.Reads != 2+11 {
		t.Errorf("read again: %+v", s)
	}
}

func TestShortRead(t *testing.T) {
	cat := testCatalog(t, 1, 4, 1, 512, 600, 600, 600)
	piece := cat.Piece(expert.Key{Expert: 1}, 1)
	r := newRig(t, cat, []int{2}, Options{}, fake.Options{Align: 512, Faults: []fake.Fault{{From: piece.Offset, To: piece.Offset + 1, Short: 512}}})
	_, err := r.use(0, 1)
	var failed *ReadError
	if !errors.Is(err, uring.ErrShort) || !errors.As(err, &failed) || failed.Got != 512 {
		t.Errorf("%+v: %v", failed, err)
	}
}

// TestVerify: a misdirected read, which the device reports as fine, is caught where Verify is on.
func TestVerify(t *testing.T) {
	cat := testCatalog(t, 1, 4, 1, 512, 600, 600, 600)
	piece := cat.Piece(expert.Key{Expert: 1}, 1)
	check := func(k expert.Key, part int, b []byte) error {
		want := make([]byte, len(b))
		fake.Fill(want, 0, cat.Piece(k, part).Offset)
		if !bytes.Equal(b, want) {
			return errors.New("checksum differs")
		}
		return nil
	}
	for _, times := range []int{1, 0} {
		r := newRig(t, cat, []int{2}, Options{Verify: check}, fake.Options{Align: 512,
			Faults: []fake.Fault{{From: piece.Offset, To: piece.Offset + 1, Misdirect: 8, Times: times}}})
		_, err := r.use(0, 1)
		if times == 1 && err != nil || times == 0 && (!errors.Is(err, ErrVerify) || !errors.Is(err, ErrRead)) {
			t.Errorf("%d times: %v", times, err)
		}
	}
}

// TestCancelledIsNotFinished is case B33: the slot of a cancelled read is not used before the device is done with it.
func TestCancelledIsNotFinished(t *testing.T) {
	cat := testCatalog(t, 1, 8, 1, 512, 512, 512, 512)
	for _, seed := range []uint64{1, 2, 3, 4, 5, 6, 7, 8} { // cancel is heard, or not, by chance
		r := newRig(t, cat, []int{1}, Options{}, fake.Options{Align: 512, Seed: seed, LatencyMin: 1e9, Reorder: true})
		if r.Prefetch([]expert.Guess{{Key: expert.Key{Expert: 4}, P: 0.5}}) != 1 {
			t.Fatal("refused with a free slot")
		}
		r.cancelGuesses()
		if r.counts[draining] != 1 || r.inflight[4] >= 0 || len(r.free[0]) != 0 {
			t.Fatalf("states %v, free %v", r.counts, r.free)
		}
		r.check()
		r.mustUse(0, 3) // needs the same slot, so it has to wait
		if s := r.Stats(); s.Guess.Cancelled != 1 || s.Reads != 6 {
			t.Errorf("%+v", s)
		}
	}
}

func TestJoin(t *testing.T) {
	cat := testCatalog(t, 2, 8, 2, 512, 512, 512, 512)
	r := newRig(t, cat, []int{4}, Options{GuessBytes: 512}, fake.Options{Align: 512, LatencyMin: 1e6})
	if got := r.Prefetch([]expert.Guess{{Key: expert.Key{Layer: 1, Expert: 2}, P: 0.5}, {Key: expert.Key{Layer: 1, Expert: 2}, P: 0.4}}); got != 1 {
		t.Fatalf("accepted %d", got)
	}
	if r.pending != 1 {
		t.Errorf("%d reads handed in, the bound is one", r.pending)
	}
	r.mustUse(1, 1, 2)
	r.expect(0, 1, 1)
	if s := r.Stats(); s.Reads != 6 || s.Guess != (GuessStats{Issued: 1, Late: 1}) {
		t.Errorf("%+v", s)
	}
}

// TestWrongGuessLeavesFirst is the pager's half of case B35: guesses take only free and colder slots, and once their
// layer has passed they are the first to leave.
func TestWrongGuessLeavesFirst(t *testing.T) {
	cat := testCatalog(t, 2, 8, 2, 512, 512, 512, 512)
	for _, name := range Policies() {
		r := newRig(t, cat, []int{5}, Options{Policy: name}, fake.Options{Align: 512})
		for range 20 {
			r.mustUse(0, 0, 1)
			r.mustUse(1, 0, 1)
			r.Tick()
		}
		if r.Prefetch([]expert.Guess{{Key: expert.Key{Layer: 1, Expert: 7}, P: 0.3}}) != 1 {
			t.Fatalf("%s: refused a free slot", name)
		}
		if r.Prefetch([]expert.Guess{{Key: expert.Key{Layer: 1, Expert: 6}, P: 0.2}}) != 0 {
			t.Errorf("%s: took a slot hotter than the guess", name)
		}
		r.settle()
		r.mustUse(1, 0, 1)
		r.Tick()
		r.mustUse(0, 0, 5) // evicts the guess and nothing else
		before := r.Stats().Hits
		r.mustUse(1, 0, 1)
		if s := r.Stats(); s.Hits != before+2 || s.Guess.Wasted != 1 || s.Evictions != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestReadUnion: what a batch will use of the next layer takes the slots of layers that come later, never of that layer.
func TestReadUnion(t *testing.T) {
	cat := testCatalog(t, 3, 8, 2, 512, 512, 512, 512)
	var r *rig
	accepted := 0
	r = newRig(t, cat, []int{6}, Options{Started: func() {
		if r.layer == 0 && r.history.token > 0 {
			accepted = r.ReadUnion([]expert.Guess{
				{Key: expert.Key{Layer: 1, Expert: 0}, P: 1}, {Key: expert.Key{Layer: 1, Expert: 2}, P: 1},
				{Key: expert.Key{Layer: 1, Expert: 3}, P: 1}, {Key: expert.Key{Layer: 1, Expert: 4}, P: 1},
			})
		}
	}}, fake.Options{Align: 512, LatencyMin: 1e6})
	for l := range 3 {
		r.mustUse(l, 0, 1)
	}
	r.Tick()
	r.mustUse(0, 0, 1)
	if accepted != 2 {
		t.Errorf("%d read ahead, layer 2 holds two slots", accepted)
	}
	before := r.Stats()
	r.mustUse(1, 0, 1, 2, 3)
	if s := r.Stats(); s.Misses != before.Misses || s.Guess.Issued != 2 || s.Guess.Useful+s.Guess.Late != 2 {
		t.Errorf("%+v", s)
	}
}

func TestNestedAndClosed(t *testing.T) {
	r := newRig(t, testCatalog(t, 1, 4, 1, 512, 100, 100), []int{2}, Options{}, fake.Options{Align: 512})
	err := r.Use(0, []int32{1}, 0, func([]expert.Ready) error {
		if err := r.Close(); !errors.Is(err, ErrNested) {
			t.Errorf("close inside: %v", err)
		}
		return r.Use(0, []int32{1}, 0, func([]expert.Ready) error { return nil })
	})
	if !errors.Is(err, ErrNested) {
		t.Error(err)
	}
	r.mustUse(0, 1)
	for _, bad := range [][]int32{{-1}, {4}, {1, 2, 1}} {
		if _, err := r.use(0, bad...); !errors.Is(err, ErrExpert) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for _, layer := range []int{-1, 1} {
		if _, err := r.use(layer, 0); !errors.Is(err, ErrExpert) {
			t.Errorf("layer %d: %v", layer, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.use(0, 1); !errors.Is(err, ErrClosed) || r.Prefetch([]expert.Guess{{P: 1}}) != 0 {
		t.Errorf("after Close: %v", err)
	}
	r.dead = nil // so that the clean-up can close again
}

func TestFunctionError(t *testing.T) {
	r := newRig(t, testCatalog(t, 1, 8, 4, 512, 100, 100, 100), []int{4}, Options{}, fake.Options{Align: 512, LatencyMin: 1e6})
	stop := errors.New("stop")
	calls := 0
	err := r.Use(0, []int32{0, 1, 2, 3}, 1, func([]expert.Ready) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%d calls: %v", calls, err)
	}
	r.check()
	r.mustUse(0, 0, 1, 2, 3)
	if s := r.Stats(); s.Reads != 12 {
		t.Errorf("%d reads for 4 experts", s.Reads)
	}
}

func TestDeadDevice(t *testing.T) {
	r := newRig(t, testCatalog(t, 1, 8, 4, 512, 100, 100, 100), []int{4}, Options{}, fake.Options{Align: 512})
	if err := r.disk.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.use(0, 1); !errors.Is(err, ErrDevice) || !errors.Is(err, uring.ErrClosed) {
		t.Error(err)
	}
	if _, err := r.use(0, 2); !errors.Is(err, ErrDevice) {
		t.Error(err)
	}
	r.dead = errors.New("seen") // the reads it was asked for never come
}

// liar is a device that claims success with too few bytes, or gives nothing although it was asked to wait.
type liar struct {
	instant
	mute bool
}

func (d *liar) Wait(least int, done []uring.Done) (int, error) {
	if d.mute {
		return 0, nil
	}
	n, err := d.instant.Wait(least, done)
	for i := range done[:n] {
		done[i].N = 100
	}
	return n, err
}

func TestDeviceThatLies(t *testing.T) {
	cat := testCatalog(t, 1, 8, 4, 512, 200, 200, 200)
	for _, d := range []*liar{{}, {mute: true}} {
		arena, _, err := layoutArena(cat, []int{4})
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(d, cat, arena, Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = p.Use(0, []int32{1}, 0, func([]expert.Ready) error { t.Error("given"); return nil })
		if d.mute && !errors.Is(err, ErrDevice) || !d.mute && (!errors.Is(err, uring.ErrShort) || !errors.Is(err, ErrRead)) {
			t.Errorf("mute %v: %v", d.mute, err)
		}
	}
}

func TestOptions(t *testing.T) {
	cat := testCatalog(t, 1, 4, 1, 512, 100, 100)
	for _, opt := range []Options{{Policy: "nosuch"}, {StaleTokens: -1}, {GuessBytes: -1}, {Retries: 101}} {
		_, err := NewReplay(cat, []int{2}, nil, opt)
		if !errors.Is(err, ErrPolicy) && !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", opt, err)
		}
		if opt.Policy != "" && !strings.Contains(err.Error(), "least_stale") {
			t.Errorf("the known policies are not named: %v", err)
		}
	}
	for _, slots := range [][]int{nil, {1, 1}, {0}, {5}} {
		if _, err := NewReplay(cat, slots, nil, Options{}); !errors.Is(err, ErrSlots) {
			t.Errorf("slots %v: %v", slots, err)
		}
	}
}

// TestRegions: no region is above 1 GiB, none cuts a slot, together they are the arena to the byte.
func TestRegions(t *testing.T) {
	cat := testCatalog(t, 2, 20, 2, 512, 100<<20, 100<<20, 60<<20)
	arena, ends, err := layoutArena(cat, []int{13})
	if err != nil {
		t.Fatal(err)
	}
	slot := int(cat.Classes[0].SlotBytes)
	if len(ends) != 5 || ends[4] != 13*slot {
		t.Fatalf("regions end at %v, a slot takes %d", ends, slot)
	}
	from := 0
	for _, end := range ends {
		if end-from > 1<<30 || (end-from)%slot != 0 {
			t.Errorf("region [%d, %d)", from, end)
		}
		from = end
	}
	last := arena.places[12]
	if last.region != 4 || last.offset != 0 {
		t.Errorf("last slot: %+v", last)
	}
}

// TestPoison: released bytes are overwritten where the checks are on.
func TestPoison(t *testing.T) {
	r := newRig(t, testCatalog(t, 1, 4, 1, 512, 100, 100), []int{1}, Options{}, fake.Options{Align: 512})
	r.mustUse(0, 1)
	r.evict(r.table[1])
	if got := invariants.Poisoned(r.arena.slot(0)); got != invariants.Enabled {
		t.Errorf("poisoned: %v, checks on: %v", got, invariants.Enabled)
	}
}

// TestQuiet: no use allocates once the pager stands.
func TestQuiet(t *testing.T) {
	cat := testCatalog(t, 4, 64, 8, 512, 4096, 4096, 4096)
	for _, name := range Policies() {
		p, err := NewReplay(cat, []int{40}, nil, Options{Policy: name})
		if err != nil {
			t.Fatal(err)
		}
		ids, layer, id := make([]int32, 8), 0, int32(0)
		nothing := func([]expert.Ready) error { return nil }
		guess := make([]expert.Guess, 1)
		allocs := testing.AllocsPerRun(500, func() {
			for i := range ids {
				id = (id + 5) % 64
				ids[i] = id
			}
			layer = (layer + 1) % 4
			if err := p.Use(layer, ids, 4, nothing); err != nil {
				t.Fatal(err)
			}
			guess[0] = expert.Guess{Key: expert.Key{Layer: int32(layer+1) % 4, Expert: id}, P: 0.5}
			p.Prefetch(guess)
			p.Tick()
		})
		if allocs != 0 || p.Stats().Evictions == 0 {
			t.Errorf("%s: %v allocations per use, %+v", name, allocs, p.Stats())
		}
	}
}

// BenchmarkUse is a layer whose 8 experts are all in the arena.
func BenchmarkUse(b *testing.B) {
	p, err := NewReplay(testCatalog(b, 40, 256, 8, 512, 589824, 589824, 860160), []int{4000}, nil, Options{})
	if err != nil {
		b.Fatal(err)
	}
	ids := []int32{3, 50, 77, 103, 150, 200, 222, 255}
	nothing := func([]expert.Ready) error { return nil }
	for b.Loop() {
		if err := p.Use(7, ids, 0, nothing); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMiss is one miss with an eviction from a full arena of 4000 slots, without the disk.
func BenchmarkMiss(b *testing.B) {
	for _, name := range Policies() {
		b.Run(name, func(b *testing.B) {
			p, err := NewReplay(testCatalog(b, 40, 256, 8, 512, 589824, 589824, 860160), []int{4000}, nil, Options{Policy: name})
			if err != nil {
				b.Fatal(err)
			}
			nothing := func([]expert.Ready) error { return nil }
			ids := []int32{0}
			n := 0
			for b.Loop() {
				n++
				ids[0] = int32(n / 40 % 256)
				if err := p.Use(n%40, ids, 0, nothing); err != nil {
					b.Fatal(err)
				}
				if n%40 == 0 {
					p.Tick()
				}
			}
		})
	}
}
