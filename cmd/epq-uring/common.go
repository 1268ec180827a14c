package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/iotest"
	"github.com/epq-uring/epq-uring/pager"
)

// modelFlags are the flags of every command that loads a model.
func modelFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`, any shard, or the folder of a set (default: the embedded demo model)", Sources: env("model", "LLAMA_ARG_MODEL")},
		&cli.StringFlag{Name: "ram", Value: "auto", Usage: "memory the process may use: `SIZE` (8GiB), auto, or min (the smallest that works)", Sources: env("ram")},
		&cli.IntFlag{Name: "ram-budget-mb", HideDefault: true, Usage: "the same in MiB", Sources: env("ram-budget-mb", "RAM_BUDGET_MB")},
		&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, DefaultText: "the CPU quota", Usage: "compute threads", Sources: env("threads", "LLAMA_ARG_THREADS")},
		&cli.IntFlag{Name: "ctx-size", Aliases: []string{"c"}, Value: -1, DefaultText: "the smaller of 8192 and the model's", Usage: "context in tokens; 0: the largest that fits", Sources: env("ctx-size", "LLAMA_ARG_CTX_SIZE")},
		&cli.IntFlag{Name: "batch-size", Aliases: []string{"b"}, Value: 2048, Usage: "prompt tokens between two looks at other requests", Sources: env("batch-size", "LLAMA_ARG_BATCH")},
		&cli.IntFlag{Name: "ubatch-size", Aliases: []string{"ub"}, Value: 512, Usage: "tokens of one forward pass", Sources: env("ubatch-size", "LLAMA_ARG_UBATCH")},
		&cli.StringFlag{Name: "cache-type-k", Aliases: []string{"ctk"}, Value: "f16", Usage: "type of the KV cache's keys: f16, f32, q8_0", Sources: env("cache-type-k", "LLAMA_ARG_CACHE_TYPE_K")},
		&cli.StringFlag{Name: "cache-type-v", Aliases: []string{"ctv"}, Value: "f16", Usage: "type of the KV cache's values: f16, f32, q8_0", Sources: env("cache-type-v", "LLAMA_ARG_CACHE_TYPE_V")},
		&cli.StringFlag{Name: "backend", Value: "auto", Usage: "I/O path: auto, ring, pread, null (reads nothing: for measuring)", Sources: env("backend")},
		&cli.StringFlag{Name: "kernels", Usage: "kernel set: scalar, avx2, avxvnni, avx512, neon (default: the best)", Sources: env("kernels")},
		pluginFlag(),
		&cli.StringFlag{Name: "numa", Usage: "on machines with several memory nodes: interleave (default), bind or off (or llama.cpp's words for them: distribute, isolate, numactl)", Sources: env("numa", "LLAMA_ARG_NUMA")},
		&cli.StringFlag{Name: "evict-policy", Usage: "which expert makes room: " + strings.Join(pager.Policies(), ", ") + " (default: " + pager.DefaultPolicy + ")", Sources: env("evict-policy", "SDQ_EVICT_POLICY")},
		&cli.IntFlag{Name: "evict-stale-tokens", DefaultText: strconv.Itoa(pager.DefaultStaleTokens), Usage: "least_stale: tokens an expert must have rested", Sources: env("evict-stale-tokens", "SDQ_EVICT_STALE_TOKENS")},
		&cli.StringFlag{Name: "prefetch", Value: "auto", Usage: "experts read before they are asked for, `MODE`: auto (where it pays), on, off, router, history, hybrid, or oracle=FILE (a trace of the same run)", Sources: env("prefetch")},
		&cli.StringFlag{Name: "resident", Value: "auto", Usage: "weights outside the experts: mmap (pages of the file), lock (the same, never dropped), copy (anonymous, huge pages), auto (copy where that costs no expert's place)", Sources: env("resident")},
		&cli.BoolFlag{Name: "no-direct", Usage: "read experts through the page cache, for comparing (default: O_DIRECT)", Sources: envSwitch("no-direct")},
		&cli.BoolFlag{Name: "no-warm", Usage: "do not read what was hot in earlier runs first, and keep nothing for later ones", Sources: envSwitch("no-warm")},
		&cli.BoolFlag{Name: "verify", Usage: "compare every read with the checksums that epq-uring verify took down", Sources: envSwitch("verify")},
		sumsFlag(),
		&cli.StringFlag{Name: "trace", Usage: "record which experts are used to `FILE`, for simulate (plan: read it, and expect its hit rate)", Sources: env("trace")},
		jsonFlag(),
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "say more on stderr", Sources: envSwitch("verbose")},
	}, append(draftFlags(), absentFlags()...)...)
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "one JSON object on stdout", Sources: envSwitch("json")}
}

func pluginFlag() cli.Flag {
	return &cli.StringFlag{Name: "kernel-plugin", Usage: "shared object `FILE` with a kernel set, checked before use (docs/kernel-plugins.md)", Sources: env("kernel-plugin")}
}

// options reads modelFlags. Without a model the demo is unpacked.
func options(c *cli.Command) (engine.Options, error) {
	if err := absent(c); err != nil {
		return engine.Options{}, err
	}
	o := engine.Options{
		Model: c.String("model"), RAM: ramOf(c), Threads: c.Int("threads"), Batch: c.Int("batch-size"), UBatch: c.Int("ubatch-size"),
		CacheTypeK: c.String("cache-type-k"), CacheTypeV: c.String("cache-type-v"), Backend: c.String("backend"), Kernels: c.String("kernels"), KernelPlugin: c.String("kernel-plugin"), NUMA: c.String("numa"), Buffered: c.Bool("no-direct"),
		EvictPolicy: c.String("evict-policy"), StaleTokens: c.Int("evict-stale-tokens"), Verify: c.Bool("verify"), Sums: c.String("sums"), Resident: c.String("resident"),
	}
	if !slices.Contains([]string{"auto", "ring", "pread", "null"}, o.Backend) {
		return o, fmt.Errorf("--backend is %q, allowed are auto, ring, pread and null: %w", o.Backend, errUsage)
	}
	if p := o.EvictPolicy; p != "" && !slices.Contains(pager.Policies(), p) {
		return o, fmt.Errorf("--evict-policy is %q, allowed are %s: %w", p, strings.Join(pager.Policies(), ", "), errUsage)
	}
	if err := prefetchOption(c, &o); err != nil {
		return o, err
	}
	if err := draftOptions(c, &o); err != nil {
		return o, err
	}
	switch n := c.Int("ctx-size"); {
	case n == 0:
		o.Context = -1
	case n > 0:
		o.Context = n
	case c.IsSet("ctx-size"):
		return o, fmt.Errorf("-c is %d, a number of tokens or 0 is needed: %w", n, errUsage)
	}
	if mb := c.Int("ram-budget-mb"); mb < 0 {
		return o, fmt.Errorf("--ram-budget-mb is %d, a number of MiB is needed: %w", mb, errUsage)
	}
	if o.RAM != "auto" && o.RAM != "min" {
		if _, err := engine.ParseSize(o.RAM); err != nil {
			return o, fmt.Errorf("--ram: %w", err)
		}
	}
	if o.Model == "" {
		var err error
		if o.Model, err = unpackDemo(); err != nil {
			return o, err
		}
	}
	o.InFlight = tunedFor(o.Model)
	return o, nil
}

// ramOf is the budget as --ram or --ram-budget-mb give it, the former where both do in the same way.
func ramOf(c *cli.Command) string {
	if mb := c.Int("ram-budget-mb"); mb > 0 && !typed(c, "ram") && (typed(c, "ram-budget-mb") || !c.IsSet("ram")) {
		return fmt.Sprintf("%dMiB", mb)
	}
	return c.String("ram")
}

// tunedFor is how many bytes in flight iotest --tune found for the model's disk, 0 if it did not or something changed since.
func tunedFor(model string) int {
	dir, err := cacheDir()
	if err != nil {
		return 0
	}
	t, err := iotest.Tuned(dir, model)
	if err != nil {
		return 0
	}
	return int(t.InFlight)
}

// warmStart lets the engine keep which experts are hot in the user's cache directory, unless --no-warm is given. Without
// such a directory it starts cold, as the first time.
func warmStart(c *cli.Command, o *engine.Options) {
	if dir, err := cacheDir(); err == nil && !c.Bool("no-warm") {
		o.WarmDir = dir
	}
}

// open loads the model and says on stderr how.
func open(ctx context.Context, c *cli.Command, o engine.Options) (*engine.Engine, error) {
	if path := c.String("trace"); path != "" {
		traceTo(&o, path)
	}
	e, err := engine.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	w := c.Root().ErrWriter
	fmt.Fprintln(w, e.FirstLine())
	if s := e.LostLine(); s != "" {
		fmt.Fprintln(w, s)
	}
	for _, s := range e.Warnings() {
		fmt.Fprintln(w, "warning:", s)
	}
	sayIgnored(c)
	return e, nil
}

// closing ends the engine and tells what that finds: a trace that could not be written.
func closing(e *engine.Engine, err *error) {
	if e := e.Close(); *err == nil {
		*err = e
	}
}

// readText returns the one text that is given by flag, in the file named by fileFlag or as arguments; else that of the
// environment, in the same order, or of stdin.
func readText(c *cli.Command, flag, fileFlag string, args []string) (string, error) {
	byFlag, byFile, ways := typed(c, flag), typed(c, fileFlag), 0
	for _, is := range []bool{byFlag, byFile, len(args) > 0} {
		if is {
			ways++
		}
	}
	switch {
	case ways > 1:
		return "", fmt.Errorf("--%s, --%s and an argument all give the text: use one of them: %w", flag, fileFlag, errUsage)
	case byFlag, ways == 0 && c.IsSet(flag):
		return c.String(flag), nil
	case byFile, ways == 0 && c.IsSet(fileFlag):
		b, err := os.ReadFile(c.String(fileFlag))
		if err != nil {
			return "", fmt.Errorf("--%s: %w", fileFlag, err)
		}
		return string(b), nil
	case len(args) > 0:
		return strings.Join(args, " "), nil
	}
	b, err := io.ReadAll(c.Root().Reader)
	return string(b), err
}

// printJSON writes one object to stdout.
func printJSON(c *cli.Command, v any) error {
	return encode(c.Root().Writer, v)
}

// encode writes one JSON object.
func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// writeFile makes a file of what write writes.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// parseIDs reads token ids with commas between.
func parseIDs(s string) ([]int32, error) {
	var ids []int32
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		n, err := strconv.ParseInt(f, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id: %w", f, errUsage)
		}
		ids = append(ids, int32(n))
	}
	return ids, nil
}

// cacheDir is the project's folder in the user's cache directory.
func cacheDir() (string, error) {
	d, err := os.UserCacheDir()
	if err != nil {
		d = os.TempDir()
	}
	d = filepath.Join(d, "epq-uring")
	return d, os.MkdirAll(d, 0o755)
}
