package tests

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a pseudo terminal: what is written to keys is typed at screen.
func terminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return keys, screen
}

// session is a command at a terminal whose output is read as it comes.
type session struct {
	t    *testing.T
	keys io.Writer
	out  *bufio.Reader
}

// until reads up to and with a text, and returns what was before it.
func (s *session) until(text string) string {
	s.t.Helper()
	var b strings.Builder
	for !strings.HasSuffix(b.String(), text) {
		c, err := s.out.ReadByte()
		if err != nil {
			s.t.Fatalf("the output ended with %q, %q did not come", b.String(), text)
		}
		b.WriteByte(c)
	}
	return strings.TrimSuffix(b.String(), text)
}

func (s *session) say(line string) string {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
	return s.until(">>> ")
}

// chatAt begins a chat at a terminal and waits for its first prompt.
func chatAt(t *testing.T, args ...string) (*session, *exec.Cmd) {
	t.Helper()
	keys, screen := terminal(t)
	cmd := exec.Command(program(t), append([]string{"run", "--ram", "min"}, args...)...)
	cmd.Env, cmd.Stdin = environment(t), screen
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	s := &session{t, keys, bufio.NewReader(out)}
	s.until(">>> ")
	return s, cmd
}

func TestChat(t *testing.T) {
	s, cmd := chatAt(t, "--temp", "0", "-c", "128")
	for _, step := range []struct{ line, want string }{
		{"What is the capital of France?", "The capital of France is Paris.\n"},
		{"/show", "answer 9 tokens"},
		{"/set system You are brief.", "conversation cleared"},
		{"/set parameter top_k 1", "top_k = 1"},
		{"/set parameter top_p 7", "must be between 0 and 1"},
		{"/set parameter nosuch 7", "no parameter nosuch"},
		{"/set parameter seed many", "cannot be"},
		{"/set parameter top_k 4.5", "cannot be"},
		{"/set parameter num_predict 2", "num_predict = 2"},
		{"What is the capital of France?", "The capital\n"},
		{"/set parameter num_predict -1", "num_predict = -1"},
		{"/clear", "conversation cleared"},
		{"/help", "/bye"},
		{"", ""},
		{strings.Repeat("a long story ", 300), "or /clear"},
		{"What is the capital of France?", "The capital of France is Paris.\n"},
	} {
		if got := s.say(step.line); !strings.Contains(got, step.want) {
			t.Errorf("%s: %q, want %q", step.line, got, step.want)
		}
	}
	if _, err := io.WriteString(s.keys, "/bye\n"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("/bye: %v", err)
	}
}

// SIGTERM ends the chat, in an answer and between answers.
func TestChatTerminated(t *testing.T) {
	for _, speaking := range []bool{false, true} {
		s, cmd := chatAt(t, "--ignore-eos", "-c", "4096", "-s", "3")
		if speaking {
			io.WriteString(s.keys, "Tell me everything.\n")
			s.until("e")
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, s.out); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("speaking %v: %v, want exit 130", speaking, err)
		}
	}
}

// Ctrl-C ends an answer, not the chat, as often as one likes; Ctrl-D ends the chat.
func TestChatInterrupted(t *testing.T) {
	s, cmd := chatAt(t, "--ignore-eos", "-c", "4096", "-s", "3")
	for range 2 {
		io.WriteString(s.keys, "Tell me everything.\n")
		s.until("e") // it speaks
		s.keys.Write([]byte{3})
		s.until(">>> ")
	}
	for range 3 { // nothing is said
		s.keys.Write([]byte{3})
		if got := s.until(">>> "); !strings.Contains(got, "/bye or Ctrl-D leaves") {
			t.Errorf("Ctrl-C: %q", got)
		}
	}
	if got := s.say("/show"); !strings.Contains(got, "budget") {
		t.Errorf("/show: %q", got)
	}
	s.keys.Write([]byte{4})
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-D: %v", err)
	}
}
