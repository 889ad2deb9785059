//go:build linux

package faulttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is a client process.
type process struct {
	settings
	lane int
	cmd  *exec.Cmd
	in   io.Closer
	over chan struct{} // closed when it has ended and all of its records were read

	// Owned by the reading goroutine until over.
	records []record
	err     error
	errors  bytes.Buffer // its standard error
}

// startClient starts a client and calls told with each record, in the reading goroutine.
func startClient(s settings, lane int, told func(record)) (*process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	p := &process{settings: s, lane: lane, cmd: exec.Command(os.Args[0]), over: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), clientVariable+"="+string(text))
	p.cmd.Stderr = &p.errors
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.over)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r record
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				p.err = fmt.Errorf("%s said %q: %w", s.Name, lines.Text(), err)
				_ = p.cmd.Process.Kill()
				break
			}
			p.records = append(p.records, r)
			told(r)
		}
		err, said := p.cmd.Wait(), p.errors.String()
		bySignal := !p.cmd.ProcessState.Exited()
		if raced := strings.Contains(said, "DATA RACE"); p.err == nil && (raced || err != nil && !bySignal) {
			p.err = fmt.Errorf("%s: %w: %s", s.Name, err, said)
		}
	}()
	return p, nil
}

// stall and resume stop the process and let it go on.
func (p *process) stall()  { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// kill ends the process wherever it is.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.over
}

// stop lets the process come to its end.
func (p *process) stop() {
	_ = p.in.Close()
	p.resume()
	select {
	case <-p.over:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}
