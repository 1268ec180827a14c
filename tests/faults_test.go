package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/internal/mem"
	"github.com/epq-uring/epq-uring/model"
	"github.com/epq-uring/epq-uring/pager"
	"github.com/epq-uring/epq-uring/uring"
	"github.com/epq-uring/epq-uring/uring/fake"
)

// The faults are tried on a model of 3 layers with 8 experts, 2 per token, through an arena of 2 slots: every use reads.
const (
	faultModel = "testdata/golden/micro-qwen3moe.gguf"
	// The file ends with this layer's down projections, so a cut in its last expert harms nothing else.
	faultLayer, faultExpert = 2, 7
	faultTensor             = "blk.2.ffn_down_exps.weight"
	answerTokens            = 8
)

func copyModel(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(faultModel)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// part is where the tensor of an expert lies.
func part(t *testing.T, path, tensor string, expert int) gguf.Extent {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	x, ok := f.Tensor(tensor)
	if !ok {
		t.Fatalf("no tensor %s", tensor)
	}
	return x.Slice(expert)
}

func faultOptions(path string) engine.Options {
	return engine.Options{Model: path, RAM: "min", Context: 256, UBatch: 16, Threads: 1}
}

func openEngine(t *testing.T, o engine.Options) *engine.Engine {
	t.Helper()
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func ask(e *engine.Engine, prompt []int32) ([]int32, error) {
	r, err := e.Generate(context.Background(), engine.Request{Tokens: prompt, MaxTokens: answerTokens, IgnoreEOS: true}, nil)
	return r.Tokens, err
}

// people are prompts whose answers use the expert of the faults, or do not, with what a sound engine answers.
type people struct {
	user    []int32
	others  [2][]int32
	answers map[int32][]int32 // by the prompt's token
}

var findPeople = sync.OnceValues(func() (*people, error) {
	e, err := engine.Open(context.Background(), faultOptions(faultModel))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	used := false
	err = e.Observe(func(layer, _ int, ids []int32) {
		used = used || layer == faultLayer && slices.Contains(ids, faultExpert)
	}, nil)
	if err != nil {
		return nil, err
	}
	p := &people{answers: map[int32][]int32{}}
	var others [][]int32
	for id := int32(0); int(id) < e.Vocab(); id++ {
		used = false
		prompt := []int32{id}
		answer, err := ask(e, prompt)
		if err != nil {
			return nil, err
		}
		switch {
		case used && p.user == nil:
			p.user = prompt
		case !used && len(others) < 2:
			others = append(others, prompt)
		default:
			continue
		}
		p.answers[id] = answer
		if p.user != nil && len(others) == 2 {
			p.others = [2][]int32(others)
			return p, nil
		}
	}
	return nil, errors.New("no prompts that differ in using the expert")
})

func thePeople(t *testing.T) *people {
	t.Helper()
	p, err := findPeople()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sound wants the answer of an engine without faults.
func (p *people) sound(t *testing.T, e *engine.Engine, prompt []int32) {
	t.Helper()
	got, err := ask(e, prompt)
	if err != nil {
		t.Errorf("prompt %v: %v", prompt, err)
	} else if want := p.answers[prompt[0]]; !slices.Equal(got, want) {
		t.Errorf("prompt %v: answer %v, want %v", prompt, got, want)
	}
}

// checkError wants one line of the given kinds that holds all the words.
func checkError(t *testing.T, err error, kinds []error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, k := range kinds {
		if !errors.Is(err, k) {
			t.Errorf("%v: not of kind %v", err, k)
		}
	}
	s := err.Error()
	for _, w := range words {
		if !strings.Contains(s, w) {
			t.Errorf("%q does not name %q", s, w)
		}
	}
	if strings.Contains(s, "\n") {
		t.Errorf("%q is more than one line", s)
	}
}

var faultPlace = []string{"model.gguf", faultTensor, "layer 2", "expert 7", "offset"}

// eio fails the reads that touch the last byte of a part: no widened read of another part does.
func eio(at gguf.Extent, times int) func(uring.Device) uring.Device {
	return func(d uring.Device) uring.Device {
		return fake.Wrap(d, fake.WrapOptions{Faults: []fake.Fault{{From: at.Offset + at.Size - 1, To: at.Offset + at.Size, Times: times, Errno: syscall.EIO}}})
	}
}

// A disk that cannot read one expert fails the requests that need it, alone; a request beside them in the same batch says
// the same as ever.
func TestExpertThatCannotBeRead(t *testing.T) {
	p := thePeople(t)
	path := copyModel(t)
	o := faultOptions(path)
	o.Parallel = 3
	o.WrapDevice = eio(part(t, path, faultTensor, faultExpert), 0)
	e := openEngine(t, o)
	together := false // a batch held the faulty request and another
	err := e.Observe(func(_, token int, _ []int32) { together = together || token > 0 }, nil)
	if err != nil {
		t.Fatal(err)
	}
	shared := func() (s bool) { // the loop is idle: nobody writes together
		if _, err := e.Stats(); err != nil {
			t.Fatal(err)
		}
		return together
	}
	for round := 0; round < 5 || !shared(); round++ {
		if round == 200 {
			t.Fatal("requests never met in a batch")
		}
		var wg sync.WaitGroup
		for _, prompt := range p.others {
			wg.Go(func() { p.sound(t, e, prompt) })
		}
		wg.Go(func() {
			_, err := ask(e, p.user)
			if err == nil {
				t.Error("a request got an expert that cannot be read")
				return
			}
			checkError(t, err, []error{pager.ErrRead, syscall.EIO}, append(faultPlace, "check the disk")...)
		})
		wg.Wait()
	}
	p.sound(t, e, p.others[0])
}

// One failure is repaired by the retry; when the disk is well again, so is the request.
func TestFaultThatEnds(t *testing.T) {
	p := thePeople(t)
	path := copyModel(t)
	at := part(t, path, faultTensor, faultExpert)
	t.Run("repaired", func(t *testing.T) {
		o := faultOptions(path)
		o.WrapDevice = eio(at, 1)
		e := openEngine(t, o)
		p.sound(t, e, p.user)
		if s, err := e.Stats(); err != nil || s.Pager.Retries != 1 {
			t.Errorf("%d retries (%v), want 1", s.Pager.Retries, err)
		}
	})
	t.Run("passed", func(t *testing.T) {
		o := faultOptions(path)
		o.WrapDevice = eio(at, 2)
		e := openEngine(t, o)
		_, err := ask(e, p.user)
		checkError(t, err, []error{pager.ErrRead, syscall.EIO}, faultPlace...)
		p.sound(t, e, p.user)
	})
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func TestFileCutBefore(t *testing.T) {
	path := copyModel(t)
	at := part(t, path, faultTensor, faultExpert)
	truncate(t, path, at.Offset+at.Size/2)
	_, err := engine.Open(context.Background(), faultOptions(path))
	checkError(t, err, []error{gguf.ErrCorrupt}, "model.gguf", faultTensor)
}

// A file that loses its tail while in use: what lies in the tail fails, everything else goes on.
func TestFileCutInUse(t *testing.T) {
	p := thePeople(t)
	for _, backend := range []string{"auto", "pread"} {
		t.Run(backend, func(t *testing.T) {
			path := copyModel(t)
			at := part(t, path, faultTensor, faultExpert)
			o := faultOptions(path)
			o.Backend = backend
			e := openEngine(t, o)
			p.sound(t, e, p.user)
			truncate(t, path, at.Offset+at.Size/2)
			_, err := ask(e, p.user)
			checkError(t, err, []error{pager.ErrRead, uring.ErrShort, uring.ErrChanged}, append(faultPlace, "the file ends early")...)
			p.sound(t, e, p.others[0])
		})
	}
}

// A cut that takes mapped weights away must not end the process.
func TestMappedWeightsCut(t *testing.T) {
	p := thePeople(t)
	path := copyModel(t)
	e := openEngine(t, faultOptions(path))
	p.sound(t, e, p.user)
	truncate(t, path, 4096)
	for range 2 {
		_, err := ask(e, p.user)
		checkError(t, err, []error{uring.ErrChanged}, "model.gguf", "4096", "start again")
	}
	t.Run("copied", func(t *testing.T) {
		path := copyModel(t)
		o := faultOptions(path)
		o.Resident = "copy"
		e := openEngine(t, o)
		truncate(t, path, 4096)
		_, err := ask(e, p.user)
		checkError(t, err, []error{pager.ErrRead, uring.ErrShort, uring.ErrChanged}, "model.gguf", "layer 0", "expert")
	})
}

// A file that another one is renamed over is still whole for those who have it open; one that is written to is not.
func TestFileReplacedInUse(t *testing.T) {
	p := thePeople(t)
	path := copyModel(t)
	e := openEngine(t, faultOptions(path))
	p.sound(t, e, p.user)
	if err := os.Rename(copyModel(t), path); err != nil {
		t.Fatal(err)
	}
	p.sound(t, e, p.user)

	path = copyModel(t)
	e = openEngine(t, faultOptions(path))
	p.sound(t, e, p.user)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := part(t, path, faultTensor, faultExpert)
	if _, err := f.WriteAt(make([]byte, at.Size), at.Offset); err != nil {
		t.Fatal(err)
	}
	_, err = ask(e, p.others[0])
	checkError(t, err, []error{uring.ErrChanged}, "model.gguf", "written", "start again")
}

func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	_, err := engine.Open(context.Background(), faultOptions(filepath.Join(dir, "none.gguf")))
	checkError(t, err, []error{os.ErrNotExist}, "none.gguf")
	path := copyModel(t)
	for d := path; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { // root may read anything; this thread may not, and ends with its goroutine
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		e, err := engine.Open(context.Background(), faultOptions(path))
		if err == nil {
			e.Close()
		}
		done <- err
	}()
	checkError(t, <-done, []error{os.ErrPermission}, "model.gguf")
}

func poke(t *testing.T, path string, at gguf.Extent, v float32) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, at.Size)
	for i := 0; i < len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], math.Float32bits(v))
	}
	if _, err := f.WriteAt(b, at.Offset); err != nil {
		t.Fatal(err)
	}
}

