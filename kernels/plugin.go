package kernels

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/epq-uring/epq-uring/ggml_cgo"
)

// ErrPlugin is the kind of error for a kernel plug-in that cannot be used.
var ErrPlugin = errors.New("kernel plug-in refused")

// Choose returns the set called name, that of the plug-in file where it has that name, and without a name the plug-in's, or
// Best where there is no plug-in either. Errors are those of ByName and LoadPlugin.
func Choose(name, plugin string) (*Set, error) {
	if plugin != "" {
		if s, err := LoadPlugin(plugin); err != nil || name == "" || name == s.Name {
			return s, err
		}
	}
	if name == "" {
		return Best(), nil
	}
	return ByName(name)
}

// LoadPlugin loads a shared object with the interface of ggml_cgo/plugin.h and returns its set, after the set's results
// for all types were found to be those of the plain twin, bit for bit. A set may have the name of one of this program: it
// is used in its place. The object stays loaded until the process ends. ErrPlugin, and ErrSelfTest for wrong results.
func LoadPlugin(file string) (*Set, error) {
	path, err := filepath.Abs(file) // a bare name would be looked for in the system's library folders
	if err != nil {
		return nil, fmt.Errorf("kernels: %s: %w: %w", file, err, ErrPlugin)
	}
	p, err := ggml_cgo.OpenPlugin(path)
	if err != nil {
		return nil, fmt.Errorf("kernels: %s: %w: %w", file, err, ErrPlugin)
	}
	base, err := pluginBase(p)
	if err != nil {
		return nil, fmt.Errorf("kernels: %s: %w: %w", file, err, ErrPlugin)
	}
	s := newSet(p.Mat(base.mat))
	s.vec = base.vec
	if err := s.SelfTest(); err != nil {
		return nil, fmt.Errorf("kernels: %s: %w: %w", file, err, ErrPlugin)
	}
	return s, nil
}

// pluginBase checks what a plug-in says of itself, and returns the set it stands on.
func pluginBase(p *ggml_cgo.Plugin) (*Set, error) {
	if p.ABI != ggml_cgo.PluginABI {
		return nil, fmt.Errorf("built for version %d of the interface, this program has %d; build it with this program's plugin.h", p.ABI, ggml_cgo.PluginABI)
	}
	if p.Name == "" || len(p.Name) > 64 || strings.ContainsAny(p.Name, " ,\n") {
		return nil, fmt.Errorf("its set is named %.64q; a name has 1 to 64 characters, no spaces and commas", p.Name)
	}
	for _, name := range strings.FieldsFunc(p.Features, func(r rune) bool { return r == ',' || r == ' ' }) {
		id := cpuid.ParseFeature(name)
		if id == cpuid.UNKNOWN {
			return nil, fmt.Errorf("needs a CPU feature %q that nobody knows; write it as cpuid does, like AVX2 or AVX512BF16", name)
		}
		if !cpuid.CPU.Supports(id) {
			return nil, fmt.Errorf("needs a CPU with %s, this one has none", name)
		}
	}
	if p.Base == "" {
		return Best(), nil
	}
	return ByName(p.Base)
}
