//go:build linux

package incidenttest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// wirefence is a `wirefence proxy`.
type wirefence struct {
	name     string
	url      string // for clients, as the role app
	admin    string // host:port
	settings []string

	cmd  *exec.Cmd
	log  *stack.Log
	over chan struct{}
}

// newProxy starts a proxy with settings, NAME=value. It is ended with the test.
func newProxy(t *testing.T, name string, settings ...string) *wirefence {
	t.Helper()
	var ports [2]int
	for i := range ports {
		port, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = port
	}
	listen := fmt.Sprint("127.0.0.1:", ports[0])
	p := &wirefence{name: name, url: "postgres://app@" + listen + "/postgres?sslmode=disable", admin: fmt.Sprint("127.0.0.1:", ports[1])}
	p.settings = append([]string{"WIREFENCE_LISTEN=" + listen, "WIREFENCE_ADMIN_LISTEN=" + p.admin, "WIREFENCE_HOLDER=" + name,
		"WIREFENCE_TTL=3s", "WIREFENCE_LOG_FORMAT=json"}, settings...)
	p.start(t)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.log)
		}
	})
	return p
}

func (p *wirefence) start(t *testing.T) {
	t.Helper()
	p.cmd, p.log, p.over = exec.Command(binary, "proxy"), &stack.Log{}, make(chan struct{})
	p.cmd.Env = append(os.Environ(), p.settings...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func(cmd *exec.Cmd, over chan struct{}) {
		_ = cmd.Wait()
		close(over)
	}(p.cmd, p.over)
	p.log.Await(t, `"msg":"serving"`)
}

func (p *wirefence) kill() {
	_ = p.cmd.Process.Kill()
	<-p.over
}

func (p *wirefence) restart(t *testing.T) {
	t.Helper()
	p.kill()
	p.start(t)
}

// freeze stops the process, and returns when it has stopped.
func (p *wirefence) freeze(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := servers.AwaitStopped(p.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

func (p *wirefence) thaw(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// awaitLead waits until the sidecar holds its lease.
func (p *wirefence) awaitLead(t *testing.T) {
	t.Helper()
	stack.Eventually(t, p.name+" leads", func() bool {
		answer, err := http.Get("http://" + p.admin + "/readyz?role=leader")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}
