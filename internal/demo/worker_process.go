package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// patience bounds the wait for a worker's answer, which may follow a takeover.
const patience = 30 * time.Second

// workerProcess is a worker, as the play sees it.
type workerProcess struct {
	name     string
	process  *process
	lines    io.WriteCloser
	commands *json.Encoder
	events   chan event // closed when the worker's output ends
	stderr   *bytes.Buffer
}

// startWorker starts a worker and returns when it is connected.
func startWorker(ctx context.Context, executable string, p workerConfig) (*workerProcess, error) {
	a, err := launchWorker(executable, p)
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
func launchWorker(executable string, p workerConfig) (*workerProcess, error) {
	cmd := exec.Command(executable, "demo", "worker", p.Name)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reader, out := io.Pipe()
	a := &workerProcess{name: p.Name, lines: in, commands: json.NewEncoder(in), events: make(chan event, 8), stderr: new(bytes.Buffer)}
	cmd.Stdout, cmd.Stderr = out, a.stderr
	if a.process, err = launch(cmd); err != nil {
		return nil, err
	}
	go func() {
		<-a.process.exited
		out.Close()
	}()
	go a.listen(reader)
	// If the worker has died meanwhile, answer reports why.
	_ = a.commands.Encode(p)
	return a, nil
}

// listen passes the worker's answers on, until its output ends. It never waits
// for a taker for long: there is one answer for each line that the worker is
// told, and the play tells no more before it has the answer.
func (a *workerProcess) listen(out io.Reader) {
	defer close(a.events)
	for answers := json.NewDecoder(out); ; {
		var e event
		if answers.Decode(&e) != nil {
			_, _ = io.Copy(io.Discard, out)
			return
		}
		a.events <- e
	}
}

// tell sends the worker a command without waiting for its answer. A stopped worker reads
// it when it goes on.
func (a *workerProcess) tell(c command) error { return a.withName(a.commands.Encode(c)) }

// answer waits for the worker's next answer.
func (a *workerProcess) answer(ctx context.Context) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case e, ok := <-a.events:
		if !ok {
			<-a.process.exited
			return event{}, fmt.Errorf("worker %s ended (%s): %s", a.name, a.process.cmd.ProcessState, bytes.TrimSpace(a.stderr.Bytes()))
		}
		return e, nil
	case <-ctx.Done():
		return event{}, a.withName(ctx.Err())
	}
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
	_ = a.lines.Close()
	a.process.end(5 * time.Second)
}

// kill ends the worker at once, stopped or not. It may follow endGently.
func (a *workerProcess) kill() {
	_ = a.lines.Close()
	a.process.end(0)
}

func (a *workerProcess) withName(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker %s: %w", a.name, err)
}
