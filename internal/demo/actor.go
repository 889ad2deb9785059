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

// patience is how long the play waits for an answer of a worker, a takeover
// included.
const patience = 30 * time.Second

// actor is a worker process as the play sees it.
type actor struct {
	name    string
	process *process
	lines   io.WriteCloser
	cues    *json.Encoder
	events  chan event // closed when the worker's output ends
	stderr  *bytes.Buffer
}

// cast starts a worker and returns when it is connected.
func cast(ctx context.Context, executable string, p part) (*actor, error) {
	a, err := hire(executable, p)
	if err != nil {
		return nil, err
	}
	if _, err := a.expect(ctx, ready); err != nil {
		a.kill()
		return nil, err
	}
	return a, nil
}

// hire starts a worker and gives it its part.
func hire(executable string, p part) (*actor, error) {
	cmd := exec.Command(executable, "demo", "worker", p.Name)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reader, out := io.Pipe()
	a := &actor{name: p.Name, lines: in, cues: json.NewEncoder(in), events: make(chan event, 8), stderr: new(bytes.Buffer)}
	cmd.Stdout, cmd.Stderr = out, a.stderr
	if a.process, err = launch(cmd); err != nil {
		return nil, err
	}
	go func() {
		<-a.process.exited
		out.Close()
	}()
	go a.listen(reader)
	// A worker that has died meanwhile shows by its missing answer, with its
	// reason.
	_ = a.cues.Encode(p)
	return a, nil
}

// listen passes the worker's answers on, until its output ends. It never waits
// for a taker for long: there is one answer for each line that the worker is
// told, and the play tells no more before it has the answer.
func (a *actor) listen(out io.Reader) {
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

// tell gives the worker a cue without waiting for its answer. One that is
// stopped finds it when it goes on.
func (a *actor) tell(c cue) error { return a.blame(a.cues.Encode(c)) }

// answer waits for the worker's next answer, whatever it is.
func (a *actor) answer(ctx context.Context) (event, error) {
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
		return event{}, a.blame(ctx.Err())
	}
}

// expect waits for one kind of answer.
func (a *actor) expect(ctx context.Context, kind string) (event, error) {
	e, err := a.answer(ctx)
	if err == nil && e.Event != kind {
		err = a.blame(fmt.Errorf("%s was expected, not %s: %s", kind, e.Event, e))
	}
	return e, err
}

// stall stops the worker wherever it is; wake lets it go on.
func (a *actor) stall() error { return a.blame(a.process.signal(syscall.SIGSTOP)) }
func (a *actor) wake() error  { return a.blame(a.process.signal(syscall.SIGCONT)) }

// dismiss lets the worker end by itself, with its lease released.
func (a *actor) dismiss() {
	_ = a.lines.Close()
	a.process.end(5 * time.Second)
}

// kill ends the worker at once, stopped or not. It may follow dismiss.
func (a *actor) kill() {
	_ = a.lines.Close()
	a.process.end(0)
}

func (a *actor) blame(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker %s: %w", a.name, err)
}
