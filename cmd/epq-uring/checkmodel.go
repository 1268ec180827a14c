package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/urfave/cli/v3"

	"github.com/epq-uring/epq-uring/engine"
	"github.com/epq-uring/epq-uring/model"
)

// errCheck: a layer's results are not those of the reference.
var errCheck = errors.New("results differ from the float64 reference")

const (
	checkedLayers  = 6     // spread over the model
	minCorrelation = 0.999 // 8-bit activations alone leave more than 0.9995
)

type checkInfo struct {
	Layer       int       `json:"layer"` // block number
	Experts     []int32   `json:"experts"`
	SameRoute   bool      `json:"same_route"`
	MaxError    []float64 `json:"max_rel_error"` // of each expert's output, relative to its largest value
	Correlation []float64 `json:"correlation"`
	Whole       float64   `json:"layer_max_rel_error"`
	WholeCorr   float64   `json:"layer_correlation"`
	OK          bool      `json:"ok"`
}

// checkModel runs whole MoE layers of a model, routing and paging included, against the reference.
func checkModel(ctx context.Context, c *cli.Command) (err error) {
	e, err := open(ctx, c, engine.Options{
		Model: c.String("model"), RAM: "min", Context: 64, UBatch: 1, NoTokenizer: true, Resident: "mmap",
		Kernels: c.String("kernels"), KernelPlugin: c.String("kernel-plugin"),
	})
	if err != nil {
		return err
	}
	defer closing(e, &err)
	var infos []checkInfo
	bad := 0
	for _, l := range spread(e.MoELayers(), checkedLayers) {
		r, err := e.CheckLayer(ctx, l, 1)
		if err != nil {
			return err
		}
		i := checkInfoOf(r)
		if !i.OK {
			bad++
		}
		infos = append(infos, i)
	}
	if c.Bool("json") {
		err = printJSON(c, map[string]any{"kernels": e.KernelSet(), "layers": infos})
	} else {
		err = printChecks(c, e.KernelSet(), infos)
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d of %d layers of %s with kernels %s: %w; try --kernels scalar, and check the file's checksum", bad, len(infos), c.String("model"), e.KernelSet(), errCheck)
	}
	return err
}

// spread chooses at most n of count layers, the first and the last among them.
func spread(count, n int) []int {
	n = min(n, count)
	ls := make([]int, n)
	for i := range ls {
		ls[i] = i * (count - 1) / max(n-1, 1)
	}
	return ls
}

func checkInfoOf(r model.LayerCheck) checkInfo {
	i := checkInfo{Layer: r.Block, Experts: r.Experts, SameRoute: r.SameRoute, Whole: r.Whole.MaxError, WholeCorr: r.Whole.Correlation}
	i.OK = r.SameRoute && r.Whole.Correlation >= minCorrelation
	for _, o := range r.Outputs {
		i.MaxError, i.Correlation = append(i.MaxError, o.MaxError), append(i.Correlation, o.Correlation)
		i.OK = i.OK && o.Correlation >= minCorrelation
	}
	return i
}

func printChecks(c *cli.Command, set string, infos []checkInfo) error {
	w := tabwriter.NewWriter(c.Root().Writer, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "kernels %s against float64 on the same weights; errors relative to the largest value\n", set)
	fmt.Fprintln(w, "layer\troute\texperts: worst error\tlowest correlation\tlayer: error\tcorrelation\t")
	for _, i := range infos {
		route, state := "same", "ok"
		if !i.SameRoute {
			route = "DIFFERENT"
		}
		if !i.OK {
			state = "WRONG"
		}
		worst, lowest := 0.0, 1.0
		for k := range i.MaxError {
			worst, lowest = max(worst, i.MaxError[k]), min(lowest, i.Correlation[k])
		}
		fmt.Fprintf(w, "%d\t%s\t%.2e\t%.6f\t%.2e\t%.6f\t%s\n", i.Layer, route, worst, lowest, i.Whole, i.WholeCorr, state)
	}
	return w.Flush()
}
