package conformance

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// program is a client that is a process, with steps as lines of its input and outcomes as
// lines of its output.
type program struct {
	name     string
	input    io.Writer
	outcomes chan []byte // closed at its end
	log      *stack.Log
}

func launchPython(t *testing.T, w *world, name string) client {
	t.Helper()
	return launch(t, w, name, python, "testdata/driver.py")
}

func launchPsycopg2(t *testing.T, w *world, name string) client {
	t.Helper()
	return launch(t, w, name, python, "testdata/driver.py", "without psycopg 3")
}

func launchRust(t *testing.T, w *world, name string) client {
	t.Helper()
	return launch(t, w, name, filepath.Join(os.Getenv("CARGO_TARGET_DIR"), "debug", "examples", "driver"))
}

func launchTypeScript(t *testing.T, w *world, name string) client {
	t.Helper()
	return launch(t, w, name, "node", filepath.Join(folder, "driver.js"))
}

func launchPostgresJS(t *testing.T, w *world, name string) client {
	t.Helper()
	return launch(t, w, name, "node", filepath.Join(folder, "driver.js"), "without pg")
}

func launch(t *testing.T, w *world, name string, command ...string) client {
	t.Helper()
	w.links[name] = link(t, w.source())
	p := &program{name: name, outcomes: make(chan []byte), log: &stack.Log{}}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stderr = w.environment(name, w.links[name].Addr()), p.log
	var err error
	if p.input, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, written := io.Pipe()
	cmd.Stdout = written
	over := start(t, cmd)
	go func() {
		defer close(p.outcomes)
		lines := bufio.NewScanner(output)
		lines.Buffer(nil, 4*fence.MaxTextBytes)
		for lines.Scan() {
			p.outcomes <- append([]byte(nil), lines.Bytes()...)
		}
	}()
	go func() {
		<-over
		_ = written.Close()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, client %s:\n%s", command[0], name, p.log)
		}
	})
	return p
}

func (p *program) begin(t *testing.T, s step) {
	t.Helper()
	if err := json.NewEncoder(p.input).Encode(s.fields); err != nil {
		t.Fatalf("client %s: %v\n%s", p.name, err, p.log)
	}
}

func (p *program) finish(t *testing.T) (outcome map[string]any) {
	t.Helper()
	select {
	case line, open := <-p.outcomes:
		if !open {
			t.Fatalf("client %s has ended:\n%s", p.name, p.log)
		}
		if err := json.Unmarshal(line, &outcome); err != nil {
			t.Fatalf("client %s: %v: %s", p.name, err, line)
		}
	case <-time.After(stack.Patience):
		t.Fatalf("client %s doesn't answer:\n%s", p.name, p.log)
	}
	return outcome
}
