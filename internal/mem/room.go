package mem

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// Limit is how much memory this process may use, and what says so.
type Limit struct {
	Bytes   int64
	By      string // "cgroup", "rlimit" or "memory"
	Where   string // the group, the name of the rlimit, or "MemAvailable"
	Charged bool   // page cache and kernel memory count too (cgroup); else anonymous memory alone
}

// ErrNoLimit: not even the size of the machine's memory could be read.
var ErrNoLimit = errors.New("no memory limit can be read")

// Limits returns the limits on this process, at least one; ErrNoLimit otherwise: memory groups of version 1 and 2 from its
// own up to the root, RLIMIT_DATA, and what the machine has available less an eighth of its RAM, which is left to everybody
// else. What a group leaves is its limit beside other members' memory; page cache and reclaimable slab do not count as
// used, for the kernel drops them when asked.
//
// root is put before every path: "" is the real system, a folder with proc and sys below it a made-up one.
func Limits(root string) ([]Limit, error) {
	if root == "" {
		root = "/"
	}
	info, _ := readFields(root, "/proc/meminfo")
	total := info["MemTotal"]
	all := groupLimits(root, total)
	if l, ok := dataLimitUnder(root); ok {
		all = append(all, l)
	}
	if avail, ok := info["MemAvailable"]; ok {
		all = append(all, Limit{Bytes: max(0, avail-total/8), By: "memory", Where: "MemAvailable"})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("mem: %w: no /proc/meminfo, no cgroup, no RLIMIT_DATA: give --ram a size", ErrNoLimit)
	}
	return all, nil
}

// dataLimitUnder reads RLIMIT_DATA from /proc/self/limits: "Max data size  SOFT  HARD  bytes".
func dataLimitUnder(root string) (Limit, bool) {
	text, err := readText(root, "/proc/self/limits")
	if err != nil {
		return Limit{}, false
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max data size")
		if !ok {
			continue
		}
		if w := strings.Fields(rest); len(w) > 0 {
			if n, err := strconv.ParseInt(w[0], 10, 64); err == nil {
				return Limit{Bytes: n, By: "rlimit", Where: "RLIMIT_DATA"}, true
			}
		}
	}
	return Limit{}, false
}

// hierarchy is a mounted tree of memory groups and the file names of its version.
type hierarchy struct {
	mount  string // where it is mounted
	top    string // the group that the mount shows as its root
	group  string // ours, from the root of the hierarchy
	limits []string
	used   string
	drop   []string // fields of memory.stat that count as used and can be dropped
	peak   string
	events string // the file with a line oom_kill
}

// groupLimits returns a limit for every group between ours and the root that has one below the machine's memory.
func groupLimits(root string, total int64) []Limit {
	own, _ := readFields(root, "/proc/self/status")
	var all []Limit
	for _, h := range hierarchies(root) {
		for g := h.inside(); ; g = path.Dir(g) {
			if l, ok := h.limit(root, g, own["RssAnon"], total); ok {
				all = append(all, l)
			}
			if g == "/" {
				break
			}
		}
	}
	return all
}

// inside returns our group as a path below the mount. A container may see its own group as the root of the mount while
// /proc/self/cgroup still speaks of the whole hierarchy.
func (h hierarchy) inside() string {
	if rest, ok := strings.CutPrefix(h.group, h.top); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return path.Clean("/" + h.group)
}

func (h hierarchy) limit(root, group string, own, total int64) (Limit, bool) {
	dir := path.Join(h.mount, group)
	bytes, where := int64(0), ""
	for _, name := range h.limits {
		n, ok := readNumber(root, path.Join(dir, name))
		if ok && (where == "" || n < bytes) {
			bytes, where = n, group
		}
	}
	if where == "" || total > 0 && bytes >= total {
		return Limit{}, false
	}
	return Limit{Bytes: h.room(root, dir, bytes, own), By: "cgroup", Where: where, Charged: true}, true
}

// room takes from a group's limit what cannot be dropped and is not our own anonymous memory (which a plan counts).
func (h hierarchy) room(root, dir string, limit, own int64) int64 {
	used, ok := readNumber(root, path.Join(dir, h.used))
	if !ok {
		return limit
	}
	stat, _ := readFields(root, path.Join(dir, "memory.stat"))
	for _, name := range h.drop {
		used -= stat[name]
	}
	return max(0, limit-max(0, used-own))
}

// readNumber reads a file of one number; "max" and what is no number is none.
func readNumber(root, name string) (int64, bool) {
	text, err := readText(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil
}

// hierarchies finds our memory groups in /proc/self/cgroup: lines "ID:CONTROLLERS:GROUP", version 2 has ID 0 and no
// controllers.
func hierarchies(root string) []hierarchy {
	text, _ := readText(root, "/proc/self/cgroup")
	mounts, _ := readText(root, "/proc/self/mountinfo")
	var all []hierarchy
	for line := range strings.Lines(text) {
		w := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(w) < 3:
		case w[0] == "0" && w[1] == "":
			h := hierarchy{mount: "/sys/fs/cgroup", top: "/", group: w[2], limits: []string{"memory.max", "memory.high"},
				used: "memory.current", drop: []string{"inactive_file", "active_file", "slab_reclaimable"},
				peak: "memory.peak", events: "memory.events"}
			h.find(mounts, "cgroup2", "")
			all = append(all, h)
		case hasWord(w[1], "memory"):
			h := hierarchy{mount: "/sys/fs/cgroup/memory", top: "/", group: w[2], limits: []string{"memory.limit_in_bytes"},
				used: "memory.usage_in_bytes", drop: []string{"total_inactive_file", "total_active_file"},
				peak: "memory.max_usage_in_bytes", events: "memory.oom_control"}
			h.find(mounts, "cgroup", "memory")
			all = append(all, h)
		}
	}
	return all
}

// find corrects the usual place of the mount by what /proc/self/mountinfo says (proc(5)): fields 4 and 5 are the root
// and the mount point, the type and the options of the file system follow after a field "-".
func (h *hierarchy) find(mounts, kind, controller string) {
	for line := range strings.Lines(mounts) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 || r[0] != kind {
			continue
		}
		if controller == "" || hasWord(r[2], controller) {
			h.top, h.mount = l[3], l[4]
			return
		}
	}
}

// hasWord finds w in a list with commas.
func hasWord(list, w string) bool { return strings.Contains(","+list+",", ","+w+",") }
