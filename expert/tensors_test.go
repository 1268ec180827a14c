package expert

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/gguf"
)

const demoModel = "../cmd/epq-uring/tiny-moe.gguf"

// TestCatalogOfAFile compares every piece of the demo model with the tensor table.
func TestCatalogOfAFile(t *testing.T) {
	f, err := gguf.Open(demoModel)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCatalog(f, []int{512})
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for i := range c.Experts() {
		k := c.KeyAt(i)
		for _, p := range c.Pieces(k) {
			tensor, ok := f.Tensor(p.Tensor)
			if !ok || tensor.Slice(int(k.Expert)) != (gguf.Extent{Shard: p.Shard, Offset: p.Offset, Size: p.Size}) {
				t.Fatalf("%+v: %+v", k, p)
			}
			total += p.Size
		}
	}
	if total != c.TotalBytes || total == 0 {
		t.Errorf("pieces make %d bytes, the catalog says %d", total, c.TotalBytes)
	}
	used, _, _ := f.Uint(f.Arch() + ".expert_used_count")
	if got := c.MinSlots(); len(got) != len(c.Classes) || got[0] != int(used) {
		t.Errorf("minimum %v for %d experts used", got, used)
	}
}

func TestAlignmentOfEveryShardIsNeeded(t *testing.T) {
	f, err := gguf.Open(demoModel)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewCatalog(f, nil); !errors.Is(err, ErrLayout) {
		t.Errorf("no alignment: %v", err)
	}
}

// model writes a file with two blocks of 4 experts, changed by change, and opens it.
func model(t *testing.T, change func(keys map[string]any, dims map[string][]int64)) *gguf.File {
	t.Helper()
	keys := map[string]any{"general.architecture": "m", "m.block_count": uint32(2), "m.expert_count": uint32(4), "m.expert_used_count": uint32(2)}
	dims := map[string][]int64{}
	for _, block := range []string{"blk.0.", "blk.1."} {
		dims[block+gateName], dims[block+upName], dims[block+downName] = []int64{32, 64, 4}, []int64{32, 64, 4}, []int64{64, 32, 4}
	}
	change(keys, dims)
	b := gguf.NewBuilder()
	for key, value := range keys {
		b.Set(key, value)
	}
	for name, d := range dims {
		b.Add(name, gguf.Q8_0, d, gguf.Bytes(make([]byte, d[0]/32*34*d[1]*d[2])))
	}
	paths, err := b.Write(filepath.Join(t.TempDir(), "m.gguf"), 1)
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLayersOfAFile(t *testing.T) {
	type keys = map[string]any
	type dims = map[string][]int64
	for name, c := range map[string]struct {
		change func(keys, dims)
		blocks []int
		err    error
		says   string
	}{
		"plain": {func(keys, dims) {}, []int{0, 1}, nil, ""},
		"merged": {func(_ keys, d dims) {
			delete(d, "blk.1."+gateName)
			delete(d, "blk.1."+upName)
			d["blk.1."+gateUpName] = []int64{32, 128, 4}
		}, []int{0, 1}, nil, ""},
		"dense first": {func(_ keys, d dims) {
			for _, n := range []string{gateName, upName, downName} {
				delete(d, "blk.0."+n)
			}
		}, []int{1}, nil, ""},
		"prediction": {func(k keys, d dims) {
			k["m.nextn_predict_layers"] = uint32(1)
			d["blk.1.nextn.eh_proj.weight"] = []int64{64, 32, 1}
		}, []int{0}, nil, ""},
		"prediction cut":   {func(k keys, d dims) { k["m.nextn_predict_layers"] = uint32(1) }, []int{0, 1}, nil, ""},
		"beyond the count": {func(k keys, d dims) { k["m.block_count"] = uint32(1) }, []int{0}, nil, ""},
		"none":             {func(k keys, d dims) { clear(d); d["x"] = []int64{32, 1, 1} }, nil, ErrNoExperts, "no routed experts"},
		"up missing":       {func(_ keys, d dims) { delete(d, "blk.1."+upName) }, nil, ErrLayout, "blk.1.ffn_up_exps.weight is missing"},
		"other count":      {func(_ keys, d dims) { d["blk.1."+upName] = []int64{32, 64, 5} }, nil, ErrLayout, "has 5 experts"},
		"other than key":   {func(k keys, _ dims) { k["m.expert_count"] = uint32(3) }, nil, ErrLayout, "m.expert_count says 3"},
		"other width":      {func(_ keys, d dims) { d["blk.0."+downName] = []int64{32, 32, 4} }, nil, ErrLayout, "dimensions [32 64 4]"},
		"half merged":      {func(_ keys, d dims) { d["blk.1."+gateUpName] = []int64{32, 64, 4} }, nil, ErrLayout, "blk.1.ffn_gate_up_exps.weight"},
		"two dimensions": {func(_ keys, d dims) {
			d["blk.0."+gateName] = []int64{32, 64, 1}
			d["blk.0."+upName] = []int64{32, 64, 1}
		}, nil, ErrLayout, "has 1 experts"},
		"empty":          {func(_ keys, d dims) { d["blk.0."+gateName] = []int64{32, 64, 0} }, nil, ErrLayout, "none 0"},
		"used 0":         {func(k keys, _ dims) { k["m.expert_used_count"] = uint32(0) }, nil, ErrLayout, "m.expert_used_count is 0"},
		"used 5":         {func(k keys, _ dims) { k["m.expert_used_count"] = uint32(5) }, nil, ErrLayout, "1 to 4"},
		"used no number": {func(k keys, _ dims) { k["m.expert_used_count"] = "two" }, nil, gguf.ErrCorrupt, "m.expert_used_count"},
	} {
		c2, err := NewCatalog(model(t, c.change), []int{512})
		if c.err != nil {
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) || strings.Count(err.Error(), "expert: ") != 1 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var blocks []int
		for _, l := range c2.Layers {
			blocks = append(blocks, l.Block)
			if l.Merged != (len(l.Parts) == 2) {
				t.Errorf("%s: %+v", name, l)
			}
		}
		if !slices.Equal(blocks, c.blocks) {
			t.Errorf("%s: blocks %v, want %v", name, blocks, c.blocks)
		}
	}
}
