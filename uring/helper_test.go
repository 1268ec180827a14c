package uring

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/epq-uring/epq-uring/internal/seccomp"
)

// TestMain runs the tests, or when told so by the environment a part of one in a process of its own, where a limit or a
// filter is put on that cannot be taken off again.
func TestMain(m *testing.M) {
	if name := os.Getenv("EPQ_URING_HELPER"); name != "" {
		if err := helpers[name](); err != nil {
			fmt.Println("helper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var helpers = map[string]func() error{
	"memlock":         func() error { return describe(limitMemlock, "auto") },
	"memlock ring":    func() error { return describe(limitMemlock, "ring") },
	"setup EPERM":     func() error { return describe(forbid(unix.SYS_IO_URING_SETUP, unix.EPERM), "auto") },
	"setup ENOSYS":    func() error { return describe(forbid(unix.SYS_IO_URING_SETUP, unix.ENOSYS), "auto") },
	"setup ring":      func() error { return describe(forbid(unix.SYS_IO_URING_SETUP, unix.EPERM), "ring") },
	"setup pread":     func() error { return describe(forbid(unix.SYS_IO_URING_SETUP, unix.EPERM), "pread") },
	"enter EPERM":     func() error { return describe(forbid(unix.SYS_IO_URING_ENTER, unix.EPERM), "auto") },
	"register EPERM":  func() error { return describe(forbid(unix.SYS_IO_URING_REGISTER, unix.EPERM), "auto") },
	"register ENOSYS": func() error { return describe(forbid(unix.SYS_IO_URING_REGISTER, unix.ENOSYS), "auto") },
	"probe":           func() error { return describeProbe(forbid(unix.SYS_IO_URING_SETUP, unix.EPERM)) },
}

// noRing is set where the tests run on a machine that is known to refuse io_uring. Without it a refusal is a failure: a
// machine must not test pread alone in silence.
const noRing = "EPQ_NO_RING"

func needRing(t *testing.T) {
	t.Helper()
	if os.Getenv(noRing) != "" {
		t.Skip(noRing + " is set: no ring here")
	}
}

// inHelper runs a helper and returns what it printed.
func inHelper(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "EPQ_URING_HELPER="+name, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("helper %s: %v: %s", name, err, out)
	}
	return string(out)
}

// describe reads a file through a device opened under a restriction, and prints what was got and lost.
func describe(restrict func() error, backend string) error {
	runtime.LockOSThread()
	const size = 1 << 20
	f, err := os.CreateTemp("", "model")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(strings.Repeat("expert! ", size/8)); err != nil {
		return err
	}
	files, err := OpenFiles([]string{f.Name()}, DirectOff)
	if err != nil {
		return err
	}
	region := make([]byte, size)
	if err := restrict(); err != nil {
		return err
	}
	d, err := Open(files, [][]byte{region}, Options{Backend: backend})
	if err != nil {
		fmt.Printf("error: backend %v, EPERM %v: %v\n", errors.Is(err, ErrBackend), errors.Is(err, unix.EPERM), err)
		return nil
	}
	if n, err := d.Submit([]Read{{Length: size, Need: size}}); n != 1 || err != nil {
		return fmt.Errorf("submit: %d, %w", n, err)
	}
	var done [1]Done
	if n, err := d.Wait(1, done[:]); n != 1 || err != nil || done[0].Err != nil {
		return fmt.Errorf("wait: %d, %w, %w", n, err, done[0].Err)
	}
	l := d.Limits()
	fmt.Printf("backend %s fixed %v lost %d right %v\n", l.Backend, l.Fixed, len(l.Lost), string(region[size-8:]) == "expert! ")
	for _, lost := range l.Lost {
		fmt.Printf("%s: %s. %s\n", lost.What, lost.Reason, lost.Remedy)
	}
	return d.Close()
}

func describeProbe(restrict func() error) error {
	if err := restrict(); err != nil {
		return err
	}
	for _, f := range Probe() {
		fmt.Printf("%s %v: %s; %s; %s\n", f.What, f.OK, f.State, f.Consequence, f.Remedy)
	}
	return nil
}

// limitMemlock makes this process one of an ordinary user with 64 KiB of lockable memory.
func limitMemlock() error {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := syscall.Setgid(65534); err != nil {
		return err
	}
	return syscall.Setuid(65534) // takes the capabilities along
}

// forbid is seccomp.Forbid for later.
func forbid(call int, errno unix.Errno) func() error {
	return func() error { return seccomp.Forbid(call, errno) }
}
