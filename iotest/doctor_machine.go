package iotest

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/epq-uring/epq-uring/internal/mem"
)

// fields reads lines "Name: value ..." of a file.
func (h host) fields(file string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(h.text(file)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			m[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return m
}

// bytesOf reads "12 kB" of such a field.
func bytesOf(s string) int64 {
	w := strings.Fields(s)
	if len(w) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(w[0], 10, 64)
	if len(w) > 1 && w[1] == "kB" {
		n <<= 10
	}
	return n
}

// release is the kernel's version as two numbers.
func release(s string) (major, minor int) {
	_, _ = fmt.Sscanf(s, "%d.%d", &major, &minor) // what is no number stays 0
	return major, minor
}

func (d *doctor) examineKernel() {
	k := d.kernel()
	d.fact("kernel", "Linux %s", k)
	if major, minor := release(k); major > 0 && major*100+minor < 506 {
		d.find(Bad, "kernel", "Linux "+k, "has no io_uring that can read into an arena: pread with threads runs, at up to three times the CPU", "use Linux 5.6 or later, 6.1 at best")
	} else if major > 0 && major*100+minor < 601 {
		d.find(Note, "kernel", "Linux "+k, "io_uring has no DEFER_TASKRUN: completions interrupt the computing threads", "use Linux 6.1 or later")
	}
	disabled := d.text("/proc/sys/kernel/io_uring_disabled")
	d.fact("kernel.io_uring_disabled", "%s", orNone(disabled))
	refused := false
	for _, f := range d.try.ring() {
		if f.What != "io_uring" { // the others are read below
			continue
		}
		d.fact(f.What, "%s", f.State)
		if refused = !f.OK; refused {
			d.find(Bad, f.What, f.State, f.Consequence, f.Remedy)
		}
	}
	if !refused && (disabled == "1" || disabled == "2") {
		d.find(Note, "kernel.io_uring_disabled", disabled, "this user may use io_uring, others may not", "sysctl kernel.io_uring_disabled=0")
	}
	d.examineMemlock()
}

// capIPCLock lifts the limit on locked memory.
const capIPCLock = 14

func (d *doctor) examineMemlock() {
	caps, _ := strconv.ParseUint(d.fields("/proc/self/status")["CapEff"], 16, 64)
	limit := ""
	for line := range strings.Lines(d.text("/proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok && len(strings.Fields(rest)) > 0 {
			limit = strings.Fields(rest)[0]
		}
	}
	d.fact("RLIMIT_MEMLOCK", "%s bytes, CAP_IPC_LOCK %v", orNone(limit), caps>>capIPCLock&1 == 1)
	if n, err := strconv.ParseInt(limit, 10, 64); err == nil && n < 1<<30 && caps>>capIPCLock&1 == 0 {
		d.find(Warning, "memlock", fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes", n), "an arena above it is not registered: reads cost up to twice the CPU",
			"ulimit -l unlimited (limits.conf: memlock), LimitMEMLOCK=infinity in a unit, docker run --ulimit memlock=-1, or CAP_IPC_LOCK")
	}
}

func (d *doctor) examineMemory() {
	info := d.fields("/proc/meminfo")
	d.fact("memory", "%s, available %s", sizeWord(bytesOf(info["MemTotal"])), sizeWord(bytesOf(info["MemAvailable"])))
	setting := d.text("/sys/kernel/mm/transparent_hugepage/enabled")
	d.fact("transparent huge pages", "%s, defrag %s", orNone(setting), orNone(d.text("/sys/kernel/mm/transparent_hugepage/defrag")))
	if setting == "" || strings.Contains(setting, "[never]") {
		d.find(Bad, "huge pages", "/sys/kernel/mm/transparent_hugepage/enabled is "+orNone(setting), "reads into 4 KiB pages: as little as half of the bandwidth, three times the CPU",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
	} else if got, wanted, err := d.try.huge(); err == nil {
		d.fact("AnonHugePages of a trial arena", "%s of %s", sizeWord(got), sizeWord(wanted))
		if got < wanted/2 {
			d.find(Warning, "huge pages", fmt.Sprintf("a trial arena of %s got %s of huge pages", sizeWord(wanted), sizeWord(got)), "the rest is on 4 KiB pages: less bandwidth, more CPU",
				"free memory is in pieces: echo 1 > /proc/sys/vm/compact_memory, or start earlier after boot")
		}
	}
	if over := d.text("/proc/sys/vm/overcommit_memory"); over == "2" {
		d.find(Warning, "vm.overcommit_memory", "2", "an arena that the machine has room for may be refused", "sysctl vm.overcommit_memory=0")
	}
	d.examineSwap(info)
	d.examineNUMA()
}

func (d *doctor) examineSwap(info map[string]string) {
	total, free := bytesOf(info["SwapTotal"]), bytesOf(info["SwapFree"])
	zram := false
	for line := range strings.Lines(d.text("/proc/swaps")) {
		zram = zram || strings.HasPrefix(line, "/dev/zram")
	}
	d.fact("swap", "%s, used %s, zram %v", sizeWord(total), sizeWord(total-free), zram)
	switch {
	case total > 0 && (total-free)*10 > total:
		d.find(Warning, "swap", fmt.Sprintf("%s of %s in use", sizeWord(total-free), sizeWord(total)), "memory is short: parts of an arena that is not registered may be swapped and read twice",
			"a smaller --ram, other programs stopped, or swapoff -a")
	case zram:
		d.find(Note, "swap", "zram", "experts hardly compress: swapping them costs CPU and gains no room", "sysctl vm.swappiness=1, or keep --ram well below the free memory")
	}
}

func (d *doctor) examineNUMA() {
	nodes := 0
	for _, n := range d.list("/sys/devices/system/node") {
		if rest, ok := strings.CutPrefix(n, "node"); ok && rest != "" && strings.Trim(rest, "0123456789") == "" {
			nodes++
		}
	}
	balancing := d.text("/proc/sys/kernel/numa_balancing")
	d.fact("NUMA nodes", "%d, balancing %s", nodes, orNone(balancing))
	if nodes > 1 && balancing == "1" {
		d.find(Note, "NUMA", fmt.Sprintf("%d nodes, kernel.numa_balancing 1", nodes), "the kernel moves pages of the arena between nodes while they are used", "sysctl kernel.numa_balancing=0; --numa says how memory is placed")
	}
}

// groups are the control groups that this process is in: folders from its own up to the root, per version and controller.
func (h host) groups(controller string) (v2 []string, v1 []string) {
	for line := range strings.Lines(h.text("/proc/self/cgroup")) {
		w := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(w) < 3 {
			continue
		}
		up := func(mount string) (list []string) {
			for g := path.Clean("/" + w[2]); ; g = path.Dir(g) {
				list = append(list, path.Join(mount, g))
				if g == "/" {
					return list
				}
			}
		}
		switch {
		case w[0] == "0" && w[1] == "":
			mount := "/sys/fs/cgroup"
			if len(h.list("/sys/fs/cgroup/unified")) > 0 {
				mount = "/sys/fs/cgroup/unified"
			}
			v2 = up(mount)
		case strings.Contains(","+w[1]+",", ","+controller+","):
			v1 = up(path.Join("/sys/fs/cgroup", controller))
		}
	}
	return v2, v1
}

// smallGroup is a memory limit below which next to nothing is left for experts of a large model.
const smallGroup = 4 << 30

func (d *doctor) examineGroups() {
	limits, err := mem.Limits(d.root)
	if err != nil {
		d.fact("memory limits", "%v", err)
		return
	}
	for _, l := range limits {
		d.fact("memory limit", "%s: %s (%s)", l.By, sizeWord(l.Bytes), l.Where)
		if l.By != "memory" && l.Bytes < smallGroup {
			d.find(Warning, "memory limit", fmt.Sprintf("%s leaves %s (%s)", l.By, sizeWord(l.Bytes), l.Where), "few experts fit: most are read again for every token",
				"raise memory.max or memory.limit_in_bytes of the group (docker run --memory), or ulimit -d")
		}
	}
	v2, v1 := d.groups("cpu")
	online := d.online()
	for _, g := range v2 {
		if w := strings.Fields(d.text(g + "/cpu.max")); len(w) == 2 {
			d.quota(g+"/cpu.max", w[0], w[1], online)
		}
	}
	for _, g := range v1 {
		d.quota(g+"/cpu.cfs_quota_us", d.text(g+"/cpu.cfs_quota_us"), d.text(g+"/cpu.cfs_period_us"), online)
	}
}

func (d *doctor) quota(where, quota, period string, online int) {
	q, err := strconv.ParseFloat(quota, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return
	}
	d.fact("CPU quota", "%.2f of %d (%s)", q/p, online, where)
	if q/p < float64(online) {
		d.find(Note, "CPU quota", fmt.Sprintf("%.2f of %d CPUs (%s)", q/p, online, where), "threads beyond the quota are stopped for the rest of each period", "raise it (docker run --cpus), or leave -t at its default, which keeps to it")
	}
}

// online counts the CPUs of /proc/cpuinfo.
func (h host) online() int {
	n := 0
	for line := range strings.Lines(h.text("/proc/cpuinfo")) {
		if strings.HasPrefix(line, "processor") {
			n++
		}
	}
	return n
}

func (d *doctor) examineCPU() {
	set, why, vector := d.try.cpu()
	d.fact("CPU", "%s, %d online", orNone(d.fields("/proc/cpuinfo")["model name"]), d.online())
	d.fact("kernels", "%s", why)
	if !vector {
		d.find(Bad, "CPU", "kernels "+set+": "+why, "everything is computed ten times slower than with vectors", "a CPU with AVX2 or NEON; in a virtual machine pass its features through (-cpu host)")
	}
	governors, drivers, preferences := map[string]bool{}, map[string]bool{}, map[string]bool{}
	dir := "/sys/devices/system/cpu"
	for _, c := range d.list(dir) {
		if g := d.text(dir + "/" + c + "/cpufreq/scaling_governor"); g != "" {
			governors[g], drivers[d.text(dir+"/"+c+"/cpufreq/scaling_driver")] = true, true
			preferences[d.text(dir+"/"+c+"/cpufreq/energy_performance_preference")] = true
		}
	}
	d.fact("CPU governor", "%s (%s)", words(governors), words(drivers))
	// The drivers below do with "powersave" what others do with "schedutil"; what they prefer is said elsewhere.
	scaled := drivers["intel_pstate"] || drivers["amd-pstate-epp"]
	if governors["powersave"] && (!scaled || preferences["power"]) {
		d.find(Warning, "CPU governor", "powersave", "the CPU stays at a low clock: computing takes up to three times as long", "cpupower frequency-set -g performance (or schedutil)")
	}
}

func (d *doctor) examinePower() {
	const dir = "/sys/class/power_supply"
	for _, s := range d.list(dir) {
		kind, status := d.text(dir+"/"+s+"/type"), d.text(dir+"/"+s+"/status")
		d.fact("power supply", "%s %s %s", s, kind, status)
		if kind == "Battery" && status == "Discharging" && d.text(dir+"/"+s+"/scope") != "Device" {
			d.find(Note, "battery", s+" is discharging", "most machines slow down CPU and disk on battery", "plug it in")
		}
	}
}

func words(set map[string]bool) string {
	var list []string
	for w := range set {
		if w != "" {
			list = append(list, w)
		}
	}
	return orNone(strings.Join(list, ", "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
