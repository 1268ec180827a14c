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
	HeaderOnly            bool   // weights are a hole in the file, read as zeros: for tools that look at shapes
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
	m.hollow = opt.HeaderOnly
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
	if s.groups > 1 && s.experts%s.groups != 0 {
		return fmt.Errorf("synth: %w: experts is %d, which the %d groups do not share evenly", ErrOption, s.experts, s.groups)
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
	hollow   bool // no weights
}

func newMaker(ctx context.Context, s *shape, progress func(done, total int64)) *maker {
	return &maker{shape: s, ctx: ctx, b: gguf.NewBuilder(), progress: progress, pools: map[poolKey]*pool{}}
}

// add adds a tensor whose data ends with ctx and is counted.
func (m *maker) add(name string, t gguf.Type, dims []int64, data gguf.Data) {
	if m.hollow {
		m.b.Add(name, t, dims, nil)
		return
	}
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
	m.b.Set("general.architecture", m.family.arch)
	m.b.Set("general.type", "model")
	m.b.Set("general.name", fmt.Sprintf("%s random seed %d", m.name, m.seed))
	m.count("block_count", m.layers+m.predict)
	m.count("context_length", m.context)
	m.count("embedding_length", m.embd)
	m.count("attention.head_count", m.heads)
	m.count("expert_count", m.experts)
	m.count("expert_used_count", m.used)
	m.count("expert_feed_forward_length", m.ff)
	m.key("rope.freq_base", m.ropeBase)
	m.key("attention.layer_norm_rms_epsilon", m.eps)
	m.family.keys(m)
	m.b.Set("general.quantization_version", uint32(2))
	m.b.Set("general.file_type", m.quant.fileType)
}

// key sets a key of the architecture.
func (m *maker) key(name string, value any) { m.b.Set(m.family.arch+"."+name, value) }

func (m *maker) count(name string, n int) { m.key(name, uint32(n)) }
