package mem

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestNewGroupRefused(t *testing.T) {
	// No controller; a version 2 group above that hands nothing down (the new folder stays empty).
	for name, root := range map[string]string{
		"none": t.TempDir(),
		"v2":   writeTree(t, map[string]string{"/proc/self/cgroup": "0::/me\n", "/sys/fs/cgroup/me/memory.max": "max\n"}),
	} {
		g, err := newGroup(root, "child", 1<<30)
		if !errors.Is(err, ErrNoGroup) {
			t.Errorf("%s: %v, %v", name, g, err)
		}
		if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/me/child")); err == nil {
			t.Errorf("%s: the refused group is still there", name)
		}
	}
}

// A real group where there are rights: its member is counted and the group goes away.
func TestNewGroup(t *testing.T) {
	const limit = 64 << 20
	g, err := NewGroup("epq-test", limit)
	if errors.Is(err, ErrNoGroup) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if n, ok := readNumber("", filepath.Join(g.dir, g.limit)); !ok || n != limit {
		t.Errorf("limit %d, want %d", n, limit)
	}
	out, err := exec.Command("sh", "-c", `echo 0 >"$0" && head -c 20000000 /dev/zero | tail -c 20000000 >/dev/null`, g.Members()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if p := g.Peak(); p != 0 && (p < 10<<20 || p > limit) {
		t.Errorf("peak %d after 20 MB held", p)
	}
	if g.Kills() != 0 {
		t.Errorf("%d killed", g.Kills())
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
