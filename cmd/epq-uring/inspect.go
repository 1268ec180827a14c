package main

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/expert"
	"github.com/epq-uring/epq-uring/gguf"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Usage:       "metadata, tensors and experts of a model, from its headers",
		ArgsUsage:   "FILE|DIR",
		Description: "epq-uring inspect model-00001-of-00002.gguf --json",
		Flags:       []cli.Flag{jsonFlag()},
		Action:      inspect,
	}
}

type tensorInfo struct {
	Name   string  `json:"name"`
	Type   string  `json:"type"`
	Dims   []int64 `json:"dims"`
	Offset int64   `json:"offset"`
	Size   int64   `json:"size"`
	Shard  int     `json:"shard"`
}

type classInfo struct {
	Bytes int64 `json:"bytes"`
	Count int   `json:"count"`
}

type expertsInfo struct {
	Layers   int         `json:"layers"`
	PerLayer int         `json:"per_layer"`
	Used     int         `json:"used"`
	Classes  []classInfo `json:"classes"`
}

type fileInfo struct {
	Metadata map[string]gguf.Value `json:"metadata"`
	Tensors  []tensorInfo          `json:"tensors"`
	Experts  expertsInfo           `json:"experts"`
	Resident int64                 `json:"resident_bytes"`
	Paged    int64                 `json:"paged_bytes"`
}

func inspect(_ context.Context, c *cli.Command) error {
	if c.Args().Len() != 1 {
		return fmt.Errorf("inspect takes one file or folder, %d are given: %w", c.Args().Len(), errUsage)
	}
	f, err := gguf.Open(c.Args().First())
	if err != nil {
		return err
	}
	for _, w := range f.Warnings {
		fmt.Fprintln(c.Root().ErrWriter, w)
	}
	info := describe(f)
	if c.Bool("json") {
		return printJSON(c, info)
	}
	return info.print(c.Root().Writer, f)
}

func describe(f *gguf.File) fileInfo {
	info := fileInfo{Metadata: map[string]gguf.Value{}, Tensors: []tensorInfo{}, Experts: expertsInfo{Classes: []classInfo{}}}
	for _, k := range f.Keys() {
		info.Metadata[k], _ = f.Value(k)
	}
	total := int64(0)
	for _, t := range f.Tensors() {
		dims := t.Dims
		if dims == nil {
			dims = []int64{}
		}
		info.Tensors = append(info.Tensors, tensorInfo{t.Name, t.Type.String(), dims, t.Offset, t.Size, t.Shard})
		total += t.Size
	}
	// A file without routed experts, or with impossible ones, can still be looked at.
	if cat, err := expert.NewCatalog(f, ones(len(f.Shards))); err == nil {
		info.Experts = describeExperts(cat)
	}
	for _, k := range info.Experts.Classes {
		info.Paged += k.Bytes * int64(k.Count)
	}
	info.Resident = total - info.Paged
	return info
}

func describeExperts(cat *expert.Catalog) expertsInfo {
	e := expertsInfo{Layers: len(cat.Layers), Classes: []classInfo{}}
	counts := map[int64]int{}
	for i, l := range cat.Layers {
		e.PerLayer, e.Used = max(e.PerLayer, l.Experts), max(e.Used, l.Used)
		bytes := int64(0)
		for _, p := range cat.Pieces(expert.Key{Layer: int32(i)}) {
			bytes += p.Size
		}
		counts[bytes] += l.Experts
	}
	for b, n := range counts {
		e.Classes = append(e.Classes, classInfo{b, n})
	}
	sort.Slice(e.Classes, func(i, j int) bool { return e.Classes[i].Bytes < e.Classes[j].Bytes })
	return e
}

// ones are alignments that widen nothing.
func ones(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = 1
	}
	return v
}

func (info fileInfo) print(w io.Writer, f *gguf.File) error {
	var b strings.Builder
	for _, k := range f.Keys() {
		s := strings.ReplaceAll(info.Metadata[k].String(), "\n", "\\n")
		if r := []rune(s); len(r) > 100 {
			s = string(r[:100]) + " .."
		}
		fmt.Fprintf(&b, "%s = %s\n", k, s)
	}
	for _, t := range info.Tensors {
		fmt.Fprintf(&b, "%-40s %-7s %-24s shard %d offset %d size %d\n", t.Name, t.Type, fmt.Sprint(t.Dims), t.Shard, t.Offset, t.Size)
	}
	fmt.Fprintf(&b, "experts: %d layers of %d, %d used per token", info.Experts.Layers, info.Experts.PerLayer, info.Experts.Used)
	for _, k := range info.Experts.Classes {
		fmt.Fprintf(&b, "; %d of %s", k.Count, expert.FormatBytes(k.Bytes))
	}
	fmt.Fprintf(&b, "\nresident %s, paged %s\n", expert.FormatBytes(info.Resident), expert.FormatBytes(info.Paged))
	_, err := io.WriteString(w, b.String())
	return err
}
