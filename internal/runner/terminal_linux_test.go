package runner

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inTerminal starts the helper as a session leader on a new terminal, and returns the terminal's
// other end.
func inTerminal(t *testing.T, script string) (*exec.Cmd, *os.File, func(want string)) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	cmd := exec.Command(os.Args[0], terminalHelper, "sh", "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(control)
	return cmd, control, func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if strings.Contains(line, want) {
				return
			}
			if err != nil {
				t.Fatalf("no %q: %v", want, err)
			}
			t.Logf("terminal: %q", line)
		}
	}
}

func TestTheCommandHasTheTerminal(t *testing.T) {
	cmd, keys, want := inTerminal(t, `echo ready; read -r line; echo "got <$line>"; while :; do sleep 0.05; done`)
	want("ready")
	fmt.Fprintln(keys, "hello")
	want("got <hello>")
	fmt.Fprint(keys, "\x03") // Control-C
	want("exit 130, <nil>, foreground true")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestControlZStopsTheRunToo(t *testing.T) {
	cmd, keys, want := inTerminal(t, `read -r line; echo "got <$line>"; read -r line; echo "got <$line>"`)
	fmt.Fprintln(keys, "once")
	want("got <once>")       // so it has the terminal by now
	fmt.Fprint(keys, "\x1a") // Control-Z
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("%v, %v", status, err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(keys, "again")
	want("got <again>")
	want("exit 0, <nil>, foreground true")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
