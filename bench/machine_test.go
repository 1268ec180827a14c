package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadMachine(t *testing.T) {
	root, file := t.TempDir(), filepath.Join(t.TempDir(), "model")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast 9000\nprocessor\t: 1\nmodel name\t: other\n")
	write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n")
	write("proc/loadavg", "0.10 0.20 0.30 1/2 3\n")
	write("proc/sys/kernel/osrelease", "6.18.1\n")
	write("proc/self/mountinfo", "1 0 0:0 / /x rw - tmpfs x rw\n2 1 "+device+" / / rw,relatime shared:1 - ext4 /dev/root rw\n")
	write("sys/devices/nvme0n1/queue/read_ahead_kb", "128\n")
	write("sys/devices/nvme0n1/device/model", "Quick SSD  \n")
	write("sys/devices/nvme0n1/nvme0n1p2/partition", "2\n")
	if err := os.MkdirAll(filepath.Join(root, "sys/dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../devices/nvme0n1/nvme0n1p2", filepath.Join(root, "sys/dev/block", device)); err != nil {
		t.Fatal(err)
	}
	m := readMachine(root, file)
	want := Machine{CPU: "Fast 9000", CPUs: m.CPUs, RAM: 1 << 20, Kernel: "6.18.1", Disk: "nvme0n1, Quick SSD, read-ahead 128 KiB", FileSystem: "ext4", Load: "0.10 0.20 0.30"}
	if m != want || m.CPUs < 1 {
		t.Errorf("%+v, want %+v", m, want)
	}
	if m := readMachine(t.TempDir(), file+"none"); m != (Machine{CPUs: m.CPUs}) {
		t.Errorf("nothing to see: %+v", m)
	}
}
