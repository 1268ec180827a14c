package uring

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/mem"
)

// Feature is one thing that fast reading wants of the kernel and its limits, in words.
type Feature struct {
	What        string // "io_uring", "memlock", "huge pages" as in Loss
	OK          bool
	State       string // what was found, with numbers
	Consequence string // what it means when not OK
	Remedy      string // how to change it
}

// Probe asks the kernel, by trying where that is cheap. O_DIRECT is a matter of each file: see OpenFiles.
func Probe() []Feature {
	return []Feature{probeRing(), probeMemlock(), probeHugePages()}
}

func probeRing() Feature {
	f := Feature{What: "io_uring", Consequence: "experts are read with pread by 4 threads, at up to three times the CPU"}
	for i, flags := range setupFlags {
		r, err := openRing(8, []uint32{flags})
		if err != nil {
			why := refuse(err)
			f.State, f.Remedy = why.err.Error(), why.remedy
			continue
		}
		_ = r.close()
		f.OK, f.Consequence, f.Remedy = true, "", ""
		f.State = [...]string{"allowed, with SINGLE_ISSUER and DEFER_TASKRUN", "allowed, with COOP_TASKRUN (Linux 6.1 would be faster)",
			"allowed, without DEFER_TASKRUN (Linux 6.1 would be faster)"}[i]
		break
	}
	return f
}

func probeMemlock() Feature {
	f := Feature{What: "memlock", OK: true, State: memlock(), Consequence: "an arena above it is not registered: reads cost up to twice the CPU", Remedy: memlockRemedy}
	if n, ok := memlockLimit(); ok && n < 1<<30 {
		f.OK = false
	} else {
		f.Consequence, f.Remedy = "", ""
	}
	return f
}

func probeHugePages() Feature {
	if err := mem.HugePages(); err != nil {
		return Feature{What: "huge pages", State: err.Error(), Consequence: "half the bandwidth and three times the CPU for reads into small pages",
			Remedy: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"}
	}
	return Feature{What: "huge pages", OK: true, State: "given to those who ask"}
}

// refusal says why there is no ring.
type refusal struct {
	err    error // the call and the errno
	remedy string
}

func (r *refusal) loss() Loss {
	return Loss{What: "io_uring", Reason: r.err.Error() + "; reading with pread and threads", Remedy: r.remedy}
}

// refuse finds the likely cause of an errno of io_uring_setup or of the first io_uring_enter.
func refuse(err error) *refusal {
	sysctl := ""
	if text, e := os.ReadFile("/proc/sys/kernel/io_uring_disabled"); e == nil {
		sysctl = strings.TrimSpace(string(text))
	}
	if sysctl != "" {
		err = fmt.Errorf("%w, kernel.io_uring_disabled is %s", err, sysctl)
	}
	filtered := hasFilter()
	if filtered {
		err = fmt.Errorf("%w, a seccomp filter is on", err)
	}
	return &refusal{err: err, remedy: ringRemedy(err, sysctl, filtered)}
}

func ringRemedy(err error, sysctl string, filtered bool) string {
	const profile = "let the container's security profile allow io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt seccomp=PROFILE)"
	switch {
	case (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)) && (sysctl == "1" || sysctl == "2"):
		return "sysctl kernel.io_uring_disabled=0"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS) && filtered:
		return profile
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		return "use Linux 5.6 or later, 6.1 at best, built with CONFIG_IO_URING"
	case errors.Is(err, unix.ENOMEM):
		return memlockRemedy
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "raise the number of open files (ulimit -n)"
	}
	return "see io_uring_setup(2) for this error"
}

// unregistered is the loss of registered buffers or files: plain reads do the work.
func unregistered(err error) Loss {
	if errors.Is(err, unix.ENOMEM) {
		return Loss{What: "memlock", Reason: err.Error() + ", " + memlock() + "; reading into memory that is not registered", Remedy: memlockRemedy}
	}
	why := refuse(err)
	return Loss{What: "io_uring", Reason: why.err.Error() + "; reading with it, but not registered", Remedy: why.remedy}
}

const memlockRemedy = "raise it: ulimit -l unlimited (limits.conf: memlock), LimitMEMLOCK=infinity in a unit, docker run --ulimit memlock=-1, or give CAP_IPC_LOCK"

// memlock tells the limit on locked memory in words.
func memlock() string {
	n, limited := memlockLimit()
	switch {
	case limited:
		return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes (ulimit -l %d)", n, n>>10)
	case hasLockCapability():
		return "RLIMIT_MEMLOCK does not bind (CAP_IPC_LOCK)"
	}
	return "RLIMIT_MEMLOCK is unlimited"
}

// memlockLimit is the number of bytes this process may register, if there is such a limit.
func memlockLimit() (int64, bool) {
	var l unix.Rlimit
	if hasLockCapability() || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	return int64(min(l.Cur, 1<<62)), true
}

// hasLockCapability looks for CAP_IPC_LOCK (bit 14), which lifts the limit.
func hasLockCapability() bool {
	caps, err := strconv.ParseUint(statusField("CapEff:"), 16, 64)
	return err == nil && caps>>unix.CAP_IPC_LOCK&1 == 1
}

// hasFilter says whether a seccomp filter watches this process's system calls.
func hasFilter() bool { return statusField("Seccomp:") == "2" }

// statusField reads one field of /proc/self/status.
func statusField(name string) string {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
