package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == terminalHelper {
		os.Exit(runInTerminal())
	}
	goleak.VerifyTestMain(m)
}

// terminalHelper as an argument makes the test binary Run the command in the further arguments,
// in the foreground of its terminal.
const terminalHelper = "run-in-terminal"

func runInTerminal() int {
	own := unix.Getpgrp()
	exit, err := Run(context.Background(), newHeld(), os.Args[2:], Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	foreground, _ := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	fmt.Printf("exit %d, %v, foreground %v\n", exit, err, foreground == own)
	return 0
}

// held is a lease that the test ends.
type held struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu        sync.Mutex
	until     time.Time
	releases  int // kept ones, too
	keeps     int
	onRelease func() error
}

func newHeld() *held {
	h := &held{until: time.Now().Add(time.Hour)}
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	return h
}

// lose ends the lease, which another holder can get after a time.
func (h *held) lose(remaining time.Duration) {
	h.mu.Lock()
	h.until = time.Now().Add(remaining)
	h.mu.Unlock()
	h.cancel(lockclient.ErrUnreachable)
}

// atRelease sets the release's function.
func (h *held) atRelease(do func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onRelease = do
}

func (h *held) Context() context.Context { return h.ctx }
func (h *held) Token() fence.Token       { return 34 }
func (h *held) Fence() fence.Fence {
	f, _ := fence.Parse("orders=34")
	return f
}

func (h *held) Remaining() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(0, time.Until(h.until))
}

func (h *held) Keep(ctx context.Context) error {
	h.mu.Lock()
	h.keeps++
	h.mu.Unlock()
	return h.Release(ctx)
}

func (h *held) Release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releases++
	if h.onRelease != nil {
		return h.onRelease()
	}
	return nil
}

// job is a run with its output.
type job struct {
	testing.TB
	lease *held
	lines *bufio.Reader
	done  chan struct{}
	exit  int
	err   error
}

func start(t testing.TB, ctx context.Context, lease *held, options Options, command ...string) *job {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	options.Stdout, options.Stderr = in, os.Stderr
	j := &job{TB: t, lease: lease, lines: bufio.NewReader(out), done: make(chan struct{})}
	go func() {
		defer close(j.done)
		j.exit, j.err = Run(ctx, lease, command, options)
		in.Close()
	}()
	return j
}

func shell(t testing.TB, script string) *job {
	t.Helper()
	return start(t, context.Background(), newHeld(), Options{TermGrace: 5 * time.Second}, "sh", "-c", script)
}

func (j *job) line() string {
	j.Helper()
	line, err := j.lines.ReadString('\n')
	if err != nil {
		j.Fatalf("no line of output: %v", err)
	}
	return strings.TrimSpace(line)
}

func (j *job) pid() int {
	j.Helper()
	pid, err := strconv.Atoi(j.line())
	if err != nil {
		j.Fatal(err)
	}
	return pid
}

func (j *job) wantExit(exit int) error {
	j.Helper()
	<-j.done
	if j.exit != exit {
		j.Errorf("exit %d, want %d: %v", j.exit, exit, j.err)
	}
	if j.lease.releases != 1 {
		j.Errorf("%d releases", j.lease.releases)
	}
	return j.err
}

func wantGone(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}

func TestExitStatus(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		command []string
		exit    int
		ran     bool
	}{
		{[]string{"true"}, 0, true},
		{[]string{"sh", "-c", "exit 7"}, 7, true},
		{[]string{"sh", "-c", "exit 255"}, 255, true},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, true},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, true},
		{[]string{write("no-interpreter", "exit $1\n", 0o755), "9"}, 9, true},
		{[]string{write("plain", "exit 0\n", 0o644)}, ExitNotExecutable, false},
		{[]string{write("bad-interpreter", "#!/no/such/thing\n", 0o755)}, ExitNotFound, false},
		{[]string{dir}, ExitNotExecutable, false},
		{[]string{"no-such-command"}, ExitNotFound, false},
		{[]string{"/no/such/command"}, ExitNotFound, false},
		{[]string{""}, ExitNotFound, false},
		{nil, ExitNotFound, false},
	} {
		j := start(t, t.Context(), newHeld(), Options{}, c.command...)
		if err := j.wantExit(c.exit); (err == nil) != c.ran {
			t.Errorf("%q: %v", c.command, err)
		}
		if kept := j.lease.keeps == 1; kept != (c.exit == 0) {
			t.Errorf("%q: the lease is kept: %v", c.command, kept)
		}
	}
}

