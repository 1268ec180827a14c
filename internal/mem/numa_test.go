package mem

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// fakeFile writes a file of a made-up /sys or /proc.
func fakeFile(t *testing.T, root, path, text string) {
	t.Helper()
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestNodes(t *testing.T) {
	root := t.TempDir()
	if n := nodesUnder(root); n != nil {
		t.Errorf("without /sys: %v", n)
	}
	fakeFile(t, root, "sys/devices/system/node/has_memory", "0,2\n") // node 1 has CPUs only
	fakeFile(t, root, "sys/devices/system/node/node0/cpulist", "0-2,8\n")
	fakeFile(t, root, "sys/devices/system/node/node1/cpulist", "3\n")
	fakeFile(t, root, "sys/devices/system/node/node2/cpulist", "4-5\n")
	want := []Node{{0, []int{0, 1, 2, 8}}, {2, []int{4, 5}}}
	if got := nodesUnder(root); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := want[0].AllowedIn([]int{8, 4, 0}); !reflect.DeepEqual(got, []int{8, 0}) {
		t.Errorf("allowed in node 0: %v", got)
	}
	for _, bad := range []string{"x", "3-1", "0-99999999999", "-1", ""} {
		fakeFile(t, root, "sys/devices/system/node/has_memory", bad)
		if n := nodesUnder(root); n != nil {
			t.Errorf("%q gives %v", bad, n)
		}
	}
}

// The kernel itself says which policy a block has.
func TestPlaceOn(t *testing.T) {
	nodes := Nodes()
	if len(nodes) == 0 {
		t.Skip("this kernel tells no NUMA nodes")
	}
	if err := PlaceOn(Interleave, []int{nodes[0].ID}); err != nil {
		t.Skip("mbind is refused here:", err)
	}
	defer PlaceOn(0, nil)
	b, err := Alloc("test", 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	b.Touch(1)
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		if strings.HasPrefix(line, fmt.Sprintf("%x ", uintptr(b.base))) {
			if !strings.Contains(line, fmt.Sprintf("interleave:%d", nodes[0].ID)) {
				t.Errorf("the block's policy: %s", line)
			}
			return
		}
	}
	t.Error("the block is not in numa_maps")
}

func TestPlaceOnRefused(t *testing.T) {
	for _, n := range []int{-1, 1 << 20, 1023} { // the last may be named, but no machine here has it
		if err := PlaceOn(Interleave, []int{n}); err == nil {
			PlaceOn(0, nil)
			t.Errorf("node %d is taken", n)
		}
	}
	if current.Load() != nil {
		t.Error("a refused placement stays")
	}
}
