// Package synth makes GGUF models with random weights: the tensors, types and vocabulary of real architectures in any
// size, for tests and measurements where the words do not matter. Hidden states stay of order 1 and logits finite.
package synth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/epq-uring/epq-uring/gguf"
)

// Kinds of errors, for errors.Is; all others come from writing.
var (
	ErrPreset = errors.New("unknown preset")
	ErrOption = errors.New("option out of range")
)

// Options change a preset; a zero keeps what the preset says.
type Options struct {
	Layers, Experts, Used int    // Used: experts per token
	Shards                int    // files, of about equal size
	Seed                  uint64 // the same seed gives the same bytes
	// Skew makes the use of experts uneven: the router's row of expert e is multiplied by min(8, exp(Skew max(0, z - 1.25)))
	// with z normal, so that one expert in nine is chosen much more often than the others. 0 is even, 1.5 is like real
	// models: with 256 experts and 8 per token the most popular tenth takes about half of the choices.
	Skew *float64
	// Progress is told how many bytes of weights are made, one call at a time, from other goroutines.
	Progress func(done, total int64)
}

// Report says what Write made.
type Report struct {
	Files []string
	Bytes int64 // of all files
}

// Presets lists what Write can make, smallest first.
func Presets() []Preset {
	var list []Preset
	for _, s := range shapes() {
		list = append(list, Preset{s.name, s.about})
	}
	return list
}

// Write makes the model of a preset at the path out (with several shards: NAME-00001-of-0000N.gguf and so on beside
// it). The same preset, options and version give the same bytes. After an error or the end of ctx no file is left.
func Write(ctx context.Context, preset, out string, opt Options) (Report, error) {
	s, err := find(preset)
	if err != nil {
		return Report{}, err
	}
	if err := s.apply(opt); err != nil {
		return Report{}, err
	}
	m := newMaker(ctx, &s, opt.Progress)
	m.keys()
	m.vocabulary()
	m.tensors()
	m.total = m.b.Size()
	files, err := m.b.Write(out, opt.Shards)
	if err != nil {
		return Report{}, fmt.Errorf("synth: %s: %w", preset, err)
	}
	r := Report{Files: files}
	f, err := gguf.Open(files[0])
	if err != nil {
		return Report{}, fmt.Errorf("synth: %s: reading it back: %w", preset, err)
	}
	for _, x := range f.Shards {
		r.Bytes += x.Size
	}
	return r, nil
}

func find(preset string) (shape, error) {
	var names []string
	for _, s := range shapes() {
		if s.name == preset {
			return s, nil
		}
		names = append(names, s.name)
	}
	return shape{}, fmt.Errorf("synth: %w %q, there are %s", ErrPreset, preset, strings.Join(names, ", "))
}

// Limits of the options: what a reader accepts and no disk holds more of.
const (
	maxLayers  = 1000
	maxExperts = 65536
	maxShards  = 999
)

// apply sets what the options say and checks it.
func (s *shape) apply(o Options) error {
	set := func(to *int, n int) {
		if n != 0 {
			*to = n
		}
	}
	set(&s.layers, o.Layers)
	set(&s.experts, o.Experts)
	set(&s.used, o.Used)
	if o.Used == 0 {
		s.used = min(s.used, max(s.experts, 1))
	}
	if o.Seed != 0 {
		s.seed = o.Seed
	}
	if o.Skew != nil {
		s.skew = *o.Skew
	}
	for _, c := range []struct {
		name     string
		n        int
		min, max int
	}{
		{"layers", s.layers, 1, maxLayers}, {"experts", s.experts, 1, maxExperts}, {"used experts", s.used, 1, s.experts},
		{"shards", o.Shards, 0, maxShards},
	} {
		if c.n < c.min || c.n > c.max {
			return fmt.Errorf("synth: %w: %s is %d, allowed are %d to %d", ErrOption, c.name, c.n, c.min, c.max)
		}
	}
	if !(s.skew >= 0 && s.skew <= 100) {
		return fmt.Errorf("synth: %w: skew is %v, allowed are 0 to 100", ErrOption, s.skew)
	}
	return nil
}

// maker collects the keys and tensors of one model.
type maker struct {
	*shape
	ctx      context.Context
	b        *gguf.Builder
	progress func(done, total int64)
	mu       sync.Mutex // orders the calls of progress
	done     int64
	total    int64
	pools    map[poolKey]*pool
}

func newMaker(ctx context.Context, s *shape, progress func(done, total int64)) *maker {
	return &maker{shape: s, ctx: ctx, b: gguf.NewBuilder(), progress: progress, pools: map[poolKey]*pool{}}
}

// add adds a tensor whose data ends with ctx and is counted.
func (m *maker) add(name string, t gguf.Type, dims []int64, data gguf.Data) {
	m.b.Add(name, t, dims, func(dst []byte, offset int64) error {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		if err := data(dst, offset); err != nil {
			return err
		}
		if m.progress != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.done += int64(len(dst))
			m.progress(m.done, m.total)
		}
		return nil
	})
}

// keys sets the metadata of the architecture (the keys of its reference implementation in llama.cpp's file format).
func (m *maker) keys() {
	m.b.Set("general.architecture", m.arch)
	m.b.Set("general.type", "model")
	m.b.Set("general.name", fmt.Sprintf("%s random seed %d", m.name, m.seed))
	set := func(key string, n int) { m.b.Set(m.arch+"."+key, uint32(n)) }
	set("block_count", m.layers)
	set("context_length", m.context)
	set("embedding_length", m.embd)
	set("attention.head_count", m.heads)
	set("attention.head_count_kv", m.kv)
	set("attention.key_length", m.headDim)
	set("attention.value_length", m.headDim)
	set("expert_count", m.experts)
	set("expert_used_count", m.used)
	set("expert_feed_forward_length", m.ff)
	m.b.Set(m.arch+".rope.freq_base", m.ropeBase)
	m.b.Set(m.arch+".attention.layer_norm_rms_epsilon", float32(1e-6))
	if m.delta() {
		m.deltaKeys(set)
	} else {
		set("feed_forward_length", 3*m.embd)
	}
	m.b.Set("general.quantization_version", uint32(2))
	m.b.Set("general.file_type", m.quant.fileType)
}

func (m *maker) deltaKeys(set func(string, int)) {
	set("expert_shared_feed_forward_length", m.ffShared)
	set("ssm.conv_kernel", m.conv)
	set("ssm.state_size", m.state)
	set("ssm.group_count", m.keyHeads)
	set("ssm.time_step_rank", m.valueHeads)
	set("ssm.inner_size", m.state*m.valueHeads)
	set("full_attention_interval", m.interval)
	set("rope.dimension_count", m.rotated)
	m.b.Set(m.arch+".rope.dimension_sections", m.sections)
	recurrent := make([]bool, m.layers)
	for i := range recurrent {
		recurrent[i] = m.recurrent(i)
	}
	m.b.Set(m.arch+".attention.recurrent_layers", recurrent)
}

// delta reports whether the architecture has delta nets, gated attention and a shared expert.
func (s *shape) delta() bool { return s.interval > 0 }

// recurrent reports whether layer i is a delta net.
func (s *shape) recurrent(i int) bool { return s.delta() && (i+1)%s.interval != 0 }
