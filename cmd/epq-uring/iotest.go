package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/iotest"
	"github.com/epq-uring/epq-uring/uring"
)

func iotestCommand() *cli.Command {
	return &cli.Command{
		Name:      "iotest",
		Usage:     "how fast this disk is for experts, in fio's terms",
		ArgsUsage: "[FILE|DIR]",
		Description: "epq-uring iotest model.gguf --bs 128k,512k,2m --iodepth 1,2,4,8,16 --html disk.html\n" +
			"epq-uring iotest model.gguf --hugepages 0,1 --backend all    what huge pages and io_uring gain\n" +
			"epq-uring iotest model.gguf --tune                           find and keep how many bytes in flight this disk wants\n" +
			"epq-uring iotest --rw expert -m model.gguf --ram 8GiB --trace routes.trace    how fast that model would decode\n" +
			"epq-uring iotest /mnt/ssd --create --size 4g --verify        write a scratch file, check every block read, remove it\n" +
			"Without --create nothing is written. A folder means its largest file. Several jobs take turns.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "rw", Value: "randread", Usage: "read (in order), randread, or expert: whole experts of a model, read by the pager, and what the model decodes at"},
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE` to read; expert: any shard, or the folder of a set (default: the embedded demo model)", Sources: env("model", "LLAMA_ARG_MODEL")},
			&cli.StringFlag{Name: "trace", Usage: "expert: replay the experts that run --trace `FILE` took down, in the arena of --ram", Sources: env("trace")},
			&cli.StringFlag{Name: "ram", Value: "auto", Usage: "expert: memory of the run that is predicted (`SIZE`)", Sources: env("ram")},
			&cli.IntFlag{Name: "threads", Aliases: []string{"t"}, DefaultText: "the CPU quota", Usage: "expert: compute threads of that run", Sources: env("threads", "LLAMA_ARG_THREADS")},
			&cli.IntFlag{Name: "ctx-size", Aliases: []string{"c"}, DefaultText: "as run", Usage: "expert: context of that run", Sources: env("ctx-size", "LLAMA_ARG_CTX_SIZE")},
			&cli.StringFlag{Name: "bs", Usage: "bytes of a read, with commas (`LIST`) (default: 512k)"},
			&cli.StringFlag{Name: "iodepth", Usage: "reads in flight, with commas (`LIST`) (default: 8); expert: experts missing at once"},
			&cli.StringFlag{Name: "backend", Value: "auto", Usage: "auto, ring, pread, null (reads nothing), with commas, or all", Sources: env("backend")},
			&cli.StringFlag{Name: "direct", Usage: "1: O_DIRECT or an error, 0: through the page cache (default: O_DIRECT where the file system has it)"},
			&cli.StringFlag{Name: "fixedbufs", Value: "1", Usage: "register the memory: 0 or 1"},
			&cli.StringFlag{Name: "registerfiles", Value: "1", Usage: "register the file: 0 or 1"},
			&cli.StringFlag{Name: "hugepages", Value: "1", Usage: "memory on huge pages: 0, 1 or 0,1"},
			&cli.StringFlag{Name: "sqpoll", Value: "0", Usage: "let the kernel poll for requests: 0 or 1"},
			&cli.IntFlag{Name: "numjobs", Value: 1, Usage: "threads that do the same at once"},
			&cli.StringFlag{Name: "runtime", Value: "2", Usage: "seconds of each job"},
			&cli.StringFlag{Name: "size", Usage: "bytes of the file to use, or with --create to make (`SIZE`) (default: all; 4g)"},
			&cli.BoolFlag{Name: "create", Usage: "write a file of our own first; it is removed after"},
			&cli.BoolFlag{Name: "keep", Usage: "leave that file"},
			&cli.BoolFlag{Name: "verify", Usage: "check offset, generation and checksum of every block read of such a file"},
			&cli.BoolFlag{Name: "tune", Usage: "keep how many bytes in flight this disk wants, for later runs on it"},
			&cli.StringFlag{Name: "svg", Usage: "chart of bandwidth and latency to `FILE`"},
			&cli.StringFlag{Name: "html", Usage: "table, verdict and chart to `FILE`"},
			&cli.StringFlag{Name: "output-format", Value: "normal", Usage: "normal or json (fio's names)"},
			jsonFlag(),
		},
		Action: ioTest,
	}
}

func ioTest(ctx context.Context, c *cli.Command) error {
	json, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if c.String("rw") == "expert" {
		return expertTest(ctx, c, json)
	}
	o, err := ioOptions(c)
	if err != nil {
		return err
	}
	progress, done := phases(c)
	r, err := iotest.Run(ctx, o, progress)
	done(err)
	if r == nil {
		return err
	}
	if c.Bool("tune") && err == nil && !r.Interrupted {
		err = keepTuning(c, r)
	}
	return errors.Join(err, showReport(c, r, json))
}

// expertTest reads whole experts of a model.
func expertTest(ctx context.Context, c *cli.Command, json bool) error {
	for _, name := range []string{"bs", "direct", "numjobs", "size", "create", "keep", "verify", "tune", "svg", "html", "fixedbufs", "registerfiles", "hugepages", "sqpoll"} {
		if c.IsSet(name) {
			return fmt.Errorf("--rw expert reads a model as run does: --%s is for --rw read and randread: %w", name, errUsage)
		}
	}
	var args []string
	if args = c.Args().Slice(); len(args) > 1 || len(args) == 1 && typed(c, "model") {
		return fmt.Errorf("--rw expert reads one model, named with -m or as the only argument: %w", errUsage)
	}
	opt := iotest.ExpertOptions{Engine: engine.Options{
		Model: c.String("model"), RAM: c.String("ram"), Threads: c.Int("threads"), Context: max(0, c.Int("ctx-size")), Backend: c.String("backend"), NoTokenizer: true,
	}}
	if len(args) == 1 {
		opt.Engine.Model = args[0]
	}
	var err error
	if opt.Engine.Model == "" {
		if opt.Engine.Model, err = unpackDemo(); err != nil {
			return err
		}
	}
	opt.Engine.InFlight = tunedFor(opt.Engine.Model)
	if opt.Runtime, err = seconds(c.String("runtime")); err != nil {
		return err
	}
	if opt.Bursts, err = depths(c.String("iodepth")); err != nil {
		return err
	}
	if path := c.String("trace"); path != "" {
		if opt.Batches, err = batchesOf(path, opt.Engine); err != nil {
			return err
		}
	}
	progress, done := phases(c)
	r, err := iotest.RunExperts(ctx, opt, progress)
	done(err)
	if err != nil {
		return err
	}
	return showReport(c, r, json)
}

// batchesOf reads a trace and refuses one of another model.
func batchesOf(path string, o engine.Options) ([]iotest.Batch, error) {
	t, err := readTrace(path)
	if err != nil {
		return nil, err
	}
	p, err := engine.Plan(o)
	if err != nil {
		return nil, err
	}
	if err := planned(t, p, path); err != nil {
		return nil, err
	}
	var list []iotest.Batch
	for tokens, uses := range t.Batches() {
		b := iotest.Batch{Tokens: tokens}
		for layer, ids := range uses {
			b.Uses = append(b.Uses, iotest.Use{Layer: layer, IDs: ids})
		}
		list = append(list, b)
	}
	return list, nil
}

// keepTuning stores what the sweep found and says where.
func keepTuning(c *cli.Command, r *iotest.Report) error {
	dir, err := cacheDir()
	if err != nil {
		return fmt.Errorf("--tune: %w", err)
	}
	t, file, err := iotest.Tune(dir, r)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Root().ErrWriter, "kept in %s for %s: %d bytes in flight, %.2f GB/s\n", file, t.Disk, t.InFlight, t.Bandwidth/1e9)
	return nil
}

func wantsJSON(c *cli.Command) (bool, error) {
	switch f := c.String("output-format"); f {
	case "normal":
		return c.Bool("json"), nil
	case "json":
		return true, nil
	default:
		return false, fmt.Errorf("--output-format is %q, allowed are normal and json: %w", f, errUsage)
	}
}

// showReport prints what was measured and writes the charts.
func showReport(c *cli.Command, r *iotest.Report, json bool) error {
	w := c.Root().ErrWriter
	for _, l := range r.Lost {
		fmt.Fprintf(w, "without %s: %s; %s\n", l.What, l.Reason, l.Remedy)
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted: what follows is from a part of the time")
	}
	for _, f := range []struct {
		flag  string
		write func(io.Writer) error
	}{{"svg", r.WriteSVG}, {"html", r.WriteHTML}} {
		if path := c.String(f.flag); path != "" {
			if err := writeFile(path, f.write); err != nil {
				return fmt.Errorf("--%s: %w", f.flag, err)
			}
		}
	}
	if json {
		return printJSON(c, r)
	}
	return r.WriteText(c.Root().Writer)
}

// phases shows progress of phases that follow each other, on a terminal.
func phases(c *cli.Command) (progress iotest.Progress, done func(error)) {
	var b *bar
	return func(phase string, done, total int64) {
			if b == nil || b.what != phase {
				if b != nil {
					b.done(nil)
				}
				b = newBar(c, phase)
				b.bytes = phase == "writing" // in the others steps and times are counted
			}
			b.set(done, total)
		}, func(err error) {
			if b != nil {
				b.done(err)
			}
		}
}

func ioOptions(c *cli.Command) (o iotest.Options, err error) {
	if c.Args().Len() > 1 {
		return o, fmt.Errorf("%d files or folders, want one: %w", c.Args().Len(), errUsage)
	}
	if typed(c, "trace") {
		return o, fmt.Errorf("--trace replays experts: give --rw expert too: %w", errUsage)
	}
	o = iotest.Options{
		Path: cmp.Or(c.Args().First(), c.String("model"), "."), RW: c.String("rw"), NumJobs: c.Int("numjobs"),
		Create: c.Bool("create"), Keep: c.Bool("keep"), Verify: c.Bool("verify"),
	}
	if o.Keep && !o.Create {
		return o, fmt.Errorf("--keep leaves what --create makes: give both: %w", errUsage)
	}
	if o.Runtime, err = seconds(c.String("runtime")); err != nil {
		return o, err
	}
	if s := c.String("size"); s != "" {
		if o.Size, err = engine.ParseSize(s); err != nil || o.Size == 0 {
			return o, fmt.Errorf("--size is %q, wanted is a size like 4g: %w", s, errUsage)
		}
	}
	for _, f := range []struct {
		name string
		to   *bool
	}{{"fixedbufs", &o.FixedBufs}, {"registerfiles", &o.RegisterFiles}, {"sqpoll", &o.SQPoll}} {
		list, err := bits(c, f.name)
		if err != nil || len(list) != 1 {
			return o, errors.Join(err, fmt.Errorf("--%s is %q, allowed is 0 or 1: %w", f.name, c.String(f.name), errUsage))
		}
		*f.to = list[0]
	}
	if o.HugePages, err = bits(c, "hugepages"); err != nil {
		return o, err
	}
	if o.Direct, err = directMode(c); err != nil {
		return o, err
	}
	o.Backends = backends(c.String("backend"), o.Verify)
	return o, sweepLists(c, &o)
}

// sweepLists reads --bs and --iodepth. Tuning without them sweeps the depth.
func sweepLists(c *cli.Command, o *iotest.Options) error {
	for _, s := range split(c.String("bs")) {
		n, err := engine.ParseSize(s)
		if err != nil {
			return fmt.Errorf("--bs is %q, wanted are sizes like 128k,1m: %w", c.String("bs"), errUsage)
		}
		o.BlockSizes = append(o.BlockSizes, n)
	}
	var err error
	if o.Depths, err = depths(c.String("iodepth")); err != nil {
		return err
	}
	if c.Bool("tune") && !c.IsSet("bs") && !c.IsSet("iodepth") {
		o.Depths = iotest.SweepDepths()
	}
	return nil
}

func depths(list string) (ns []int, err error) {
	for _, s := range split(list) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("--iodepth is %q, wanted are numbers like 1,2,4: %w", list, errUsage)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// backends reads a list; all means those that read, and the null device where nothing is verified.
func backends(list string, verify bool) []string {
	switch {
	case list == "all" && verify:
		return []string{"auto", "pread"}
	case list == "all":
		return []string{"auto", "pread", "null"}
	}
	return split(list)
}

func directMode(c *cli.Command) (uring.DirectMode, error) {
	switch s := c.String("direct"); s {
	case "":
		return uring.DirectPreferred, nil
	case "0":
		return uring.DirectOff, nil
	case "1":
		return uring.DirectRequired, nil
	default:
		return 0, fmt.Errorf("--direct is %q, allowed are 0 and 1: %w", s, errUsage)
	}
}

// bits reads a list of 0 and 1.
func bits(c *cli.Command, name string) (list []bool, err error) {
	for _, s := range split(c.String(name)) {
		if s != "0" && s != "1" || slices.Contains(list, s == "1") {
			return nil, fmt.Errorf("--%s is %q, allowed are 0 and 1: %w", name, c.String(name), errUsage)
		}
		list = append(list, s == "1")
	}
	return list, nil
}

// seconds reads a time as fio does: seconds, or with a unit.
func seconds(s string) (time.Duration, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && v > 0 && v < 1e6 {
		return time.Duration(v * float64(time.Second)), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("--runtime is %q, wanted is a number of seconds: %w", s, errUsage)
}
