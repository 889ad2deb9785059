package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// answerTime bounds the wait for a worker's answer, which may follow a takeover.
const answerTime = 30 * time.Second

// workerProcess is a worker in the play's hands.
type workerProcess struct {
	name    string
	process *process
	in      io.WriteCloser
	out     *os.File // ends with the process
	answers *json.Decoder
	stderr  *bytes.Buffer
}

// startWorker starts a worker and returns when it is connected.
func startWorker(ctx context.Context, executable string, c workerConfig) (*workerProcess, error) {
	a, err := launchWorker(executable, c)
	if err != nil {
		return nil, err
	}
	if _, err := a.expect(ctx, ready); err != nil {
		a.kill()
		return nil, err
	}
	return a, nil
}

// launchWorker starts a worker and sends it its configuration.
func launchWorker(executable string, c workerConfig) (*workerProcess, error) {
	cmd := exec.Command(executable, "demo", "worker", c.Name)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	a := &workerProcess{name: c.Name, in: in, out: out, answers: json.NewDecoder(out), stderr: new(bytes.Buffer)}
	cmd.Stdout, cmd.Stderr = stdout, a.stderr
	if a.process, err = launch(cmd); err != nil {
		_ = out.Close()
		return nil, err
	}
	_ = json.NewEncoder(in).Encode(c) // if the worker has died, answer reports why
	return a, nil
}

// send sends the worker a line without waiting for its answer. A stopped worker reads it when
// it goes on.
func (a *workerProcess) send(line string) error {
	_, err := io.WriteString(a.in, line+"\n")
	return a.withName(err)
}

// answer waits for the worker's next answer. A worker that gives none in time is killed.
func (a *workerProcess) answer(ctx context.Context) (e event, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = a.process.cmd.Process.Kill() })
	defer stop()
	if a.answers.Decode(&e) == nil {
		return e, nil
	}
	a.kill()
	if ctx.Err() != nil {
		return event{}, a.withName(ctx.Err())
	}
	return event{}, fmt.Errorf("worker %s ended (%s): %s", a.name, a.process.cmd.ProcessState, bytes.TrimSpace(a.stderr.Bytes()))
}

// expect waits for one kind of answer.
func (a *workerProcess) expect(ctx context.Context, kind string) (event, error) {
	e, err := a.answer(ctx)
	if err == nil && e.Event != kind {
		err = a.withName(fmt.Errorf("%s was expected, not %s: %s", kind, e.Event, e))
	}
	return e, err
}

// stop stops the worker with SIGSTOP; resume lets it go on.
func (a *workerProcess) stop() error   { return a.withName(a.process.signal(syscall.SIGSTOP)) }
func (a *workerProcess) resume() error { return a.withName(a.process.signal(syscall.SIGCONT)) }

// endGently lets the worker release its lease and end by itself.
func (a *workerProcess) endGently() {
	_ = a.in.Close()
	a.process.end(5 * time.Second)
}

// kill ends the worker at once, stopped or not. It may be called again, and after endGently.
func (a *workerProcess) kill() {
	_ = a.in.Close()
	a.process.end(0)
	_ = a.out.Close()
}

func (a *workerProcess) withName(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker %s: %w", a.name, err)
}