// Weights that are no numbers end the requests that meet them.
func TestBrokenWeights(t *testing.T) {
	p := thePeople(t)
	nan := float32(math.NaN())
	t.Run("router", func(t *testing.T) {
		path := copyModel(t)
		poke(t, path, part(t, path, "blk.1.ffn_gate_inp.weight", 0), nan)
		e := openEngine(t, faultOptions(path))
		for range 2 {
			_, err := ask(e, append(slices.Clone(p.user), 5, 6))
			checkError(t, err, []error{model.ErrNotFinite}, "layer 1", "position ", "check the file")
		}
	})
	t.Run("expert", func(t *testing.T) {
		path := copyModel(t)
		poke(t, path, part(t, path, faultTensor, faultExpert), nan)
		e := openEngine(t, faultOptions(path))
		for range 2 {
			_, err := ask(e, p.user)
			checkError(t, err, []error{engine.ErrNaN}, "layer 2", "expert 7", "check the file")
			p.sound(t, e, p.others[0])
		}
	})
	t.Run("experts of a layer before others", func(t *testing.T) {
		path := copyModel(t)
		for i := range 8 {
			poke(t, path, part(t, path, "blk.1.ffn_up_exps.weight", i), nan)
		}
		e := openEngine(t, faultOptions(path))
		for range 2 {
			_, err := ask(e, append(slices.Clone(p.user), 5, 6))
			checkError(t, err, []error{model.ErrNotFinite}, "layer 1, expert ", "position ", "check the file")
		}
	})
}

