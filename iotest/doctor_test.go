package iotest

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/uring"
)

// healthy is a machine without a finding: an NVMe disk with ext4, Linux 6.12, no limits.
var healthy = map[string]string{
	"/proc/sys/kernel/osrelease":                                         "6.12.1",
	"/proc/sys/kernel/io_uring_disabled":                                 "0",
	"/proc/sys/kernel/numa_balancing":                                    "0",
	"/proc/sys/vm/overcommit_memory":                                     "0",
	"/proc/self/status":                                                  "Name:\tx\nCapEff:\t0000000000000000\nRssAnon:\t1000 kB\nSeccomp:\t0\n",
	"/proc/self/limits":                                                  "Max locked memory         unlimited            unlimited            bytes\nMax data size             unlimited            unlimited            bytes\n",
	"/proc/self/cgroup":                                                  "0::/user\n4:cpu,cpuacct:/a\n5:blkio:/a\n",
	"/proc/self/mountinfo":                                               "22 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw\n",
	"/proc/meminfo":                                                      "MemTotal: 33554432 kB\nMemAvailable: 30000000 kB\nSwapTotal: 1000000 kB\nSwapFree: 1000000 kB\n",
	"/proc/swaps":                                                        "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 1000000 0 -2\n",
	"/proc/cpuinfo":                                                      "processor\t: 0\nmodel name\t: Some CPU\n\nprocessor\t: 1\nmodel name\t: Some CPU\n",
	"/sys/fs/cgroup/user/cpu.max":                                        "max 100000",
	"/sys/kernel/mm/transparent_hugepage/enabled":                        "always [madvise] never",
	"/sys/kernel/mm/transparent_hugepage/defrag":                         "always defer defer+madvise [madvise] never",
	"/sys/devices/system/node/node0/cpulist":                             "0-1",
	"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":              "powersave",
	"/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver":                "intel_pstate",
	"/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference": "balance_performance",
	"/sys/class/power_supply/BAT0/type":                                  "Battery",
	"/sys/class/power_supply/BAT0/status":                                "Full",
	nvme + "/dev":                                                        "259:0",
	nvme + "/size":                                                       "1000000",
	nvme + "/removable":                                                  "0",
	nvme + "/device/model":                                               "Fast SSD",
	nvme + "/queue/rotational":                                           "0",
	nvme + "/queue/max_sectors_kb":                                       "1280",
	nvme + "/queue/max_segments":                                         "128",
	nvme + "/queue/read_ahead_kb":                                        "128",
	nvme + "/queue/scheduler":                                            "[none] mq-deadline",
	nvme + "/nvme0n1p2/partition":                                        "2",
	nvme + "/nvme0n1p2/dev":                                              "259:2",
}

const (
	nvme = "/sys/devices/pci0000:00/nvme/nvme0/nvme0n1"
	dm   = "/sys/devices/virtual/block/dm-0"
)

// links are where the kernel has symbolic links.
var links = map[string]string{
	"/sys/dev/block/259:0": nvme, "/sys/dev/block/259:2": nvme + "/nvme0n1p2", "/sys/class/block/nvme0n1": nvme,
	"/sys/class/block/nvme0n1p2": nvme + "/nvme0n1p2", "/sys/dev/block/253:0": dm,
}

// fine are trials that find nothing.
func fine(file string) trials {
	return trials{
		ring:   func() []uring.Feature { return []uring.Feature{{What: "io_uring", OK: true, State: "allowed"}} },
		direct: func(string) (int, []uring.Loss, error) { return 512, nil, nil },
		huge:   func() (int64, int64, error) { return trialArena, trialArena, nil },
		extent: func(string) (int, int64, error) { return 10, 20 << 30, nil },
		shards: func(string) []string { return []string{file} },
		cpu:    func() (string, string, bool) { return "avx2", "avx2", true },
	}
}

