package expert

import (
	"errors"
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
