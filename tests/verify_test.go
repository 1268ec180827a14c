package tests

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/pager"
)

func verified(t *testing.T, o engine.VerifyOptions) engine.VerifyResult {
	t.Helper()
	r, err := engine.Verify(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// flip inverts a bit of an expert's slice and returns what it changed.
func flip(t *testing.T, path, tensor string, expert int) gguf.Extent {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	w, ok := f.Tensor(tensor)
	if !ok {
		t.Fatalf("no tensor %s", tensor)
	}
	at := w.Slice(expert)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b := make([]byte, 1)
	if _, err := file.ReadAt(b, at.Offset+at.Size-1); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := file.WriteAt(b, at.Offset+at.Size-1); err != nil {
		t.Fatal(err)
	}
	return at
}

// The first Verify takes checksums down, later ones find the slice that changed.
func TestVerifyFindsAFlippedBit(t *testing.T) {
	o := engine.VerifyOptions{Model: copyDemo(t)}
	if r := verified(t, o); r.Experts != 64 || r.Made != 64 || len(r.Bad) != 0 || r.Sums != o.Model+".crc32c" {
		t.Fatalf("%+v", r)
	}
	if r := verified(t, o); r.Made != 0 || len(r.Bad) != 0 {
		t.Fatalf("%+v", r)
	}
	const tensor, expert = "blk.2.ffn_down_exps.weight", 7
	at := flip(t, o.Model, tensor, expert)
	r := verified(t, o)
	if len(r.Bad) != 1 {
		t.Fatalf("%+v", r)
	}
	if b := r.Bad[0]; b.File != "demo.gguf" || b.Tensor != tensor || b.Layer != 2 || b.Expert != expert || b.Offset != at.Offset || b.Bytes != at.Size || b.Reason == "" {
		t.Errorf("%+v", b)
	}
	flip(t, o.Model, tensor, expert)
	if r := verified(t, o); len(r.Bad) != 0 {
		t.Errorf("mended: %+v", r)
	}
}

// What was summed before an interruption is not summed again; until all is done, --verify refuses.
func TestVerifyGoesOn(t *testing.T) {
	o := engine.VerifyOptions{Model: copyDemo(t), Sums: filepath.Join(t.TempDir(), "sums")}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := o
	stopped.Progress = func(int64, int64) { cancel() }
	r, err := engine.Verify(ctx, stopped)
	if !errors.Is(err, context.Canceled) || r.Made == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r.Made < 64 {
		if _, err := engine.Open(context.Background(), engine.Options{Model: o.Model, RAM: "min", Verify: true, Sums: o.Sums}); !errors.Is(err, engine.ErrSums) || !strings.Contains(err.Error(), "lacks") {
			t.Errorf("half of the checksums: %v", err)
		}
	}
	if next := verified(t, o); next.Made != 64-r.Made || len(next.Bad) != 0 {
		t.Errorf("first %d, then %+v", r.Made, next)
	}
}

// With --verify the bits are the same; a slice that changed on disk is an error that names it, and the engine lives on.
func TestVerifiedReads(t *testing.T) {
	o := engine.Options{Model: copyDemo(t), RAM: "min", Context: 64, UBatch: 16, NoTokenizer: true}
	want, _, _ := visit(t, o)
	o.Verify = true
	if _, err := engine.Open(context.Background(), o); !errors.Is(err, engine.ErrSums) || strings.Contains(err.Error(), "\n") {
		t.Errorf("no checksums: %v", err)
	}
	sums := verified(t, engine.VerifyOptions{Model: o.Model}).Sums
	if got, line, _ := visit(t, o); !slices.Equal(got, want) || !strings.Contains(line, "verified") {
		t.Errorf("other bits, or %q", line)
	}
	for e := range 16 {
		flip(t, o.Model, "blk.1.ffn_up_exps.weight", e)
	}
	e, err := engine.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var got []float32
	rows := func() error {
		got = nil
		return e.Rows(context.Background(), someTokens, 4, func(_ int, row []float32) error { got = append(got, row...); return nil })
	}
	err = rows()
	if !errors.Is(err, pager.ErrVerify) {
		t.Fatalf("flipped bits: %v", err)
	}
	for _, word := range []string{"demo.gguf", "blk.1.ffn_up_exps.weight", "layer 1", "expert ", "offset ", "CRC32C", "check the disk"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("no %q in %v", word, err)
		}
	}
	for e := range 16 {
		flip(t, o.Model, "blk.1.ffn_up_exps.weight", e)
	}
	t.Run("sums", func(t *testing.T) { refusedSums(t, o, sums) })
}

// refusedSums: checksums that are damaged or of another model are refused by both commands, and left as they are.
func refusedSums(t *testing.T, o engine.Options, sums string) {
	whole, err := os.ReadFile(sums)
	if err != nil {
		t.Fatal(err)
	}
	flipped, foreign := slices.Clone(whole), slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	foreign[20] ^= 1
	for _, c := range []struct {
		name string
		data []byte
		kind error
	}{{"flipped", flipped, engine.ErrDamaged}, {"foreign", foreign, engine.ErrForeign}, {"cut", whole[:100], engine.ErrForeign}, {"empty", nil, engine.ErrForeign}} {
		if err := os.WriteFile(sums, c.data, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := engine.Verify(context.Background(), engine.VerifyOptions{Model: o.Model})
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := engine.Open(context.Background(), o); !errors.Is(err, c.kind) || !errors.Is(err, engine.ErrSums) {
			t.Errorf("%s: --verify: %v", c.name, err)
		}
		if b, _ := os.ReadFile(sums); !slices.Equal(b, c.data) {
			t.Errorf("%s: the file was changed", c.name)
		}
	}
}

// Weights that are no numbers are named, the first time and later; their checksums are kept all the same.
func TestVerifyFindsBrokenWeights(t *testing.T) {
	path := copyModel(t)
	poke(t, path, part(t, path, faultTensor, faultExpert), float32(math.NaN()))
	for _, made := range []bool{true, false} {
		r := verified(t, engine.VerifyOptions{Model: path})
		if made != (r.Made == r.Experts) {
			t.Errorf("%d of %d experts are new", r.Made, r.Experts)
		}
		if len(r.Bad) != 1 || r.Bad[0].Tensor != faultTensor || r.Bad[0].Expert != faultExpert || !strings.Contains(r.Bad[0].Reason, "block 0 is NaN") {
			t.Errorf("found %+v", r.Bad)
		}
	}
}
