package drivertest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runner runs a driver's program for one way and returns its lines.
type runner func(t *testing.T, w way) []string

// perRun is how long a program may take for one way.
const perRun = 2 * time.Minute

// process is a program that runs once for all ways of its driver: a runtime's
// start would take longer than what it does. A line with the way's fields,
// parted by tabs, starts a run; the program answers by its lines and a dot.
type process struct {
	command string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	errs    *bytes.Buffer
}

// launch starts a program, which ends with the test.
func launch(t *testing.T, env []string, command string, args ...string) runner {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Env = append(os.Environ(), env...)
	p := &process{command: command, cmd: cmd, errs: &bytes.Buffer{}}
	cmd.Stderr = p.errs
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.in.Close() // the program ends at the end of its input
		killer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer killer.Stop()
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("%s: %v\n%s", command, err, p.errs)
		}
	})
	return p.run
}

// environment is what all programs get. ROOT_CERT is the file of the authority
// that they believe.
func environment(root string) []string {
	return []string{
		"PGHOST=127.0.0.1", "PGUSER=" + role, "PGPASSWORD=" + password, "ROOT_CERT=" + root,
		"LC_ALL=C.UTF-8", "PGTZ=UTC", "PYTHONDONTWRITEBYTECODE=1",
	}
}

// fields are a way's, in the order in which programs read them.
func (w way) fields() []string {
	return []string{w.port, strconv.Itoa(w.rig.Port), w.rig.db, string(w.sec), w.options(), w.set(), w.comment()}
}

func (p *process) run(t *testing.T, w way) (lines []string) {
	t.Helper()
	killer := time.AfterFunc(perRun, func() { _ = p.cmd.Process.Kill() })
	defer killer.Stop()
	if _, err := fmt.Fprintln(p.in, strings.Join(w.fields(), "\t")); err != nil {
		t.Fatalf("%s: %v\n%s", p.command, err, p.errs)
	}
	for p.out.Scan() {
		if p.out.Text() == "." {
			return lines
		}
		lines = append(lines, p.out.Text())
	}
	_ = p.cmd.Wait() // its error output is complete only now
	t.Fatalf("%s, %s: the program ended, or took longer than %s, behind\n%s\n%s", p.command, w.name, perRun, strings.Join(lines, "\n"), p.errs)
	return nil
}
