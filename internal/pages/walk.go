//go:build unix

package pages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// done is printed behind each command, and shows where its output ends.
const done = "-- the command has ended --"

// Walk types a page's commands into terminals, each a bash of its own that begins as the
// first command is typed there.
type Walk struct {
	Dir     string              // where the terminals begin
	Env     []string            // their whole environment
	User    *syscall.Credential // who types; nil for the user of this process
	Replace map[string]string   // what stands in the page, and what is used instead, such as ports
	Done    func(Step)          // called behind each step whose output is the page's; may be nil
}

// Run types the steps one after another, and waits for the end of each. It returns at the
// first whose output isn't what the page shows, or when ctx ends. All processes that the
// terminals started have been killed when it returns.
func (w Walk) Run(ctx context.Context, steps []Step) (err error) {
	var pairs []string
	for from, to := range w.Replace {
		pairs = append(pairs, from, to)
	}
	replacer := strings.NewReplacer(pairs...)
	terminals := map[string]*terminal{}
	defer func() {
		for _, t := range terminals {
			t.kill()
		}
	}()
	for i, step := range steps {
		t := terminals[step.Terminal]
		if t == nil {
			if t, err = w.open(ctx); err != nil {
				return err
			}
			terminals[step.Terminal] = t
		}
		got, err := t.run(typed(replacer.Replace(step.Input), step.SQL, psqlReads(steps[i:])))
		if err != nil {
			return fmt.Errorf("line %d: %s: %w; so far it says\n%s", step.Line, step.Input, err, got)
		}
		var want []string
		for _, line := range step.Want {
			want = append(want, replacer.Replace(line))
		}
		if !Matches(want, got) {
			return fmt.Errorf("line %d: %s says\n%s\nand the page has\n%s", step.Line, step.Input, got, strings.Join(want, "\n"))
		}
		if w.Done != nil {
			w.Done(step)
		}
	}
	return nil
}

// psqlReads tells whether psql reads what is typed behind the first of these steps: the
// next step in its terminal is for psql.
func psqlReads(steps []Step) bool {
	for _, later := range steps[1:] {
		if later.Terminal == steps[0].Terminal {
			return later.SQL
		}
	}
	return false
}

type terminal struct {
	cmd  *exec.Cmd
	keys io.WriteCloser
	out  *bufio.Reader
}

func (w Walk) open(ctx context.Context) (*terminal, error) {
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = w.Dir, w.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: w.User}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	keys, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &terminal{cmd: cmd, keys: keys, out: bufio.NewReader(out)}, nil
}

// typed returns what is typed for a command so that its end shows. A shell that starts
// psql tells as psql ends: psql may have read more of what is typed than it runs, so nothing
// may stand behind the command that ends it.
func typed(input string, sql, psqlNext bool) string {
	switch {
	case sql && psqlNext:
		return input + "\n\\echo '" + done + "'\n"
	case sql:
		return input + "\n"
	case psqlNext:
		return input + "; echo '" + done + "'\n\\echo '" + done + "'\n"
	}
	return input + "\necho '" + done + "'\n"
}

// run types a command, and returns what is printed until it has ended.
func (t *terminal) run(text string) (output string, err error) {
	if _, err := io.WriteString(t.keys, text); err != nil {
		return "", err
	}
	for {
		line, err := t.out.ReadString('\n')
		if err != nil {
			return output + line, err
		}
		if before, found := strings.CutSuffix(line, done+"\n"); found {
			return output + before, nil
		}
		output += line
	}
}

func (t *terminal) kill() {
	_ = t.keys.Close()
	_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL)
	_ = t.cmd.Wait()
}
