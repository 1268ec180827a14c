package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
)

func logitsCommand() *cli.Command {
	return &cli.Command{
		Name:        "logits",
		Usage:       "logits and routes of a token sequence, for comparing engines",
		Description: "epq-uring logits -m model.gguf --tokens 1,2,3 --all -o out.f32 --routes routes.json",
		Flags: append(modelFlags(),
			&cli.StringFlag{Name: "tokens", Usage: "token ids with commas (`CSV`)", Required: true},
			&cli.BoolFlag{Name: "all", Usage: "a row for every token, not only the last"},
			&cli.IntFlag{Name: "batch", DefaultText: "the ubatch", Usage: "tokens per forward pass"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FILE` for float32 rows"},
			&cli.StringFlag{Name: "routes", Usage: "`FILE` for the experts the model chose: {\"routes\":[layer][token][k]}"},
			&cli.StringFlag{Name: "force-routes", Usage: "`FILE` of that form whose experts are used instead of the chosen ones"},
		),
		Action: logits,
	}
}

// routes is the content of a routes file.
type routes struct {
	Routes [][][]int32 `json:"routes"`
}

func logits(ctx context.Context, c *cli.Command) (err error) {
	ids, err := parseIDs(c.String("tokens"))
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return fmt.Errorf("--tokens is %q, at least one token id is needed: %w", c.String("tokens"), errUsage)
	}
	o, err := options(c)
	if err != nil {
		return err
	}
	batch := c.Int("batch")
	if batch < 0 {
		return fmt.Errorf("--batch is %d, a number of tokens is needed: %w", batch, errUsage)
	}
	o.UBatch = max(o.UBatch, batch)
	o.Batch = max(o.Batch, batch)
	o.NoTokenizer = true
	forced, err := readRoutes(c.String("force-routes"))
	if err != nil {
		return err
	}
	e, err := open(ctx, c, o)
	if err != nil {
		return err
	}
	defer closing(e, &err)
	own, err := traceRoutes(e, c, forced, len(ids))
	if err != nil {
		return err
	}
	rows, err := writeRows(ctx, c, e, ids)
	if err != nil {
		return err
	}
	if path := c.String("routes"); path != "" {
		if err := writeFile(path, func(w io.Writer) error { return encode(w, own) }); err != nil {
			return fmt.Errorf("--routes: %w", err)
		}
	}
	return reportLogits(e, c, rows)
}

// writeRows sends the logits of a sequence where --output says, and counts the rows.
func writeRows(ctx context.Context, c *cli.Command, e *engine.Engine, ids []int32) (rows int, err error) {
	w, done, err := output(c.String("output"))
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 4*e.Vocab())
	err = e.Rows(ctx, ids, c.Int("batch"), func(pos int, row []float32) error {
		if !c.Bool("all") && pos != len(ids)-1 {
			return nil
		}
		rows++
		for i, v := range row {
			binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
		}
		_, err := w.Write(buf)
		return err
	})
	if e := done(); err == nil {
		err = e
	}
	return rows, err
}

// readRoutes reads what --force-routes names; nil without a name.
func readRoutes(path string) (*routes, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--force-routes: %w", err)
	}
	r := &routes{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("--force-routes: %s: %w", path, err)
	}
	return r, nil
}

// traceRoutes records the model's own choice and uses the forced one, if there is one, in its place.
func traceRoutes(e *engine.Engine, c *cli.Command, forced *routes, tokens int) (*routes, error) {
	own := &routes{Routes: make([][][]int32, e.MoELayers())}
	seen := func(layer, _ int, ids []int32) {
		own.Routes[layer] = append(own.Routes[layer], append([]int32(nil), ids...))
	}
	var force func(layer, token int) []int32
	if forced != nil {
		if err := forced.check(e, tokens); err != nil {
			return nil, fmt.Errorf("--force-routes: %s: %w", c.String("force-routes"), err)
		}
		force = func(layer, _ int) []int32 { return forced.Routes[layer][len(own.Routes[layer])-1] }
	}
	if c.String("routes") == "" && force == nil {
		return own, nil
	}
	return own, e.Observe(seen, force)
}

// check holds forced routes against the model's shape.
func (r *routes) check(e *engine.Engine, tokens int) error {
	if len(r.Routes) != e.MoELayers() {
		return fmt.Errorf("routes of %d layers, the model has %d", len(r.Routes), e.MoELayers())
	}
	for l, layer := range r.Routes {
		if len(layer) < tokens {
			return fmt.Errorf("layer %d: routes of %d tokens, %d are needed", l, len(layer), tokens)
		}
		for t, ids := range layer {
			if len(ids) != e.Used() {
				return fmt.Errorf("layer %d, token %d: %d experts, the model uses %d", l, t, len(ids), e.Used())
			}
			for _, id := range ids {
				if id < 0 || int(id) >= e.Experts() {
					return fmt.Errorf("layer %d, token %d: expert %d of %d", l, t, id, e.Experts())
				}
			}
		}
	}
	return nil
}

// output opens a file for rows; without a name they are dropped.
func output(path string) (io.Writer, func() error, error) {
	if path == "" {
		return io.Discard, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	return w, func() error {
		err := w.Flush()
		if e := f.Close(); err == nil {
			err = e
		}
		return err
	}, nil
}

func reportLogits(e *engine.Engine, c *cli.Command, rows int) error {
	s, err := e.Stats()
	if err != nil || !c.Bool("json") {
		return err
	}
	slots := 0
	for _, k := range e.Plan().Classes {
		slots += k.Slots
	}
	return printJSON(c, map[string]any{
		"rows": rows, "n_vocab": e.Vocab(), "evictions": s.Pager.Evictions, "arena_slots": slots, "backend": e.Backend(), "kernels": e.KernelSet(),
	})
}
