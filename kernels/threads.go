package kernels

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultThreads returns how many workers this process should use, and what decided it: the CPUs it may run on, or the
// CPU time of its control group where that is less. More threads than that would be stopped by the scheduler while the
// others spin.
func DefaultThreads() (int, string) {
	return defaultThreads("/", runtime.NumCPU())
}

func defaultThreads(root string, allowed int) (int, string) {
	threads, why := allowed, fmt.Sprintf("%d CPUs allowed", allowed)
	for _, q := range cpuQuotas(root) {
		if n := max(int(q.cpus), 1); n < threads {
			threads, why = n, fmt.Sprintf("%.2f CPUs by the quota in %s", q.cpus, q.file)
		}
	}
	if fast, slow := hybrid(root); slow > 0 {
		why += fmt.Sprintf("; %d fast and %d slow CPUs: work is split finely, so that slow ones delay an operation by one unit at most", fast, slow)
	}
	return threads, why
}

// quota is the CPU time a control group may use per unit of time.
type quota struct {
	cpus float64
	file string
}

// cpuQuotas returns the limits of this process's control groups and all groups above them, both versions.
func cpuQuotas(root string) []quota {
	var found []quota
	for _, dir := range cgroupDirs(root) {
		f := filepath.Join(dir, "cpu.max")
		if w := strings.Fields(readLine(f)); len(w) == 2 {
			found = appendQuota(found, w[0], w[1], f)
		}
		f = filepath.Join(dir, "cpu.cfs_quota_us")
		found = appendQuota(found, readLine(f), readLine(filepath.Join(dir, "cpu.cfs_period_us")), f)
	}
	return found
}

// appendQuota adds a limit; "max", -1 and files that are not there are none.
func appendQuota(list []quota, limit, period, file string) []quota {
	l, err := strconv.ParseFloat(limit, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err != nil || err2 != nil || l <= 0 || p <= 0 {
		return list
	}
	return append(list, quota{l / p, file})
}

// cgroupDirs returns the folders of the process's groups for CPU time, from the group itself up to the mount.
func cgroupDirs(root string) []string {
	mounts := cgroupMounts(root)
	var dirs []string
	for _, line := range readLines(filepath.Join(root, "proc/self/cgroup")) {
		f := strings.SplitN(line, ":", 3) // number:controllers:path; version 2 has no controllers
		if len(f) != 3 {
			continue
		}
		for _, m := range mounts {
			if m.v2 != (f[1] == "") || !m.v2 && !hasWord(f[1], "cpu") {
				continue
			}
			rel := strings.TrimPrefix(f[2], strings.TrimSuffix(m.root, "/")) // inside a container the mount starts below the real root
			for d := filepath.Clean("/" + rel); ; d = filepath.Dir(d) {
				dirs = append(dirs, filepath.Join(root, m.dir, d))
				if d == "/" {
					break
				}
			}
		}
	}
	return dirs
}

type cgroupMount struct {
	dir, root string
	v2        bool
}

// cgroupMounts reads proc/self/mountinfo (proc(5)): id parent major:minor root dir options ... - type source superoptions.
func cgroupMounts(root string) []cgroupMount {
	var mounts []cgroupMount
	for _, line := range readLines(filepath.Join(root, "proc/self/mountinfo")) {
		head, tail, ok := strings.Cut(line, " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(h) < 5 || len(t) < 3 {
			continue
		}
		if t[0] == "cgroup2" || t[0] == "cgroup" && hasWord(t[2], "cpu") {
			mounts = append(mounts, cgroupMount{dir: h[4], root: h[3], v2: t[0] == "cgroup2"})
		}
	}
	return mounts
}

// hybrid counts the CPUs of the fastest kind and the others; slow is 0 where all are equal or the system does not say.
func hybrid(root string) (fast, slow int) {
	speeds := map[int]int{}
	best := 0
	names, _ := filepath.Glob(filepath.Join(root, "sys/devices/system/cpu/cpu[0-9]*"))
	for _, n := range names {
		s := cpuSpeed(n)
		speeds[s]++
		best = max(best, s)
	}
	for s, n := range speeds {
		if isFast(s, best) {
			fast += n
		} else {
			slow += n
		}
	}
	return fast, slow
}

// cpuSpeed is a number to compare CPUs of one machine by: capacity (ARM, recent x86 hybrids), else the highest clock.
func cpuSpeed(dir string) int {
	for _, f := range []string{"cpu_capacity", "acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"} {
		if n, err := strconv.Atoi(readLine(filepath.Join(dir, f))); err == nil {
			return n
		}
	}
	return 0
}

// startCPUs are the CPUs allowed to the process when it started, before any thread was bound.
var startCPUs = func() (set unix.CPUSet) {
	_ = unix.SchedGetaffinity(0, &set) // refused: no CPU is known, and nothing will be bound
	return set
}()

// AllowedCPUs returns the CPUs this process may run on, in the order workers should take them: first threads of cores
// before second ones, among these fast cores before slow ones.
func AllowedCPUs() []int {
	var cpus []int
	speed, best := map[int]int{}, 0
	for c := range len(startCPUs) * 64 {
		if startCPUs.IsSet(c) {
			cpus = append(cpus, c)
			speed[c] = cpuSpeed(cpuDir(c))
			best = max(best, speed[c])
		}
	}
	rank := func(c int) (n int) {
		if siblingRank(cpuDir(c), c) > 0 {
			n = 2
		}
		if !isFast(speed[c], best) {
			n++
		}
		return n
	}
	sort.SliceStable(cpus, func(i, j int) bool { return rank(cpus[i]) < rank(cpus[j]) })
	return cpus
}

func cpuDir(cpu int) string { return fmt.Sprintf("/sys/devices/system/cpu/cpu%d", cpu) }

// isFast tells fast cores from slow ones; turbo limits of equal cores differ by a few per cent.
func isFast(speed, best int) bool { return speed*10 >= best*9 }

// siblingRank is 0 for the first hardware thread of a core, 1 for the others.
func siblingRank(dir string, cpu int) int {
	list := readLine(filepath.Join(dir, "topology/thread_siblings_list")) // "0,4" or "0-1"
	digits := strings.IndexFunc(list+",", func(r rune) bool { return r < '0' || r > '9' })
	if first, err := strconv.Atoi(list[:digits]); err != nil || first == cpu {
		return 0
	}
	return 1
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

func readLine(file string) string {
	b, _ := os.ReadFile(file)
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return strings.TrimSpace(string(line))
}

func readLines(file string) []string {
	b, _ := os.ReadFile(file)
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}
