package mem

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a memory group (cgroup, version 1 or 2) made for one process, below this process's own.
type Group struct {
	dir    string
	limit  string // name of the file with the limit
	peak   string // of the largest use since the group was made
	events string // of the number of processes killed for memory
}

// ErrNoGroup: no memory group can be made here.
var ErrNoGroup = errors.New("no memory group can be made")

// NewGroup makes an empty group whose members may use limit bytes together, page cache and kernel memory included. name
// must be unique among the groups beside it. Close it when its members have ended. The error is an ErrNoGroup.
func NewGroup(name string, limit int64) (*Group, error) { return newGroup("/", name, limit) }

func newGroup(root, name string, limit int64) (*Group, error) {
	var why error
	for _, h := range hierarchies(root) {
		g, err := h.make(root, name, limit)
		if err == nil {
			return g, nil
		}
		if why != nil {
			err = fmt.Errorf("%w; %w", why, err)
		}
		why = err
	}
	if why == nil {
		why = errors.New("no memory controller is mounted")
	}
	return nil, fmt.Errorf("mem: %w: %w: it needs root, or a group handed down to this user (systemd: Delegate=memory)", ErrNoGroup, why)
}

func (h hierarchy) make(root, name string, limit int64) (*Group, error) {
	parent := filepath.Join(root, h.mount, h.inside())
	if _, err := os.Stat(parent); err != nil { // a container that does not see its own group
		parent = filepath.Join(root, h.mount)
	}
	g := &Group{dir: filepath.Join(parent, name), limit: h.limits[0], peak: h.peak, events: h.events}
	err := os.Mkdir(g.dir, 0o755)
	if err != nil {
		return nil, err
	}
	// Without O_CREATE: a file that is not there means that the group above does not hand the controller down.
	f, err := os.OpenFile(filepath.Join(g.dir, g.limit), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.FormatInt(limit, 10))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Members is the file that takes the ids of processes which join; a process writes 0 to join itself.
func (g *Group) Members() string { return filepath.Join(g.dir, "cgroup.procs") }

// Peak is the most the group ever used, in bytes; 0 where the kernel does not say (version 2 before Linux 5.19).
func (g *Group) Peak() int64 {
	n, _ := readNumber("", path.Join(g.dir, g.peak))
	return n
}

// Kills is how many members the kernel killed because of the limit.
func (g *Group) Kills() int64 {
	f, _ := readFields("", path.Join(g.dir, g.events))
	return f["oom_kill"]
}

// Close removes the group. The kernel needs a moment after the last member's end.
func (g *Group) Close() error {
	var err error
	for range 100 {
		err = unix.Rmdir(g.dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("mem: group %s: %w: remove it with rmdir", g.dir, err)
}
