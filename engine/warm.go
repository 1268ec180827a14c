package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/epq-uring/epq-uring/expert"
)

// warmTime is how long after the start hot experts are read: some 15 GB at the speed of one SSD, and over before the
// answer to a first long prompt begins.
const warmTime = 5 * time.Second

// warmMemory is how many batches of earlier runs weigh against this one: a hundred short answers, so that one unusual
// conversation does not push out what all others need.
const warmMemory = 4096

// warmFile is what one run tells the next: how often each expert was used. On disk, little endian:
//
//	weight float32  number of experts uint32  float32 per expert      sealed as "epqwarm1"
type warmFile struct {
	path   string
	id     identity
	weight float32   // batches the rates stand for
	rates  []float32 // uses per batch, in the order of expert.Catalog.Index
}

const warmMagic = "epqwarm1"

// openWarm reads the list of a model, or begins an empty one. The note says why a list that is there is not used.
func (e *Engine) openWarm() (w *warmFile, note string) {
	w, err := e.newWarm()
	if err != nil {
		return nil, err.Error()
	}
	b, err := readSmall(w.path, sealBytes+8+4*len(w.rates))
	if err == nil {
		err = w.parse(b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.weight = 0
		clear(w.rates)
		return w, err.Error()
	}
	return w, ""
}

func (e *Engine) newWarm() (*warmFile, error) {
	at, err := filepath.Abs(e.file.Shards[0].Path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(at))
	w := &warmFile{path: filepath.Join(e.opt.WarmDir, "warm-"+hex.EncodeToString(sum[:8])), rates: make([]float32, e.whole.Experts())}
	w.id, err = identify(e.file).dated(e.file)
	return w, err
}

func (w *warmFile) parse(b []byte) error {
	body, err := unseal(filepath.Base(w.path), warmMagic, w.id, b)
	if err != nil {
		return err
	}
	if len(body) != 8+4*len(w.rates) || binary.LittleEndian.Uint32(body[4:]) != uint32(len(w.rates)) {
		return fmt.Errorf("%s: %w", filepath.Base(w.path), ErrForeign)
	}
	w.weight = math.Float32frombits(binary.LittleEndian.Uint32(body))
	for i := range w.rates {
		w.rates[i] = math.Float32frombits(binary.LittleEndian.Uint32(body[8+4*i:]))
	}
	return nil
}

func (w *warmFile) bytes() []byte {
	body := binary.LittleEndian.AppendUint32(nil, math.Float32bits(w.weight))
	body = binary.LittleEndian.AppendUint32(body, uint32(len(w.rates)))
	for _, r := range w.rates {
		body = binary.LittleEndian.AppendUint32(body, math.Float32bits(r))
	}
	return seal(warmMagic, w.id, body)
}

// add averages in the uses of a run over so many batches.
func (w *warmFile) add(counts []int32, batches int64) {
	old := min(w.weight, warmMemory)
	all := old + float32(batches)
	for i, n := range counts {
		w.rates[i] = (w.rates[i]*old + float32(n)) / all
	}
	w.weight = all
}

// hot lists the experts that were ever used, the most used first, as many as there are slots.
func (w *warmFile) hot(e *Engine) []expert.Guess {
	var list []expert.Guess
	for i, r := range w.rates[:e.catalog.Experts()] {
		if r > 0 {
			list = append(list, expert.Guess{Key: e.catalog.KeyAt(i), P: r})
		}
	}
	slices.SortStableFunc(list, func(a, b expert.Guess) int { return cmp.Compare(b.P, a.P) })
	slots := 0
	for _, n := range e.plan.Slots {
		slots += n
	}
	return list[:min(len(list), slots)]
}

// startWarm lets the pager read what was hot in earlier runs.
func (l *loop) startWarm() {
	if l.e.opt.WarmDir == "" {
		return
	}
	var note string
	if l.warm, note = l.e.openWarm(); note != "" {
		l.e.warmNote = ", no warm start: " + note
	}
	if l.warm == nil {
		return
	}
	if hot := l.warm.hot(l.e); len(hot) > 0 {
		l.pager.Warm(hot)
		l.warmUntil = time.Now().Add(warmTime)
		l.e.warmNote = fmt.Sprintf(", warm start with %d experts", len(hot))
	}
	if err := l.e.readHistory(l.warm); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.e.warmNote += ", no history of routes: " + err.Error()
	}
}

// warming reads on while there is nothing else to do, and says whether there is more to come.
func (l *loop) warming() bool {
	if l.warmUntil.IsZero() || l.endWarm() {
		return false
	}
	more, err := l.pager.Warming()
	if err != nil || !more { // a device that failed says so in the next use
		l.warmUntil = time.Time{}
		return false
	}
	return true
}

// endWarm ends the warm-up when its time is over.
func (l *loop) endWarm() (over bool) {
	if l.warmUntil.IsZero() || time.Now().Before(l.warmUntil) {
		return false
	}
	l.pager.Warm(nil)
	l.warmUntil = time.Time{}
	return true
}

// keepWarm writes what this run used for the next. A list that cannot be written costs only that start some speed.
func (l *loop) keepWarm() {
	if l.warm == nil || l.forwards == 0 {
		return
	}
	l.warm.add(l.pager.Counts(nil), l.forwards)
	_ = replaceFile(l.warm.path, l.warm.bytes())
	l.e.keepHistory(l.warm)
}
