//go:build linux

package faulttest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// sidecar is a `wirefence proxy` that competes for the lease of the resource.
type sidecar struct {
	name string
	addr string
	cmd  *exec.Cmd
	log  stack.Log
	over chan struct{}
}

// binary is the program, built once and removed by TestMain.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wf-faulttest-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "wirefence")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/wirefence/wirefence/cmd/wirefence").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	built = dir
	return path, nil
})

var built string // the folder of binary, "" if there is none

// startSidecar starts a sidecar with settings, NAME=value. It is ended with the test.
func startSidecar(t *testing.T, name string, settings ...string) *sidecar {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{name: name, addr: fmt.Sprint("127.0.0.1:", port), cmd: exec.Command(path, "proxy"), over: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), append(settings, "WIREFENCE_LISTEN="+s.addr, "WIREFENCE_ADMIN_LISTEN=off",
		"WIREFENCE_LEASE="+string(resource), "WIREFENCE_HOLDER="+name, "WIREFENCE_LOG_FORMAT=json")...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.over)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.over
	})
	s.log.Await(t, `"msg":"serving"`)
	return s
}

// grants returns the tokens that the sidecar reports as granted, in order.
func (s *sidecar) grants() (all []fence.Token) {
	for line := range strings.Lines(s.log.String()) {
		var entry struct {
			Message string `json:"msg"`
			Token   fence.Token
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "holding the lease" {
			all = append(all, entry.Token)
		}
	}
	return all
}

// ended says whether the process has ended.
func (s *sidecar) ended() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// drain ends the sidecar as a rollout does, which releases the lease.
func (s *sidecar) drain() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-s.over
	return nil
}
