package iotest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoDisk: a file lies on no block device that the kernel shows.
var ErrNoDisk = errors.New("no disk")

// host reads the kernel's files; root is put before every path, "" for the real ones.
type host struct{ root string }

// text reads a small file without the white space around; "" if it cannot be read.
func (h host) text(path string) string {
	b, err := os.ReadFile(filepath.Join("/", h.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number reads a file of one number.
func (h host) number(path string) (int64, bool) {
	n, err := strconv.ParseInt(h.text(path), 10, 64)
	return n, err == nil
}

// list names what is in a folder.
func (h host) list(path string) []string {
	entries, err := os.ReadDir(filepath.Join("/", h.root, path))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// disk is a whole block device: the part that a file lies on belongs to it.
type disk struct {
	name   string // as in /sys/block
	dir    string // its folder below /sys, without root
	device string // MAJOR:MINOR, of the whole
}

// diskOf finds the disk of a mount: by its number, or, for file systems with a number of their own, by the device's name.
func (h host) diskOf(m mount) (disk, error) {
	link := "/sys/dev/block/" + m.device
	if strings.HasPrefix(m.device, "0:") {
		link = "/sys/class/block/" + filepath.Base(m.source)
	}
	root, err := filepath.EvalSymlinks(filepath.Join("/", h.root))
	if err != nil {
		return disk{}, fmt.Errorf("iotest: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(root, link))
	if err != nil {
		return disk{}, fmt.Errorf("iotest: %s (%s, %s): %w", m.source, m.kind, m.device, ErrNoDisk)
	}
	if rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(root, "/")); ok {
		dir = rest
	}
	if h.text(dir+"/partition") != "" {
		dir = filepath.Dir(dir)
	}
	return disk{name: filepath.Base(dir), dir: dir, device: h.text(dir + "/dev")}, nil
}

// identity tells one disk from another, as far as the kernel knows it.
func (h host) identity(d disk) string {
	w := []string{d.name}
	for _, f := range []string{"device/model", "device/serial", "serial", "wwid", "dm/name", "loop/backing_file"} {
		if s := h.text(d.dir + "/" + f); s != "" {
			w = append(w, strings.Join(strings.Fields(s), " "))
		}
	}
	return strings.Join(append(w, h.text(d.dir+"/size")+" sectors"), ", ")
}

// mount is where a file system is mounted.
type mount struct {
	device  string // MAJOR:MINOR
	at      string
	kind    string
	source  string
	options string
}

// mounts reads /proc/self/mountinfo (proc(5)).
func (h host) mounts() []mount {
	var all []mount
	for line := range strings.Lines(h.text("/proc/self/mountinfo")) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			continue
		}
		m := mount{device: l[2], at: unescape(l[4]), kind: r[0], source: unescape(r[1]), options: l[5]}
		if len(r) > 2 {
			m.options += "," + r[2]
		}
		all = append(all, m)
	}
	return all
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountOf finds the mount that an absolute path without links lies in: the longest one above it, of equals the last.
func (h host) mountOf(path string) (mount, bool) {
	var best mount
	found := false
	for _, m := range h.mounts() {
		if below(path, m.at) && (!found || len(m.at) >= len(best.at)) {
			best, found = m, true
		}
	}
	return best, found
}

func below(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

// kernel is the release of the running kernel.
func (h host) kernel() string { return h.text("/proc/sys/kernel/osrelease") }

// place is a file's mount and disk.
func (h host) place(path string) (mount, disk, error) {
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return mount{}, disk{}, fmt.Errorf("iotest: %w", err)
	}
	m, ok := h.mountOf(real)
	if !ok {
		return m, disk{}, fmt.Errorf("iotest: %s: in no mount of /proc/self/mountinfo: %w", real, ErrNoDisk)
	}
	if h.root == "" { // several file systems may be mounted over each other: the file's own number decides
		var st unix.Stat_t
		if unix.Stat(real, &st) == nil && unix.Major(st.Dev) != 0 {
			m.device = fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
		}
	}
	d, err := h.diskOf(m)
	return m, d, err
}
