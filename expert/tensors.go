package expert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/epq-uring/epq-uring/gguf"
)

// Names of the tensors with routed experts, after "blk.N.". Dims are {row, rows, experts}; gate_up has the gate's rows
// first.
const (
	gateName   = "ffn_gate_exps.weight"
	upName     = "ffn_up_exps.weight"
	gateUpName = "ffn_gate_up_exps.weight"
	downName   = "ffn_down_exps.weight"
)

// NewCatalog finds the routed experts of a model: blk.N.ffn_{gate,up,down}_exps.weight, or gate and up merged. Blocks of
// the multi-token prediction part are left out: the last nextn_predict_layers of block_count, where the file has them.
// align[i] is the alignment of reads from f.Shards[i]. A model without routed experts is ErrNoExperts; tensors that
// contradict each other or the metadata are ErrLayout.
func NewCatalog(f *gguf.File, align []int) (*Catalog, error) { return newCatalog(f, align, false) }

// NewFullCatalog is NewCatalog with the first block of the multi-token prediction part, if there is one, as the last layer.
func NewFullCatalog(f *gguf.File, align []int) (*Catalog, error) { return newCatalog(f, align, true) }

func newCatalog(f *gguf.File, align []int, predict bool) (*Catalog, error) {
	h, err := readHyper(f)
	if err != nil {
		return nil, err
	}
	var layers []Layer
	for _, block := range expertBlocks(f) {
		if h.predicts(f, block) {
			if !predict {
				continue
			}
			predict = false
		}
		l, err := newLayer(f, block, h)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	paths := make([]string, len(f.Shards))
	for i, s := range f.Shards {
		paths[i] = s.Path
	}
	return Build(layers, paths, align)
}

// hyper is the metadata that concerns routed experts. Zero means that the key is absent.
type hyper struct {
	arch                         string
	blocks, nextn, experts, used int64
}

func readHyper(f *gguf.File) (hyper, error) {
	h := hyper{arch: f.Arch()}
	for key, to := range map[string]*int64{
		"block_count": &h.blocks, "nextn_predict_layers": &h.nextn, "expert_count": &h.experts, "expert_used_count": &h.used,
	} {
		v, _, err := f.Int(h.arch + "." + key)
		if err != nil {
			return h, fmt.Errorf("expert: %w", err)
		}
		*to = v
	}
	return h, nil
}

// predicts says whether a block belongs to multi-token prediction. The count alone is not believed: files exist whose
// last blocks were cut off while the key stayed, and the tensor tells.
func (h hyper) predicts(f *gguf.File, block int) bool {
	if int64(block) >= h.blocks {
		return true
	}
	_, found := f.Tensor(tensorName(block, "nextn.eh_proj.weight"))
	return found && int64(block) >= h.blocks-h.nextn
}

// expertBlocks returns the numbers of all blocks with routed experts in ascending order. It goes by the tensors that are
// there, never by a claimed count.
func expertBlocks(f *gguf.File) []int {
	var blocks []int
	for _, t := range f.Tensors() {
		number, name, _ := strings.Cut(strings.TrimPrefix(t.Name, "blk."), ".")
		switch name {
		case gateName, upName, gateUpName, downName:
			if n, err := strconv.Atoi(number); err == nil && n >= 0 && t.Name == tensorName(n, name) {
				blocks = append(blocks, n)
			}
		}
	}
	slices.Sort(blocks)
	return slices.Compact(blocks)
}

func tensorName(block int, name string) string { return "blk." + strconv.Itoa(block) + "." + name }

func newLayer(f *gguf.File, block int, h hyper) (Layer, error) {
	l := Layer{Block: block, Used: int(h.used)}
	names := []string{gateName, upName, downName}
	if _, merged := f.Tensor(tensorName(block, gateUpName)); merged {
		l.Merged, names = true, []string{gateUpName, downName}
	}
	var tensors []gguf.Tensor
	for _, name := range names {
		t, ok := f.Tensor(tensorName(block, name))
		if !ok {
			return l, fmt.Errorf("expert: tensor %s is missing: %w", tensorName(block, name), ErrLayout)
		}
		if len(t.Dims) != 3 || t.Size == 0 {
			return l, fmt.Errorf("expert: %s has dimensions %v, wanted 3, none 0: %w", t.Name, t.Dims, ErrLayout)
		}
		tensors = append(tensors, t)
		l.Parts = append(l.Parts, Part{Tensor: t.Name, Shard: t.Shard, Offset: t.Offset, Size: t.Slice(0).Size})
	}
	l.Experts = int(tensors[0].Dims[2])
	return l, checkLayer(tensors, l, h)
}

// checkLayer compares the dimensions of a layer's tensors with each other and with the metadata.
func checkLayer(tensors []gguf.Tensor, l Layer, h hyper) error {
	down := tensors[len(tensors)-1]
	rows := down.Dims[0]
	if l.Merged {
		rows *= 2
	}
	for _, t := range tensors[:len(tensors)-1] {
		if t.Dims[0] != down.Dims[1] || t.Dims[1] != rows {
			return fmt.Errorf("expert: %s has dimensions %v, but %s %v: %w", t.Name, t.Dims, down.Name, down.Dims, ErrLayout)
		}
	}
	for _, t := range tensors {
		if t.Dims[2] != int64(l.Experts) || h.experts > 0 && t.Dims[2] != h.experts {
			return fmt.Errorf("expert: %s has %d experts, %s %d, %s.expert_count says %d: %w",
				t.Name, t.Dims[2], tensors[0].Name, l.Experts, h.arch, h.experts, ErrLayout)
		}
	}
	if h.used < 1 || h.used > int64(l.Experts) {
		return fmt.Errorf("expert: %s.expert_used_count is %d, it must be 1 to %d (the experts of block %d): %w", h.arch, h.used, l.Experts, l.Block, ErrLayout)
	}
	return nil
}
