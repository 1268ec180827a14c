package tests

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
	"github.com/epq-uring/epq-uring/model"
)

// floats reads an F32 tensor.
func floats(t *testing.T, f *gguf.File, x gguf.Tensor) []float32 {
	t.Helper()
	file, err := os.Open(f.Shards[x.Shard].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	b := make([]byte, x.Size)
	if _, err := file.ReadAt(b, x.Offset); err != nil {
		t.Fatal(err)
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func floatData(v []float32) gguf.Data {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return gguf.Bytes(b)
}

// rebuilt writes a model anew: keys pass through key, tensors through tensor, which may add others instead.
func rebuilt(t *testing.T, path string, key func(name string, v any) (string, any), tensor func(b *gguf.Builder, x gguf.Tensor, v []float32)) string {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := gguf.NewBuilder()
	for _, k := range f.Keys() {
		v, _ := f.Value(k)
		if name, value := key(k, v.Any()); name != "" {
			b.Set(name, value)
		}
	}
	for _, x := range f.Tensors() {
		tensor(b, x, floats(t, f, x))
	}
	paths, err := b.Write(filepath.Join(t.TempDir(), filepath.Base(path)), 1)
	if err != nil {
		t.Fatal(err)
	}
	return paths[0]
}

func keep(b *gguf.Builder, x gguf.Tensor, v []float32) { b.Add(x.Name, x.Type, x.Dims, floatData(v)) }

// Old files of deepseek2 hold the key and value projections of a head in one matrix, and the sizes of a query head where
// new ones have those of the cached key. They give the same logits.
func TestWholeKeyValue(t *testing.T) {
	for _, name := range []string{"micro-deepseek2", "micro-deepseek2-lite", "micro-deepseek2-glm"} {
		t.Run(name, func(t *testing.T) {
			c := loadGolden(t, name)
			const p = "deepseek2.attention."
			var keys []float32 // attn_k_b of the block, [head][rank][nope]
			var dims []int64
			c.Model = rebuilt(t, c.path(), func(k string, v any) (string, any) {
				switch k {
				case p + "key_length", p + "value_length":
					return "", nil
				}
				return strings.TrimSuffix(k, "_mla"), v
			}, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
				switch {
				case strings.HasSuffix(x.Name, "attn_k_b.weight"):
					keys, dims = v, x.Dims
				case strings.HasSuffix(x.Name, "attn_v_b.weight"):
					nope, rank, heads, head := dims[0], dims[1], dims[2], x.Dims[1]
					var both []float32
					for h := range heads {
						for i := range nope {
							for r := range rank {
								both = append(both, keys[(h*rank+r)*nope+i])
							}
						}
						both = append(both, v[h*head*rank:(h+1)*head*rank]...)
					}
					b.Add(strings.Replace(x.Name, "attn_v_b", "attn_kv_b", 1), gguf.F32, []int64{rank, heads * (nope + head)}, floatData(both))
				default:
					keep(b, x, v)
				}
			})
			o := c.options()
			o.Model = c.Model
			logits, routes := c.rows(t, o, 300)
			c.compare(t, logits)
			c.compareRoutes(t, routes)
		})
	}
}

// same leaves a key as it is.
func same(k string, v any) (string, any) { return k, v }

// Gate and up of the experts may be one tensor, the gate's rows first.
func TestMergedExperts(t *testing.T) {
	c := loadGolden(t, "micro-bailingmoe3")
	var gates []float32
	path := rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		switch {
		case strings.HasSuffix(x.Name, "ffn_gate_exps.weight"):
			gates = v
		case strings.HasSuffix(x.Name, "ffn_up_exps.weight"):
			n := len(v) / int(x.Dims[2])
			var both []float32
			for e := range int(x.Dims[2]) {
				both = append(append(both, gates[e*n:(e+1)*n]...), v[e*n:(e+1)*n]...)
			}
			b.Add(strings.Replace(x.Name, "ffn_up", "ffn_gate_up", 1), gguf.F32, []int64{x.Dims[0], 2 * x.Dims[1], x.Dims[2]}, floatData(both))
		default:
			keep(b, x, v)
		}
	})
	o := c.options()
	o.Model = path
	logits, routes := c.rows(t, o, 7)
	c.compare(t, logits)
	c.compareRoutes(t, routes)
}

// A tensor that nobody needs may be of a type without kernels; one that is needed is refused with its name and type.
func TestTypesWithoutKernels(t *testing.T) {
	c := loadGolden(t, "micro-deepseek2")
	o := c.options()
	o.Model = rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		keep(b, x, v)
		if x.Name == "output.weight" {
			b.Add("extra.table", gguf.I32, []int64{8}, gguf.Bytes(make([]byte, 32)))
			b.Add("blk.1.extra.weight", gguf.F64, []int64{4, 2}, gguf.Bytes(make([]byte, 64)))
		}
	})
	logits, _ := c.rows(t, o, 7)
	c.compare(t, logits)
	o.Model = rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		if x.Name == "output.weight" {
			b.Add(x.Name, gguf.I32, x.Dims, floatData(v))
			return
		}
		keep(b, x, v)
	})
	_, err := engine.Open(context.Background(), o)
	checkError(t, err, []error{model.ErrTensor}, `"output.weight"`, "I32")
}

// A dense block with tensors of routed experts would shift the numbers of those behind it.
func TestExpertsWithoutRouter(t *testing.T) {
	c := loadGolden(t, "micro-deepseek2")
	o := c.options()
	o.Model = rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		keep(b, x, v)
		if strings.HasPrefix(x.Name, "blk.1.") && strings.HasSuffix(x.Name, "_exps.weight") {
			b.Add(strings.Replace(x.Name, "blk.1.", "blk.0.", 1), x.Type, x.Dims, floatData(v))
		}
	})
	_, err := engine.Open(context.Background(), o)
	checkError(t, err, []error{expert.ErrLayout}, "blocks [1 2] have routers, blocks [0 1 2]")
}

// A file without an output matrix uses the embedding's.
func TestTiedOutput(t *testing.T) {
	c := loadGolden(t, "micro-deepseek2")
	var embed []float32
	tied := rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		if x.Name == "token_embd.weight" {
			embed = v
		}
		if x.Name != "output.weight" {
			keep(b, x, v)
		}
	})
	copied := rebuilt(t, c.path(), same, func(b *gguf.Builder, x gguf.Tensor, v []float32) {
		if x.Name == "output.weight" {
			v = embed
		}
		keep(b, x, v)
	})
	o := c.options()
	o.Model = tied
	got := bits(t, o, c.Tokens, 0)
	o.Model = copied
	if want := bits(t, o, c.Tokens, 0); !slices.Equal(got, want) {
		t.Error("other logits than with the same matrix twice")
	}
}
