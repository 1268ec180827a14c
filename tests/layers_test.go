// Package tests holds what spans packages: the arrows between them, golden models, same bits, budgets, faults, the
// command line.
package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/epq-uring/epq-uring/"

// layers says how high each package stands. A package imports only packages of lower layers.
var layers = map[string]int{
	"internal/mem": 0, "internal/invariants": 0, "internal/chart": 0, "internal/seccomp": 0,
	"gguf": 1, "uring": 1, "uring/fake": 1, "uring/uringtest": 1, "ggml_cgo": 1,
	"expert": 2, "kernels": 2, "tokenizer": 2, "chat": 2,
	"model": 3, "pager": 3, "prefetch": 3,
	"engine": 4,
	"server": 5, "bench": 5, "iotest": 5, "sim": 5, "synth": 5, "hub": 5,
	"cmd/epq-uring": 6, "tests": 6,
}

// within lists imports within a layer that are part of the design.
var within = map[string]string{"uring/fake": "uring", "uring/uringtest": "uring"}

// only says which packages alone may import something.
var only = map[string][]string{
	"C":                                  {"ggml_cgo"},
	"github.com/pawelgaczynski/giouring": {"uring"},
	"github.com/rs/zerolog":              {"engine", "server", "cmd/epq-uring"},
	"github.com/ardanlabs/jinja":         {"chat"},
	"github.com/klauspost/cpuid/v2":      {"kernels"},
}

func TestLayers(t *testing.T) {
	root := ".."
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "testdata" || path == filepath.Join(root, "tools")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			checkImport(t, path, filepath.ToSlash(rel), name, strings.HasSuffix(path, "_test.go"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 50 {
		t.Fatalf("only %d files seen", seen)
	}
}

func checkImport(t *testing.T, path, pkg, name string, test bool) {
	for what, owners := range only {
		if name != what && !strings.HasPrefix(name, what+"/") {
			continue
		}
		ok := false
		for _, o := range owners {
			ok = ok || o == pkg
		}
		if !ok && !test {
			t.Errorf("%s imports %s, which only %v may", path, name, owners)
		}
	}
	to, own := strings.CutPrefix(name, module)
	if !own {
		return
	}
	from, ok := layers[pkg]
	if !ok {
		t.Errorf("%s: package %s has no layer", path, pkg)
	}
	level, ok := layers[to]
	if !ok {
		t.Errorf("%s: package %s has no layer", path, to)
	}
	// Tests may look sideways and at their fakes, never up.
	if level > from || level == from && !test && pkg != to && within[pkg] != to {
		t.Errorf("%s (layer %d) imports %s (layer %d)", path, from, to, level)
	}
}