// A request that is given up while its prompt is read ends soon, and harms nobody.
func TestCancelInPrompt(t *testing.T) {
	p := thePeople(t)
	o := faultOptions(faultModel)
	e := openEngine(t, o)
	prompt := make([]int32, 250)
	before, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err = e.Generate(ctx, engine.Request{Tokens: prompt, MaxTokens: 1}, func(ev engine.Event) error {
		if ev.Total != len(prompt) || len(ev.Tokens) > 0 {
			t.Errorf("event %+v", ev)
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	after, err := e.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if n := after.Forwards - before.Forwards; n < 1 || n > int64(len(prompt)/o.UBatch) {
		t.Errorf("%d batches", n)
	}
	if _, err := e.Generate(context.Background(), engine.Request{Tokens: prompt, MaxTokens: 1}, func(engine.Event) error { return io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that is gone: %v", err)
	}
	p.sound(t, e, p.user)
}

// While a request is answered, others that wait or run beside it are given up: they end, and its answer is what it is alone.
func TestOthersGivenUp(t *testing.T) {
	p := thePeople(t)
	for _, parallel := range []int{1, 3} {
		o := faultOptions(faultModel)
		o.Context, o.Parallel = 1000, parallel
		e := openEngine(t, o)
		long := engine.Request{Tokens: p.user, MaxTokens: 500, IgnoreEOS: true, Sampling: engine.Sampling{Temperature: 1, TopP: 1, Seed: 5}}
		alone, err := e.Generate(context.Background(), long, nil)
		if err != nil {
			t.Fatal(err)
		}
		var beside engine.Result
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			var once sync.Once
			var err error
			beside, err = e.Generate(context.Background(), long, func(engine.Event) error { once.Do(func() { close(begun) }); return nil })
			ended <- err
		}()
		<-begun
		others := 0
		for ; len(ended) == 0; others++ {
			ctx, giveUp := context.WithCancel(context.Background())
			other := make(chan error, 1)
			go func() {
				_, err := e.Generate(ctx, engine.Request{Tokens: p.others[others%2], MaxTokens: 900, IgnoreEOS: true}, nil)
				other <- err
			}()
			if others%3 == 0 {
				runtime.Gosched() // now and then it gets further
			}
			giveUp()
			if err := <-other; !errors.Is(err, context.Canceled) {
				t.Fatalf("given up: %v", err)
			}
		}
		if err := <-ended; err != nil || !slices.Equal(beside.Tokens, alone.Tokens) || beside.Text != alone.Text || len(alone.Tokens) != 500 {
			t.Errorf("%d sessions, %d requests given up: %v, or another answer", parallel, others, err)
		}
		if others == 0 {
			t.Error("no other request came in time")
		}
	}
}

// Rows are given once and in order, also when another request's fault makes the batch run again.
func TestRowsBesideAFault(t *testing.T) {
	p := thePeople(t)
	path := copyModel(t)
	o := faultOptions(path)
	o.Parallel = 2
	o.WrapDevice = eio(part(t, path, faultTensor, faultExpert), 0)
	e := openEngine(t, o)
	tokens := append(slices.Clone(p.others[0]), p.answers[p.others[0][0]]...) // what an answer without the expert was made of
	tokens = tokens[:len(tokens)-1]
	want := bits(t, faultOptions(faultModel), tokens, 1)
	for range 20 {
		var got []float32
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := ask(e, p.user); !errors.Is(err, pager.ErrRead) {
				t.Errorf("error %v", err)
			}
		})
		next := 0
		err := e.Rows(context.Background(), tokens, 1, func(pos int, row []float32) error {
			if pos != next {
				t.Errorf("row %d after row %d", pos, next-1)
			}
			next++
			got = append(got, row...)
			return nil
		})
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatal("other bits")
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(d)
}

// An engine that is closed, or could not be opened, leaves nothing behind.
func TestNothingIsLeft(t *testing.T) {
	path, broken := copyModel(t), copyModel(t)
	b, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte("blk.1.ffn_up_exps"), []byte("blk.1.ffn_no_exps"))
	if err := os.WriteFile(broken, b, 0o644); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	ctx := context.Background()
	nobody := goleak.IgnoreCurrent()
	files, memory := openFiles(t), mem.Usage()
	for _, change := range []func(*engine.Options){
		func(*engine.Options) {},
		func(o *engine.Options) { o.Backend = "pread" },
		func(o *engine.Options) { o.Resident, o.Parallel, o.Threads = "copy", 4, 3 },
		func(o *engine.Options) { o.Resident = "nosuch" },
		func(o *engine.Options) { o.EvictPolicy = "nosuch" },
		func(o *engine.Options) { o.Backend = "nosuch" },
		func(o *engine.Options) { o.RAM = "1" },
		func(o *engine.Options) { o.Model = broken },
		func(o *engine.Options) { ctx = stopped },
		func(o *engine.Options) { ctx, o.Resident = stopped, "copy" },
	} {
		o := faultOptions(path)
		ctx = context.Background()
		change(&o)
		e, err := engine.Open(ctx, o)
		if ctx == stopped && !errors.Is(err, context.Canceled) {
			t.Errorf("stopped while loading: %v", err)
		}
		if err != nil {
			continue
		}
		if _, err := ask(e, []int32{1, 2, 3}); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := ask(e, []int32{1}); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after closing: %v", err)
		}
	}
	goleak.VerifyNone(t, nobody)
	if n := openFiles(t); n != files {
		t.Errorf("%d files are open, there were %d", n, files)
	}
	for purpose, n := range mem.Usage() {
		if n != memory[purpose] {
			t.Errorf("%s: %d bytes are left", purpose, n-memory[purpose])
		}
	}
}

// stuck is a device whose end cannot be waited for.
type stuck struct{ uring.Device }

var errStuck = errors.New("reads are in flight")

func (d stuck) Close() error { return errors.Join(errStuck, d.Device.Close()) }

// Memory that the kernel may still write to is not given back, and whoever closes the engine learns of it.
func TestDeviceThatStaysBusy(t *testing.T) {
	o := faultOptions(copyModel(t))
	o.WrapDevice = func(d uring.Device) uring.Device { return stuck{d} }
	before := mem.Usage()["arena"]
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); !errors.Is(err, errStuck) {
		t.Errorf("closed with %v", err)
	}
	if held := mem.Usage()["arena"] - before; held != e.Plan().ArenaBytes {
		t.Errorf("%d bytes are kept, the arena has %d", held, e.Plan().ArenaBytes)
	}
}