func TestEnvironment(t *testing.T) {
	var full []string
	for n := range fence.MaxPairs {
		full = append(full, fmt.Sprintf("r%d=1", n))
	}
	for _, c := range []struct{ options, outer, want string }{
		{"-c a=b", "", "-c a=b -c wirefence.token=orders=34|34|orders=34|me"},
		{"", "orders=34", "-c wirefence.token=orders=34|34|orders=34|me"},
		// Within another run, whose fence is kept.
		{"-c wirefence.token=x=1@etcd", "x=1@etcd", "-c wirefence.token=x=1@etcd -c wirefence.token=orders=34,x=1@etcd|34|orders=34,x=1@etcd|me"},
		{"", "x=1,orders=33@redis", "-c wirefence.token=orders=34,x=1|34|orders=34,x=1|me"},
		{"", "job(17)=5,x=1", "-c wirefence.token=orders=34,x=1,job(17)=5|34|orders=34,x=1,job(17)=5|me"},
		{"", "x", ""},
		{"", strings.Join(full, ","), ""},
	} {
		env := []string{"PATH=" + os.Getenv("PATH"), "PGOPTIONS=" + c.options, "WIREFENCE_TOKEN=1", "WIREFENCE_FENCE=" + c.outer, "KEEP=me"}
		j := start(t, t.Context(), newHeld(), Options{Env: env}, "sh", "-c", `echo "$PGOPTIONS|$WIREFENCE_TOKEN|$WIREFENCE_FENCE|$KEEP"`)
		if c.want == "" {
			if err := j.wantExit(ExitNotExecutable); err == nil || !strings.Contains(err.Error(), "WIREFENCE_FENCE in the environment") {
				t.Errorf("within %s: %v", c.outer, err)
			}
			continue
		}
		if got := j.line(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		if err := j.wantExit(0); err != nil {
			t.Error(err)
		}
	}
}

func TestALostLeaseEndsTheGroup(t *testing.T) {
	j := shell(t, `trap 'echo ended; exit 5' TERM; echo $$; sh -c 'echo $$; exec sleep 60' & wait`)
	pids := []int{j.pid(), j.pid()}
	j.lease.atRelease(func() error { wantGone(t, pids...); return nil })
	j.lease.lose(30 * time.Second)
	err := j.wantExit(ExitLost)
	if !errors.Is(err, lockclient.ErrUnreachable) {
		t.Error(err)
	}
	if got := j.line(); got != "ended" {
		t.Errorf("the command was not told: %q", got)
	}
}

func TestWhatIgnoresTermIsKilledBeforeTheLeaseIsAnothers(t *testing.T) {
	for _, remaining := range []time.Duration{800 * time.Millisecond, 0} {
		j := shell(t, `trap '' TERM; sh -c 'echo $$; sleep 60; sleep 60' & echo $$; wait; sleep 60`)
		pids := []int{j.pid(), j.pid()}
		before := time.Now()
		j.lease.lose(remaining)
		if err := j.wantExit(ExitLost); !errors.Is(err, lockclient.ErrUnreachable) {
			t.Error(err)
		}
		if took := time.Since(before); remaining > 0 && took >= remaining {
			t.Errorf("took %v of %v", took, remaining)
		}
		wantGone(t, pids...)
	}
}

func TestAStoppedCommandIsEnded(t *testing.T) {
	j := shell(t, `trap 'exit 5' TERM; echo $$; kill -STOP $$; sleep 60`)
	pid := j.pid()
	j.lease.lose(30 * time.Second)
	_ = j.wantExit(ExitLost)
	wantGone(t, pid)
}

func TestTheGroupIsGoneBeforeTheRelease(t *testing.T) {
	j := start(t, t.Context(), newHeld(), Options{TermGrace: 100 * time.Millisecond}, "sh", "-c",
		`mkfifo "$0"; sh -c 'trap "" TERM; echo $$; echo >"$0"; sleep 60' "$0" & read -r _ <"$0"; exit 3`, filepath.Join(t.TempDir(), "fifo"))
	left := j.pid()
	j.lease.atRelease(func() error { wantGone(t, left); return nil }) // a TermGrace before it is due
	if err := j.wantExit(3); err != nil {
		t.Error(err)
	}
}

func TestALeaseLostWhileTheRestIsEnded(t *testing.T) {
	j := start(t, t.Context(), newHeld(), Options{TermGrace: time.Minute}, "sh", "-c",
		`mkfifo "$0"; sh -c 'trap "echo told" TERM; echo $$; echo >"$0"; while :; do :; done' "$0" & read -r _ <"$0"; exit 3`, filepath.Join(t.TempDir(), "fifo"))
	left := j.pid()
	if got := j.line(); got != "told" {
		t.Fatal(got)
	}
	j.lease.lose(200 * time.Millisecond)
	if err := j.wantExit(3); err != nil {
		t.Error(err)
	}
	wantGone(t, left)
}

func TestSignalsPassThrough(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		j := shell(t, fmt.Sprintf(`trap 'exit 42' %d; echo ready; while :; do sleep 0.05; done`, int(signal)))
		j.line()
		if err := syscall.Kill(os.Getpid(), signal); err != nil {
			t.Fatal(err)
		}
		if err := j.wantExit(42); err != nil {
			t.Errorf("%v: %v", signal, err)
		}
	}
}

func TestAnEndedContextEndsTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	j := start(t, ctx, newHeld(), Options{}, "sh", "-c", `trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done`)
	pid := j.pid()
	cancel()
	if err := j.wantExit(0); !errors.Is(err, context.Canceled) || j.lease.keeps != 0 {
		t.Errorf("%v, kept %d times", err, j.lease.keeps)
	}
	wantGone(t, pid)
}

// A signal right after the acquire must not be lost.
func TestWhatIsNoLongerWantedIsNotStarted(t *testing.T) {
	lease := newHeld()
	wanted, cancel := context.WithCancelCause(t.Context())
	signalled := errors.New("a signal")
	cancel(signalled)
	mark := filepath.Join(t.TempDir(), "mark")
	j := start(t, t.Context(), lease, Options{Wanted: wanted}, "touch", mark)
	if err := j.wantExit(ExitNotExecutable); !errors.Is(err, ErrNotWanted) || !errors.Is(err, signalled) {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran")
	}
	if lease.releases != 1 {
		t.Errorf("%d releases", lease.releases)
	}
}

// While the command runs, it handles signals.
func TestACommandGoesOnThatIsNoLongerWanted(t *testing.T) {
	wanted, cancel := context.WithCancel(t.Context())
	j := start(t, t.Context(), newHeld(), Options{Wanted: wanted}, "sh", "-c", "echo runs; sleep 0.2; exit 3")
	if line, err := j.lines.ReadString('\n'); line != "runs\n" {
		t.Fatal(line, err)
	}
	cancel()
	if err := j.wantExit(3); err != nil {
		t.Error(err)
	}
}

func TestAnEndedLeaseStartsNothing(t *testing.T) {
	lease := newHeld()
	lease.lose(time.Minute)
	mark := filepath.Join(t.TempDir(), "mark")
	j := start(t, t.Context(), lease, Options{}, "touch", mark)
	if err := j.wantExit(ExitLost); !errors.Is(err, lockclient.ErrUnreachable) {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran")
	}
}

func TestAFailedReleaseKeepsTheStatus(t *testing.T) {
	down := errors.New("store down")
	lease := newHeld()
	lease.atRelease(func() error { return down })
	j := start(t, t.Context(), lease, Options{}, "sh", "-c", "exit 4")
	if err := j.wantExit(4); !errors.Is(err, down) {
		t.Error(err)
	}
}
