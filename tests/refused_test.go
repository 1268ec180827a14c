package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/seccomp"
)

// takenVariable tells a child of this test what to take from itself before it becomes the program.
const takenVariable = "EPQ_TEST_TAKEN"

// taken are the ways of a machine to refuse something.
var taken = map[string]func() error{
	"io_uring, EPERM":  func() error { return seccomp.Forbid(unix.SYS_IO_URING_SETUP, unix.EPERM) },
	"io_uring, ENOSYS": func() error { return seccomp.Forbid(unix.SYS_IO_URING_SETUP, unix.ENOSYS) },
	"memlock": func() error {
		// What root executes then is without the capability that lifts the limit; other users have none to drop.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil && os.Geteuid() == 0 {
			return err
		}
		return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10})
	},
}

// become executes the arguments as a command that lacks something.
func become(how string) error {
	runtime.LockOSThread() // capabilities are a thread's own
	if err := taken[how](); err != nil {
		return err
	}
	if err := os.Unsetenv(takenVariable); err != nil {
		return err
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// without runs the program on a machine that refuses something.
func without(t *testing.T, how string, args ...string) result {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{program(t)}, args...)...)
	cmd.Env = environment(t, takenVariable+"="+how)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// What the machine refuses is replaced by the next best way: the logits are the same, the exit code is 0, and the second
// line says which call failed with what, and what to do about it.
func TestRefusedByTheMachine(t *testing.T) {
	file := func(name string) string { return filepath.Join(t.TempDir(), name) }
	logits := func(path string, more ...string) []string {
		return append([]string{"logits", "--ram", "min", "--tokens", "1,2,3,5,8,13,21", "--all", "-o", path}, more...)
	}
	want := file("want")
	ok(t, logits(want)...)
	bits, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	for how, c := range map[string]struct {
		backend string
		say     []string
	}{
		"io_uring, EPERM":  {"pread", []string{"without io_uring: io_uring_setup: EPERM", "a seccomp filter is on", "seccomp=PROFILE"}},
		"io_uring, ENOSYS": {"pread", []string{"without io_uring: io_uring_setup: ENOSYS", "seccomp=PROFILE"}},
		"memlock":          {"ring", []string{"without memlock: io_uring_register of ", " bytes of buffers: ENOMEM", "RLIMIT_MEMLOCK is 65536 bytes (ulimit -l 64)", "ulimit -l unlimited"}},
	} {
		t.Run(how, func(t *testing.T) {
			if c.backend == "ring" && os.Getenv("EPQ_NO_RING") != "" {
				t.Skip("EPQ_NO_RING is set: no ring here")
			}
			got := file("got")
			r := without(t, how, logits(got)...)
			lines := strings.Split(strings.TrimSpace(r.err), "\n")
			if r.code != 0 || len(lines) < 2 || !strings.Contains(lines[0], "I/O "+c.backend) {
				t.Fatalf("exit %d: %s", r.code, r.err)
			}
			for i, l := range lines {
				if i != 1 && losses.MatchString(l) {
					t.Errorf("line %d: %q", i+1, l)
				}
			}
			for _, s := range c.say {
				if !strings.Contains(lines[1], s) {
					t.Errorf("%q does not say %q", lines[1], s)
				}
			}
			if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, bits) {
				t.Errorf("other logits, %v", err)
			}
			if disabled, err := os.ReadFile("/proc/sys/kernel/io_uring_disabled"); err == nil && c.backend == "pread" {
				if s := "kernel.io_uring_disabled is " + strings.TrimSpace(string(disabled)); !strings.Contains(lines[1], s) {
					t.Errorf("%q does not say %q", lines[1], s)
				}
			}
		})
	}
	t.Run("asked for", func(t *testing.T) {
		r := without(t, "io_uring, EPERM", logits(file("none"), "--backend", "ring")...)
		if r.code != 1 || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "backend ring: io_uring_setup: EPERM") || !strings.Contains(r.err, "seccomp=PROFILE") {
			t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
		}
	})
}

// doctor and iotest show it too, and iotest measures what a run would use.
func TestRefusalShown(t *testing.T) {
	r := without(t, "io_uring, EPERM", "doctor", "--json", t.TempDir())
	var d struct{ Findings []map[string]string }
	if err := json.Unmarshal([]byte(r.out), &d); err != nil || r.code != 1 {
		t.Fatalf("exit %d, %v: %s%s", r.code, err, r.out, r.err)
	}
	found := false
	for _, f := range d.Findings {
		found = found || f["what"] == "io_uring" && strings.Contains(f["state"], "io_uring_setup: EPERM") && strings.Contains(f["remedy"], "seccomp=PROFILE")
	}
	if !found {
		t.Errorf("findings %v", d.Findings)
	}
	r = without(t, "io_uring, EPERM", "iotest", t.TempDir(), "--create", "--size", "1m", "--runtime", "0.05", "--bs", "64k", "--iodepth", "2", "--json")
	if r.code != 0 || !strings.Contains(r.err, "without io_uring: io_uring_setup: EPERM") || !strings.Contains(r.out, "pread") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}

// A model on tmpfs is read, and it is said that there is no disk below it.
func TestModelInMemory(t *testing.T) {
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if unix.Statfs(shm, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("no tmpfs at " + shm)
	}
	dir, err := os.MkdirTemp(shm, "epq-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	b, err := os.ReadFile(demoModel)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Skip(err) // too small a file system
	}
	r := call{}.run(t, "run", "-m", path, "--ram", "min", "--temp", "0", "What is the capital of France?")
	lines := strings.Split(r.err, "\n")
	if r.code != 0 || r.out != "The capital of France is Paris.\n" || !strings.HasPrefix(lines[1], "without O_DIRECT: ") || !strings.Contains(lines[1], "tmpfs") {
		t.Errorf("exit %d, %q: %s", r.code, r.out, r.err)
	}
}
