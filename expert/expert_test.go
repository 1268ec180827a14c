package expert

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// qwenLayers is the 35B shape: 40 layers of 256 experts, the down projection Q6_K in half of them.
func qwenLayers(offset int64) []Layer {
	var layers []Layer
	for i := range 40 {
		down := int64(589824)
		if i < 5 || i >= 35 || (i-5)%3 == 2 {
			down = 860160
		}
		l := Layer{Block: i, Experts: 256, Used: 8}
		for j, size := range []int64{589824, 589824, down} {
			l.Parts = append(l.Parts, Part{Tensor: []string{"gate", "up", "down"}[j], Offset: offset, Size: size})
			offset += size*256 + 128 // a small tensor between: the shift differs from tensor to tensor
		}
		layers = append(layers, l)
	}
	return layers
}

func mustBuild(t *testing.T, layers []Layer, align ...int) *Catalog {
	t.Helper()
	c, err := Build(layers, []string{"/models/a-1.gguf", "/models/a-2.gguf"}[:len(align)], align)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClassesOfTheLargeShape(t *testing.T) {
	c := mustBuild(t, qwenLayers(4096), 512)
	if len(c.Classes) != 2 {
		t.Fatalf("classes %+v", c.Classes)
	}
	for i, wanted := range []int64{1769472, 2039808} {
		k := c.Classes[i]
		if k.Layers != 20 || k.Experts != 5120 || k.Used != 8 || k.SlotBytes < wanted || k.SlotBytes > wanted+3*4096 {
			t.Errorf("class %d: %+v", i, k)
		}
	}
	if want := int64(5120 * (1769472 + 2039808)); c.TotalBytes != want {
		t.Errorf("total %d, want %d", c.TotalBytes, want)
	}
}

// TestPieces holds the geometry of reads for odd sizes, offsets and alignments.
func TestPieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		align := []int{1, 512, 4096, 65536, 1 << 20}[rnd.IntN(5)]
		var layers []Layer
		for b := range 1 + rnd.IntN(4) {
			l := Layer{Block: b, Experts: 1 + rnd.IntN(20)}
			l.Used = 1 + rnd.IntN(l.Experts)
			for range 1 + rnd.IntN(3) {
				l.Parts = append(l.Parts, Part{Offset: rnd.Int64N(1 << 40), Size: 1 + rnd.Int64N(20000)})
			}
			layers = append(layers, l)
		}
		c := mustBuild(t, layers, align)
		for i := range c.Experts() {
			k := c.KeyAt(i)
			if !c.Valid(k) || c.Index(k) != i {
				t.Fatalf("key %d: %+v has index %d", i, k, c.Index(k))
			}
			checkPieces(t, c, k, int64(align))
		}
	}
}

func checkPieces(t *testing.T, c *Catalog, k Key, align int64) {
	t.Helper()
	l := c.Layers[k.Layer]
	end, grain := int64(0), max(4096, align)
	for i, p := range c.Pieces(k) {
		want := l.Parts[i].Offset + int64(k.Expert)*l.Parts[i].Size
		ok := p.Offset == want && p.Size == l.Parts[i].Size && p.ReadOffset+int64(p.Shift) == want &&
			p.ReadOffset%align == 0 && int64(p.ReadLength)%align == 0 && p.Shift >= 0 && int64(p.Shift) < align &&
			p.Need() <= p.ReadLength && int64(p.ReadLength-p.Need()) < align &&
			int64(p.SlotOffset)%grain == 0 && int64(p.SlotOffset) >= end
		if !ok {
			t.Fatalf("align %d, %+v piece %d: %+v", align, k, i, p)
		}
		end = int64(p.SlotOffset + p.ReadLength)
	}
	if slot := c.Classes[l.Class].SlotBytes; end > slot || slot%grain != 0 {
		t.Fatalf("%+v ends at %d of a slot of %d", k, end, c.Classes[l.Class].SlotBytes)
	}
}