// diagnose examines the healthy machine with some files changed; "" removes one.
func diagnose(t *testing.T, change map[string]string, try func(*trials)) *Diagnosis {
	t.Helper()
	root := t.TempDir()
	file := filepath.Join(t.TempDir(), "model.gguf")
	put := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range healthy {
		if _, changed := change[path]; !changed {
			put(path, text)
		}
	}
	for path, text := range change {
		if text != "" {
			put(path, text)
		}
	}
	for link, to := range links {
		link = filepath.Join(root, link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(filepath.Join(root, to), link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &doctor{host: host{root}, opt: DoctorOptions{Paths: []string{file}, Tuning: t.TempDir()}, try: fine(file)}
	if try != nil {
		try(&d.try)
	}
	return d.examine()
}

func TestHealthyMachine(t *testing.T) {
	d := diagnose(t, nil, nil)
	if len(d.Findings) != 0 || d.Bad() || len(d.Facts) < 20 {
		t.Errorf("%d facts, findings %+v", len(d.Facts), d.Findings)
	}
	facts := ""
	for _, f := range d.Facts {
		facts += f.Name + ": " + f.Value + "\n"
	}
	for _, want := range []string{"kernel: Linux 6.12.1", "disk: nvme0n1 (259:0): nvme0n1, Fast SSD, 1000000 sectors", "CPU: Some CPU, 2 online", "tuning: iotest: nvme0n1: not tuned"} {
		if !strings.Contains(facts, want) {
			t.Errorf("no %q in\n%s", want, facts)
		}
	}
	if b, err := json.Marshal(d); err != nil || !strings.Contains(string(b), `"findings":[]`) {
		t.Error(string(b), err)
	}
}

// Each row is one thing wrong; it must give that finding, with a state that says so, and no other.
func TestFindings(t *testing.T) {
	type files = map[string]string
	for name, c := range map[string]struct {
		change   files
		try      func(*trials)
		what     string
		state    string
		severity Severity
	}{
		"ancient kernel": {files{"/proc/sys/kernel/osrelease": "5.4.0-42-generic"}, nil, "kernel", "5.4.0", Bad},
		"old kernel":     {files{"/proc/sys/kernel/osrelease": "5.15.0"}, nil, "kernel", "5.15.0", Note},
		"ring refused": {files{"/proc/sys/kernel/io_uring_disabled": "2"}, func(x *trials) {
			x.ring = func() []uring.Feature {
				return []uring.Feature{{What: "io_uring", State: "io_uring_setup: EPERM", Consequence: "c", Remedy: "r"}}
			}
		}, "io_uring", "EPERM", Bad},
		"ring for root":     {files{"/proc/sys/kernel/io_uring_disabled": "1"}, nil, "kernel.io_uring_disabled", "1", Note},
		"memlock":           {files{"/proc/self/limits": "Max locked memory         8388608              8388608              bytes\n"}, nil, "memlock", "8388608", Warning},
		"no huge pages":     {files{"/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}, nil, "huge pages", "[never]", Bad},
		"no such kernel":    {files{"/sys/kernel/mm/transparent_hugepage/enabled": ""}, nil, "huge pages", "none", Bad},
		"fragmented memory": {nil, func(x *trials) { x.huge = func() (int64, int64, error) { return 2 << 20, trialArena, nil } }, "huge pages", "64m got 2m", Warning},
		"overcommit":        {files{"/proc/sys/vm/overcommit_memory": "2"}, nil, "vm.overcommit_memory", "2", Warning},
		"swapping":          {files{"/proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 30000000 kB\nSwapTotal: 1048576 kB\nSwapFree: 524288 kB\n"}, nil, "swap", "512m of 1g", Warning},
		"zram":              {files{"/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 1000000 0 -2\n"}, nil, "swap", "zram", Note},
		"numa balancing":    {files{"/proc/sys/kernel/numa_balancing": "1", "/sys/devices/system/node/node1/cpulist": "2-3"}, nil, "NUMA", "2 nodes", Note},
		"small group, v2":   {files{"/sys/fs/cgroup/user/memory.max": "2147483648"}, nil, "memory limit", "cgroup leaves 2g (/user)", Warning},
		"small group, v1":   {files{"/proc/self/cgroup": "4:memory:/a\n", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824"}, nil, "memory limit", "1g (/a)", Warning},
		"data limit":        {files{"/proc/self/limits": "Max locked memory         unlimited            unlimited            bytes\nMax data size             1073741824           unlimited            bytes\n"}, nil, "memory limit", "rlimit leaves 1g", Warning},
		"quota, v2":         {files{"/sys/fs/cgroup/user/cpu.max": "150000 100000"}, nil, "CPU quota", "1.50 of 2", Note},
		"quota, v1":         {files{"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000", "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, nil, "CPU quota", "0.50 of 2", Note},
		"no vectors":        {nil, func(x *trials) { x.cpu = func() (string, string, bool) { return "scalar", "scalar: no AVX2", false } }, "CPU", "no AVX2", Bad},
		"governor":          {files{"/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq"}, nil, "CPU governor", "powersave", Warning},
		"power preference":  {files{"/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference": "power"}, nil, "CPU governor", "powersave", Warning},
		"battery":           {files{"/sys/class/power_supply/BAT0/status": "Discharging"}, nil, "battery", "BAT0", Note},
		"network":           {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - nfs4 server:/x rw\n"}, nil, "file system", "nfs4 (server:/x)", Bad},
		"fuse":              {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - fuse.sshfs server:/x rw\n"}, nil, "file system", "fuse.sshfs", Bad},
		"overlay":           {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - overlay overlay rw\n"}, nil, "file system", "overlay", Warning},
		"tmpfs":             {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - tmpfs tmpfs rw\n"}, nil, "file system", "tmpfs", Bad},
		"compressed btrfs":  {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - btrfs /dev/nvme0n1p2 rw,compress=zstd:1\n"}, nil, "file system", "compression", Warning},
		"zfs":               {files{"/proc/self/mountinfo": "22 1 0:50 / / rw,relatime - zfs pool/x rw\n"}, nil, "file system", "zfs", Note},
		"no mount":          {files{"/proc/self/mountinfo": ""}, nil, "file", "in no mount", Warning},
		"no direct reads": {nil, func(x *trials) {
			x.direct = func(string) (int, []uring.Loss, error) {
				return 4096, []uring.Loss{{What: "O_DIRECT", Reason: "open: EINVAL", Remedy: "r"}}, nil
			}
		}, "O_DIRECT", "EINVAL", Bad},
		"unreadable":    {nil, func(x *trials) { x.direct = func(string) (int, []uring.Loss, error) { return 0, nil, unix.EACCES } }, "file", "permission denied", Warning},
		"fragments":     {nil, func(x *trials) { x.extent = func(string) (int, int64, error) { return 20480, 20 << 30, nil } }, "fragments", "20480 pieces of 1m", Note},
		"rotating":      {files{nvme + "/queue/rotational": "1"}, nil, "disk", "rotating", Bad},
		"removable":     {files{nvme + "/removable": "1"}, nil, "disk", "removable", Warning},
		"small request": {files{nvme + "/queue/max_sectors_kb": "128"}, nil, "max_sectors_kb", "128", Note},
		"few segments":  {files{nvme + "/queue/max_segments": "64"}, nil, "max_segments", "64", Note},
		"read-ahead":    {files{nvme + "/queue/read_ahead_kb": "8192"}, nil, "read_ahead_kb", "8192", Note},
		"bfq":           {files{nvme + "/queue/scheduler": "none [bfq]"}, nil, "scheduler", "bfq", Note},
		"encrypted": {files{"/proc/self/mountinfo": "22 1 253:0 / / rw,relatime - ext4 /dev/mapper/x rw\n", dm + "/dev": "253:0", dm + "/dm/uuid": "CRYPT-LUKS2-x",
			dm + "/slaves/nvme0n1p2/dev": "259:2"}, nil, "disk", "dm-0 is encrypted", Note},
		"rotating below": {files{"/proc/self/mountinfo": "22 1 253:0 / / rw,relatime - ext4 /dev/mapper/x rw\n", dm + "/dev": "253:0", dm + "/dm/uuid": "LVM-x",
			dm + "/slaves/nvme0n1p2/dev": "259:2", nvme + "/queue/rotational": "1"}, nil, "disk", "nvme0n1 is a rotating", Bad},
		"throttled, v2": {files{"/sys/fs/cgroup/user/io.max": "8:0 rbps=1 wbps=max\n259:0 rbps=209715200 wbps=max riops=max wiops=max"}, nil, "I/O limit", "rbps is 209715200", Bad},
		"throttled, v1": {files{"/sys/fs/cgroup/blkio/a/blkio.throttle.read_bps_device": "259:0 209715200"}, nil, "I/O limit", "read_bps_device is 209715200", Bad},
	} {
		t.Run(name, func(t *testing.T) {
			d := diagnose(t, c.change, c.try)
			if len(d.Findings) != 1 {
				t.Fatalf("%d findings: %+v", len(d.Findings), d.Findings)
			}
			f := d.Findings[0]
			if f.What != c.what || !strings.Contains(f.State, c.state) || f.Severity != c.severity || f.Consequence == "" || f.Remedy == "" {
				t.Errorf("%+v", f)
			}
			if d.Bad() != (c.severity == Bad) {
				t.Error("exit status")
			}
		})
	}
}

func TestSplitModel(t *testing.T) {
	d := diagnose(t, map[string]string{
		"/proc/self/mountinfo": "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n23 22 253:0 / " + os.TempDir() + "/epq-other rw - ext4 /dev/mapper/x rw\n",
		dm + "/dev":            "253:0",
	}, func(x *trials) {
		own := x.shards("")[0]
		other := filepath.Join(os.TempDir(), "epq-other")
		if err := os.MkdirAll(other, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(other) })
		second := filepath.Join(other, "model-2.gguf")
		if err := os.WriteFile(second, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		x.shards = func(string) []string { return []string{own, second} }
	})
	if len(d.Findings) != 1 || d.Findings[0].What != "model" || !strings.Contains(d.Findings[0].State, "2 files on 2 disks") {
		t.Errorf("%+v", d.Findings)
	}
}

// The trials work on this machine, whatever they find.
func TestTrials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryDirect(file); err != nil {
		t.Error(err)
	}
	if got, wanted, err := tryHugePages(); err != nil || got < 0 || got > wanted+hugePageBytes {
		t.Error(got, wanted, err)
	}
	if n, size, err := countExtents(file); err == nil && (n < 0 || size != 1<<20) {
		t.Error(n, size)
	}
	if list := shardsOf(filepath.Dir(file)); len(list) != 1 || list[0] != file {
		t.Error(list)
	}
	if d := Doctor(DoctorOptions{Paths: []string{file}}); len(d.Facts) < 10 {
		t.Error(d.Facts)
	}
}

func TestTuning(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"/proc/sys/kernel/osrelease": "6.12.1", "/proc/self/mountinfo": healthy["/proc/self/mountinfo"], "/sys/dev/block/259:2/dev": "259:2", "/sys/dev/block/259:2/size": "1000",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(root+path), 0o755), os.WriteFile(root+path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	h, dir, file := host{root}, t.TempDir(), filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.tuned(dir, file); !errors.Is(err, ErrNotTuned) {
		t.Error(err)
	}
	r := &Report{Path: file, Verdict: &Verdict{Knee: Point{InFlight: 6 << 20, Bandwidth: 3e9}}}
	if _, _, err := h.tune(dir, r); !errors.Is(err, ErrOption) {
		t.Error("without a sweep:", err)
	}
	r.Verdict.Swept = true
	if _, _, err := h.tune(dir, r); err != nil {
		t.Fatal(err)
	}
	if got, err := h.tuned(dir, file); err != nil || got.InFlight != 6<<20 {
		t.Error(got, err)
	}
	for path, text := range map[string]string{"/sys/dev/block/259:2/size": "2000", "/proc/sys/kernel/osrelease": "6.13.0"} {
		if err := os.WriteFile(root+path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := h.tuned(dir, file); !errors.Is(err, ErrOutdated) {
			t.Error(path, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, tuningFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := h.tuned(dir, file); !errors.Is(err, ErrNotTuned) {
		t.Error(err)
	}
}
