package bench

import (
	"math"
	"time"
)

// Llama is one row of llama-bench's JSON, with its names and meanings: a test reads n_prompt tokens or makes n_gen of
// them, the latter after n_depth others.
type Llama struct {
	BuildCommit string    `json:"build_commit"`
	CPUInfo     string    `json:"cpu_info"`
	Backends    string    `json:"backends"`
	ModelFile   string    `json:"model_filename"`
	ModelType   string    `json:"model_type"`
	ModelSize   int64     `json:"model_size"`
	Threads     int       `json:"n_threads"`
	Prompt      int       `json:"n_prompt"`
	Gen         int       `json:"n_gen"`
	Depth       int       `json:"n_depth"`
	Time        time.Time `json:"test_time"`
	MeanNS      int64     `json:"avg_ns"`
	DevNS       int64     `json:"stddev_ns"`
	MeanTS      float64   `json:"avg_ts"`
	DevTS       float64   `json:"stddev_ts"`
	SamplesNS   []int64   `json:"samples_ns"`
	SamplesTS   []float64 `json:"samples_ts"`

	Prefetch string `json:"prefetch"` // ours: what tells our cells apart
	Policy   string `json:"policy"`
	RAM      int64  `json:"ram_bytes"`
}

// llamaRows turns cells into llama-bench's rows: one for the prompt and one for the decode of each.
func (r *Report) llamaRows() []Llama {
	rows := []Llama{}
	for _, c := range r.Cells {
		good := ran(c.Samples)
		if len(good) == 0 {
			continue
		}
		base := Llama{BuildCommit: r.Version, CPUInfo: r.Machine.CPU, Backends: "CPU", ModelFile: r.Model.File, ModelType: r.Model.Architecture, ModelSize: r.Model.Bytes,
			Threads: c.Threads, Time: r.Started, Prefetch: c.Prefetch, Policy: c.Policy, RAM: c.RAMBytes}
		prompt, decode := base, base
		prompt.Prompt = c.PromptTokens
		prompt.fill(column(good, promptRate), c.PromptTokens)
		rows = append(rows, prompt)
		if made := len(c.OutputTokens); made > 1 { // the first token is the prompt's
			decode.Gen, decode.Depth = made-1, c.PromptTokens
			decode.fill(column(good, decodeRate), made-1)
			rows = append(rows, decode)
		}
	}
	return rows
}

// fill adds the figures of rates, in tokens per second, each of so many tokens.
func (l *Llama) fill(rates []float64, tokens int) {
	var times []float64
	for _, r := range rates {
		ns := 0.0
		if r > 0 {
			ns = float64(tokens) / r * 1e9
		}
		times = append(times, ns)
		l.SamplesNS = append(l.SamplesNS, int64(ns))
	}
	l.SamplesTS = rates
	mean, v := meanVariance(rates)
	l.MeanTS, l.DevTS = mean, math.Sqrt(v)
	mean, v = meanVariance(times)
	l.MeanNS, l.DevNS = int64(mean), int64(math.Sqrt(v))
}