func TestBuildRefuses(t *testing.T) {
	good := func() Layer {
		return Layer{Block: 3, Experts: 4, Used: 2, Parts: []Part{{Tensor: "gate", Size: 10}}}
	}
	for name, change := range map[string]func(l *Layer){
		"used 0":        func(l *Layer) { l.Used = 0 },
		"used too many": func(l *Layer) { l.Used = 5 },
		"no parts":      func(l *Layer) { l.Parts = nil },
		"four parts":    func(l *Layer) { l.Parts = make([]Part, 4) },
		"empty part":    func(l *Layer) { l.Parts[0].Size = 0 },
		"giant part":    func(l *Layer) { l.Parts[0].Size = 1<<30 + 1 },
		"giant slot":    func(l *Layer) { l.Parts = []Part{{Size: 1 << 30}, {Size: 1}} },
		"bad offset":    func(l *Layer) { l.Parts[0].Offset = -1 },
		"bad shard":     func(l *Layer) { l.Parts[0].Shard = 1 },
		"too many":      func(l *Layer) { l.Experts = 1<<30 + 1 },
	} {
		l := good()
		change(&l)
		_, err := Build([]Layer{l}, []string{"a"}, []int{512})
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "block 3") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, align := range []int{-4096, 0, 3, 12288, 2 << 20} {
		if _, err := Build([]Layer{good()}, []string{"a"}, []int{align}); !errors.Is(err, ErrLayout) {
			t.Errorf("alignment %d: %v", align, err)
		}
	}
	if _, err := Build(nil, nil, nil); !errors.Is(err, ErrNoExperts) {
		t.Errorf("no layers: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	l := Layer{Block: 7, Experts: 256, Used: 8, Parts: []Part{{Tensor: "blk.7.ffn_gate_exps.weight", Size: 10}, {Tensor: "blk.7.ffn_up_exps.weight", Shard: 1, Offset: 1000, Size: 100}}}
	c := mustBuild(t, []Layer{l}, 512, 512)
	want := "a-2.gguf: blk.7.ffn_up_exps.weight, layer 7, expert 93, offset 10300, 100 bytes"
	if got := c.Describe(Key{0, 93}, 1); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPlanDividesToTheByte(t *testing.T) {
	c := mustBuild(t, qwenLayers(4096), 512)
	terms := []Term{{"kv cache", 300 << 20, Anonymous, true}, {"weights", 1 << 30, File, false}, {"go heap", 64<<20 + 7, Anonymous, true}}
	_, err := NewPlan(0, "flag", terms, c)
	var small *TooSmall
	if !errors.As(err, &small) {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	before := 0
	for budget := small.Minimum; budget < small.Minimum+24<<30; budget += rnd.Int64N(1 << 30) {
		p, err := NewPlan(budget, "flag", terms, c)
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, p, c)
		if p.Minimum != small.Minimum {
			t.Fatalf("budget %d: minimum %d, want %d", budget, p.Minimum, small.Minimum)
		}
		if n := p.Slots[0] + p.Slots[1]; n < before {
			t.Fatalf("budget %d: %d slots, with less memory %d", budget, n, before)
		} else {
			before = n
		}
	}
	if before != c.Experts() {
		t.Errorf("the largest budget holds %d of %d experts", before, c.Experts())
	}
	if _, err := NewPlan(small.Minimum-1, "flag", terms, c); !errors.As(err, &small) {
		t.Errorf("a byte less than the minimum: %v", err)
	}
}

func checkPlan(t *testing.T, p *Plan, c *Catalog) {
	t.Helper()
	sum, arena := p.Unused, int64(0)
	for _, term := range p.Terms {
		if term.Counted {
			sum += term.Bytes
		}
	}
	for i, k := range p.Classes {
		arena += int64(k.Slots) * k.SlotBytes
		if k.Slots != p.Slots[i] || k.Slots < c.Classes[i].Used || k.Slots > k.Experts {
			t.Fatalf("class %d: %+v", i, k)
		}
		if k.Slots < k.Experts && p.Unused >= k.SlotBytes {
			t.Fatalf("%d bytes unused, a slot takes %d", p.Unused, k.SlotBytes)
		}
	}
	if sum != p.Budget || arena != p.ArenaBytes || p.Terms[len(p.Terms)-1].Bytes != arena {
		t.Fatalf("budget %d: terms make %d, arena %d of %d", p.Budget, sum, p.ArenaBytes, arena)
	}
}

// TestPlanIsProportional is case B29: no class is starved and no memory is priced at the widest type.
func TestPlanIsProportional(t *testing.T) {
	c := mustBuild(t, qwenLayers(4096), 512)
	p, err := NewPlan(8<<30, "flag", []Term{{"rest", 2 << 30, Anonymous, true}}, c)
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Slots[0] - p.Slots[1]; d < -1 || d > 2 {
		t.Errorf("slots %v for classes of 20 layers each", p.Slots)
	}
	if used := p.ArenaBytes; float64(used) < 0.99*float64(6<<30) {
		t.Errorf("arena %d of %d", used, int64(6)<<30)
	}
	table := p.Table()
	for _, want := range []string{"arena", "unused", "rest", "8589934592 bytes", "for 5120 experts"} {
		if !strings.Contains(table, want) {
			t.Errorf("table lacks %q:\n%s", want, table)
		}
	}
}

func TestPlanJSON(t *testing.T) {
	c := mustBuild(t, qwenLayers(0), 4096)
	p, err := NewPlan(4<<30, "rlimit", []Term{{"kv", 1, Anonymous, true}}, c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"budget_bytes", "bound_by", "minimum_bytes", "unused_bytes", "max_context", "terms", "classes"} {
		if _, ok := got[key]; !ok {
			t.Errorf("no %s in %s", key, b)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d fields in %s", len(got), b)
	}
}

func TestPlanRefusesTerms(t *testing.T) {
	c := mustBuild(t, qwenLayers(0), 4096)
	for _, terms := range [][]Term{{{"kv", -1, Anonymous, true}}, {{"a", 1 << 62, Anonymous, true}, {"b", 1 << 62, Anonymous, true}}} {
		if _, err := NewPlan(1<<40, "flag", terms, c); !errors.Is(err, ErrTerms) {
			t.Errorf("%v: %v", terms, err)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "0.98 KiB", 1 << 20: "1.00 MiB", 8 << 30: "8.00 GiB", 123 << 20: "123 MiB", 12345 << 10: "12.1 MiB"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// The large shape: 8 experts in each of 40 layers, half of them of either size.
func TestTokenBytes(t *testing.T) {
	c := mustBuild(t, qwenLayers(0), 512)
	want := int64(0)
	for _, l := range c.Layers {
		want += 8 * c.Classes[l.Class].SlotBytes
	}
	if got := c.TokenBytes(); got != want || got < 40*8*1769472 {
		t.Errorf("%d bytes, want %d", got, want)
	}
	if got := c.SlotBytes(c.MinSlots()); got >= want || got <= 0 {
		t.Errorf("the smallest arena has %d bytes, the experts of a token %d", got, want)
	}
}

func TestTableSaysWhatIsNoted(t *testing.T) {
	p := Plan{Budget: 1 << 30, Resident: "copy", Notes: []string{"the arena is small"}}
	for _, want := range []string{"resident weights: copy\n", "note: the arena is small\n"} {
		if s := p.Table(); !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
}
