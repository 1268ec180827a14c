package uring

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the machine refuses is replaced, and told with the call, the errno and the remedy.
func TestRefused(t *testing.T) {
	needsRing := map[string]bool{"enter EPERM": true, "memlock": true, "memlock ring": true, "register EPERM": true, "register ENOSYS": true}
	for name, want := range map[string][]string{
		"memlock":         {"backend ring fixed false lost 1 right true", "memlock: io_uring_register of 1048576 bytes of buffers: ENOMEM", "RLIMIT_MEMLOCK is 65536 bytes (ulimit -l 64)", "ulimit -l unlimited"},
		"memlock ring":    {"backend ring fixed false lost 1 right true", "memlock: "},
		"setup EPERM":     {"backend pread fixed false lost 1 right true", "io_uring: io_uring_setup: EPERM (operation not permitted)", "a seccomp filter is on", "seccomp=PROFILE"},
		"setup ENOSYS":    {"backend pread fixed false lost 1 right true", "io_uring: io_uring_setup: ENOSYS (function not implemented)", "seccomp=PROFILE"},
		"setup ring":      {"error: backend true, EPERM true: uring: backend ring: io_uring_setup: EPERM", "seccomp=PROFILE"},
		"setup pread":     {"backend pread fixed false lost 0 right true"},
		"enter EPERM":     {"backend pread fixed false lost 1 right true", "io_uring: io_uring_enter: EPERM"},
		"register EPERM":  {"backend ring fixed false lost 1 right true", "io_uring: io_uring_register of 1048576 bytes of buffers: EPERM", "not registered"},
		"register ENOSYS": {"backend ring fixed false lost 1 right true", "io_uring: io_uring_register of 1048576 bytes of buffers: ENOSYS"},
		"probe":           {"io_uring false: io_uring_setup: EPERM", "pread", "seccomp=PROFILE", "memlock ", "huge pages "},
	} {
		t.Run(name, func(t *testing.T) {
			if needsRing[name] {
				needRing(t)
			}
			out := inHelper(t, name)
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in: %s", w, out)
				}
			}
		})
	}
}

// The remedy fits the likely cause.
func TestRemedy(t *testing.T) {
	for _, c := range []struct {
		errno    unix.Errno
		sysctl   string
		filtered bool
		want     string
	}{
		{unix.EPERM, "2", false, "sysctl kernel.io_uring_disabled=0"},
		{unix.EPERM, "1", true, "sysctl kernel.io_uring_disabled=0"},
		{unix.EPERM, "0", true, "seccomp=PROFILE"},
		{unix.EPERM, "", false, "seccomp=PROFILE"},
		{unix.EACCES, "0", false, "seccomp=PROFILE"},
		{unix.ENOSYS, "", true, "seccomp=PROFILE"},
		{unix.ENOSYS, "", false, "Linux 5.6"},
		{unix.EINVAL, "0", false, "Linux 5.6"},
		{unix.ENOMEM, "0", false, "ulimit -l unlimited"},
		{unix.EMFILE, "0", false, "ulimit -n"},
		{unix.EIO, "0", false, "io_uring_setup(2)"},
	} {
		if got := ringRemedy(fmt.Errorf("io_uring_setup: %w", named(c.errno)), c.sysctl, c.filtered); !strings.Contains(got, c.want) {
			t.Errorf("%v, sysctl %q, seccomp %v: %s", c.errno, c.sysctl, c.filtered, got)
		}
	}
}

func TestProbe(t *testing.T) {
	needRing(t)
	all := Probe()
	if len(all) != 3 || all[0].What != "io_uring" || !all[0].OK || all[1].What != "memlock" || all[2].What != "huge pages" {
		t.Errorf("%+v", all)
	}
	for _, f := range all {
		if f.State == "" || f.OK != (f.Consequence == "" && f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
}
