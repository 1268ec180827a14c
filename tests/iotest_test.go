package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A scratch file is written, verified on both backends and removed; a flipped bit is found and its place is said.
func TestIotest(t *testing.T) {
	dir := t.TempDir()
	job := func(m map[string]any) map[string]any { return m["jobs"].([]any)[0].(map[string]any) }
	m := object(t, "iotest", dir, "--create", "--size", "1m", "--verify", "--runtime", "0.05", "--backend", "pread", "--bs", "64k", "--iodepth", "2", "--output-format=json")
	fields(t, job(m), map[string]any{
		"job options": map[string]any{"bs": "", "iodepth": "", "rw": ""}, "usr_cpu": 0., "sys_cpu": 0., "verify": map[string]any{"blocks": 0, "errors": 0},
		"read": map[string]any{"bw": 0, "bw_bytes": 0, "io_bytes": 0, "iops": 0., "runtime": 0, "total_ios": 0, "slat_ns": map[string]any{"mean": 0.},
			"clat_ns": map[string]any{"percentile": map[string]any{"50.000000": 0., "99.000000": 0.}}, "lat_ns": map[string]any{"mean": 0.}},
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	path := filepath.Join(dir, "kept")
	ok(t, "iotest", path, "--create", "--keep", "--size", "1m", "--runtime", "0.05", "--backend", "pread")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 300000); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r := call{}.run(t, "iotest", path, "--verify", "--runtime", "0.2", "--backend", "pread", "--iodepth", "1", "--bs", "64k")
	if r.code != 1 || !strings.Contains(r.err, "block at offset 299008 has checksum") {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	for want, args := range map[string][]string{
		"allowed are read, randread and expert":    {path, "--rw", "randwrite"},
		"--keep leaves what --create makes":        {path, "--keep"},
		"--hugepages is \"2\"":                     {path, "--hugepages", "2"},
		"--iodepth is \"x\"":                       {path, "--iodepth", "x"},
		"--runtime is \"soon\"":                    {path, "--runtime", "soon"},
		"--tune: one size and depth shows no knee": {path, "--tune", "--bs", "64k", "--iodepth", "1", "--runtime", "0.01", "--backend", "pread"},
		"--bs is for --rw read and randread":       {"--rw", "expert", "--bs", "4k"},
		"--output-format is \"xml\"":               {path, "--output-format", "xml"},
	} {
		if r := (call{}).run(t, append([]string{"iotest"}, args...)...); r.code != 2 || !strings.Contains(r.err, want) || strings.Count(r.err, "\n") != 1 && !strings.Contains(want, "--tune") {
			t.Errorf("%q: exit %d: %s", args, r.code, r.err)
		}
	}
}

// The demo model: bursts of its experts, and its own routes replayed.
func TestIotestExpert(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	ok(t, "run", "--ram", "min", "--trace", trace, "-p", "hi", "-n", "6", "--temp", "0", "--ignore-eos", "--no-warm")
	m := object(t, "iotest", "--rw", "expert", "--ram", "min", "--trace", trace, "--runtime", "0.1", "--json")
	fields(t, m, map[string]any{"expert": map[string]any{"compute_s_per_token": 0., "token_bytes": 0, "at": []any{},
		"replay": map[string]any{"tokens": 0, "hit_rate": 0., "ssd_mib_per_token": 0., "decode_tok_s": 0., "io_wait_s_per_token": 0.}}})
	if n := m["expert"].(map[string]any)["replay"].(map[string]any)["tokens"].(float64); n != 5 {
		t.Errorf("%v tokens replayed, 5 were decoded", n)
	}
}

func TestDoctor(t *testing.T) {
	r := call{}.run(t, "doctor", "--json", t.TempDir())
	var d struct {
		Findings []map[string]string
		Facts    []map[string]string
	}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code > 1 || len(d.Facts) < 10 {
		t.Fatalf("exit %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	bad := false
	for _, f := range d.Findings {
		if f["what"] == "" || f["state"] == "" || f["consequence"] == "" || f["remedy"] == "" {
			t.Errorf("%v", f)
		}
		bad = bad || f["severity"] == "bad"
	}
	if bad != (r.code == 1) {
		t.Errorf("exit %d with %v", r.code, d.Findings)
	}
}
