package mem

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeTree writes files below a new folder.
func writeTree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

// tightest returns the first of the smallest limits.
func tightest(root string) (Limit, error) {
	all, err := Limits(root)
	if err != nil {
		return Limit{}, err
	}
	return slices.MinFunc(all, func(a, b Limit) int { return cmp.Compare(a.Bytes, b.Bytes) }), nil
}

func TestRoomInGroups(t *testing.T) {
	var set struct {
		MemTotal int64 `json:"mem_total"`
		Cases    []struct {
			Name  string
			Limit *int64
			From  *string
			Files map[string]string
		}
	}
	readJSON(t, "testdata/b25_cgroup.json", &set)
	if len(set.Cases) != 7 {
		t.Fatalf("%d cases", len(set.Cases))
	}
	for _, c := range set.Cases {
		t.Run(c.Name, func(t *testing.T) {
			c.Files["/proc/meminfo"] = fmt.Sprintf("MemTotal: %d kB\nMemAvailable: %d kB\n", set.MemTotal>>10, set.MemTotal>>10)
			want := Limit{Bytes: set.MemTotal - set.MemTotal/8, By: "memory", Where: "MemAvailable"}
			if c.Limit != nil {
				want = Limit{Bytes: *c.Limit, By: "cgroup", Where: *c.From, Charged: true}
			}
			if got, err := tightest(writeTree(t, c.Files)); err != nil || got != want {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestRoomBesideCache(t *testing.T) {
	var set struct{ Cases []map[string]any }
	readJSON(t, "testdata/b26_memory.json", &set)
	if len(set.Cases) != 2 {
		t.Fatalf("%d cases", len(set.Cases))
	}
	number := func(v any) string {
		if f, ok := v.(float64); ok {
			return fmt.Sprintf("%.0f", f)
		}
		return fmt.Sprint(v)
	}
	for _, c := range set.Cases {
		t.Run(c["name"].(string), func(t *testing.T) {
			var stat strings.Builder
			for k, v := range c["memory.stat"].(map[string]any) {
				fmt.Fprintln(&stat, k, number(v))
			}
			files := map[string]string{
				"/proc/self/cgroup":               "0::/a\n",
				"/sys/fs/cgroup/a/memory.max":     number(c["memory.max"]) + "\n",
				"/sys/fs/cgroup/a/memory.current": number(c["memory.current"]) + "\n",
				"/sys/fs/cgroup/a/memory.stat":    stat.String(),
			}
			want := int64(c["room"].(float64))
			if total, ok := c["MemTotal"].(float64); ok {
				files["/proc/meminfo"] = fmt.Sprintf("MemTotal: %.0f kB\nMemAvailable: %.0f kB\n", total/1024, c["MemAvailable"].(float64)/1024)
				want -= int64(total) / 8
			}
			if got, err := tightest(writeTree(t, files)); err != nil || got.Bytes != want {
				t.Errorf("%+v, %v, want %d", got, err, want)
			}
		})
	}
}

// Our own anonymous memory is a term of the plan that the room is for; a group's parent counts its members.
func TestRoomOwnMemory(t *testing.T) {
	files := map[string]string{
		"/proc/self/cgroup":                               "5:cpu,memory:/p/c\n",
		"/proc/self/status":                               "RssAnon: 100 kB\n",
		"/proc/self/limits":                               "Limit  Soft Limit  Hard Limit  Units\nMax data size             800000               unlimited            bytes\n",
		"/sys/fs/cgroup/memory/p/memory.limit_in_bytes":   "1024000\n",
		"/sys/fs/cgroup/memory/p/memory.usage_in_bytes":   "924000\n",
		"/sys/fs/cgroup/memory/p/memory.stat":             "inactive_file 5\ntotal_inactive_file 200000\ntotal_active_file 24000\n",
		"/sys/fs/cgroup/memory/p/c/memory.limit_in_bytes": "9223372036854771712\n",
		"/sys/fs/cgroup/memory/p/c/memory.usage_in_bytes": "9000000\n",
		"/proc/meminfo":                                   "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n",
		"/sys/fs/cgroup/cpu/p/c/memory.limit_in_bytes":    "4096\n",
		"/sys/fs/cgroup/memory/q/memory.limit_in_bytes":   "4096\n",
	}
	want := Limit{Bytes: 1024000 - (924000 - 224000 - 102400), By: "cgroup", Where: "/p", Charged: true}
	if got, err := tightest(writeTree(t, files)); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	files["/proc/self/limits"] = "Max data size             300000               unlimited            bytes\n"
	if got, err := tightest(writeTree(t, files)); err != nil || got != (Limit{Bytes: 300000, By: "rlimit", Where: "RLIMIT_DATA"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A container with its group bound over the mount, in the name space of the host.
func TestRoomBoundMount(t *testing.T) {
	for _, top := range []string{"/box/1", "/"} {
		files := map[string]string{
			"/proc/self/cgroup":    "0::/box/1/app\n",
			"/proc/self/mountinfo": "31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n36 30 0:40 " + top + " /cg ro,nosuid shared:9 - cgroup2 cgroup2 rw\n",
			"/proc/meminfo":        "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n",
			"/cg/app/memory.max":   "max\n",
			"/cg/app/memory.high":  "5000\n",
			"/cg/memory.max":       "6000\n",
		}
		want := Limit{Bytes: 5000, By: "cgroup", Where: "/app", Charged: true}
		if top == "/" { // then ours is /cg/box/1/app, which is not there
			want.Bytes, want.Where = 6000, "/"
		}
		if got, err := tightest(writeTree(t, files)); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", top, got, err, want)
		}
	}
}

func TestRoomUnknown(t *testing.T) {
	if _, err := tightest(t.TempDir()); !errors.Is(err, ErrNoLimit) {
		t.Error(err)
	}
	l, err := tightest("")
	if err != nil || l.Bytes <= 0 || l.By == "" || l.Where == "" {
		t.Errorf("%+v, %v", l, err)
	}
}
