package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what a reader must know to compare numbers. What cannot be found out is empty or 0.
type Machine struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"` // this process may use
	RAM        int64  `json:"ram_bytes"`
	Kernel     string `json:"kernel"`
	Disk       string `json:"disk"` // of the model
	FileSystem string `json:"file_system"`
	Load       string `json:"load_average"` // when the measuring began
}

// ReadMachine looks at the machine and the disk that holds path.
func ReadMachine(path string) Machine { return readMachine("/", path) }

func readMachine(root, path string) Machine {
	m := Machine{CPU: field(root, "proc/cpuinfo", "model name"), Kernel: strings.TrimSpace(text(root, "proc/sys/kernel/osrelease"))}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		m.CPUs = set.Count()
	}
	if w := strings.Fields(field(root, "proc/meminfo", "MemTotal")); len(w) > 0 {
		n, _ := strconv.ParseInt(w[0], 10, 64)
		m.RAM = n << 10
	}
	if w := strings.Fields(text(root, "proc/loadavg")); len(w) >= 3 {
		m.Load = strings.Join(w[:3], " ")
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
		m.Disk, m.FileSystem = disk(root, device), fileSystem(root, device)
	}
	return m
}

// field returns the first value of a name in lines "name : value".
func field(root, file, name string) string {
	for line := range strings.Lines(text(root, file)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func text(root, file string) string {
	b, _ := os.ReadFile(filepath.Join(root, file))
	return string(b)
}

// disk describes a block device: its name, model and read-ahead.
func disk(root, device string) string {
	at, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", device))
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(at, "queue")); err != nil { // a partition
		at = filepath.Dir(at)
	}
	words := []string{filepath.Base(at)}
	if s := strings.TrimSpace(text(at, "device/model")); s != "" {
		words = append(words, s)
	}
	if s := strings.TrimSpace(text(at, "queue/read_ahead_kb")); s != "" {
		words = append(words, "read-ahead "+s+" KiB")
	}
	return strings.Join(words, ", ")
}

// fileSystem finds the type of the mount of a device in mountinfo (proc(5)).
func fileSystem(root, device string) string {
	for line := range strings.Lines(text(root, "proc/self/mountinfo")) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if ok && len(l) > 2 && len(r) > 0 && l[2] == device {
			return r[0]
		}
	}
	return ""
}
