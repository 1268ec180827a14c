//go:build cgo

package kernels

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/epq-uring/epq-uring/ggml_cgo"
	"github.com/epq-uring/epq-uring/gguf"
)

// buildPlugin compiles the example with the given definitions.
func buildPlugin(t *testing.T, defines ...string) string {
	t.Helper()
	return build(t, "example.c", defines...)
}

// build compiles a file of testdata/plugin.
func build(t *testing.T, source string, defines ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler at hand:", err)
	}
	so := filepath.Join(t.TempDir(), "object.so")
	args := append([]string{"-O2", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC", "-I", "../ggml_cgo", "-o", so, "testdata/plugin/" + source}, defines...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return so
}

func TestPlugin(t *testing.T) {
	s, err := LoadPlugin(buildPlugin(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "example" {
		t.Errorf("the set is called %s", s.Name)
	}
	// Its own rows serve every number of columns, those of the best set everything else.
	if s.mat.HasWide(uint32(gguf.Q8_0)) || s.mat.HasWide(uint32(gguf.Q4_K)) != Best().mat.HasWide(uint32(gguf.Q4_K)) {
		t.Error("its operations are not laid over those of the best set")
	}
}

func TestPluginRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("no object"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file string
		kind error
		says string
	}{
		"disagrees":       {buildPlugin(t, "-DWRONG"), ErrSelfTest, "row 3"},
		"other version":   {buildPlugin(t, "-DABI=7"), ErrPlugin, "version 7"},
		"unknown feature": {buildPlugin(t, `-DFEATURES="AVX9000"`), ErrPlugin, "AVX9000"},
		"no such CPU":     {buildPlugin(t, `-DFEATURES="AVX2,AMXCOMPLEX,SSE4A,XOP,TBM"`), ErrPlugin, "needs a CPU with"},
		"no object":       {text, ErrPlugin, "text.so"},
		"no file":         {filepath.Join(t.TempDir(), "none.so"), ErrPlugin, "none.so"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadPlugin(c.file)
			if !errors.Is(err, c.kind) || !errors.Is(err, ErrPlugin) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// A library may change how the thread that loads it computes, and with it threads that this one starts: no worker computes so.
func TestFloatControl(t *testing.T) {
	so := build(t, "flush.c")
	done := make(chan struct{})
	go func() { // this goroutine's thread ends with it
		defer close(done)
		runtime.LockOSThread()
		sound := ggml_cgo.FloatControl()
		if _, err := ggml_cgo.OpenPlugin(so); err == nil {
			t.Error("a library that is no plug-in was taken for one")
		}
		if ggml_cgo.FloatControl() == sound {
			t.Error("the library changed nothing")
		}
		p, err := NewPool(3, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		if err := p.PinCaller(); err != nil {
			t.Error(err)
		}
		var words [3]uint32
		onAll(p, func(w int) { words[w] = ggml_cgo.FloatControl() })
		if words != [3]uint32{sound, sound, sound} {
			t.Errorf("control words %#x, before the library %#x", words, sound)
		}
	}()
	<-done
}
