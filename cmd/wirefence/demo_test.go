package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/demo"
	"github.com/wirefence/wirefence/internal/stack"
)

// ownFolder is a folder for temporary files that other accounts may pass, since
// PostgreSQL doesn't run as root. Its name is short, for sockets.
func ownFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wft-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// processesOf returns the processes that run in a folder or have it as their
// TMPDIR, where the system can tell.
func processesOf(dir string) (all []string) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range folders {
		cwd, _ := os.Readlink(proc + "/cwd")
		environ, _ := os.ReadFile(proc + "/environ")
		if strings.HasPrefix(cwd, dir) || strings.Contains(string(environ), "TMPDIR="+dir+"\x00") {
			cmdline, _ := os.ReadFile(proc + "/cmdline")
			all = append(all, filepath.Base(proc)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return all
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	for _, process := range processesOf(dir) {
		t.Errorf("this process was left: %s", process)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, entry := range entries {
		t.Errorf("this was left: %s", entry.Name())
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := ownFolder(t)
	// Settings for other servers don't lead the demo astray.
	r := wirefence(t, []string{"TMPDIR=" + dir, "WIREFENCE_MODE=off", "PGOPTIONS=-c nothing.such", "WIREFENCE_LISTEN=nowhere"}, "demo")
	r.expect(t, 0).says(t, "WF001", "Round 1", "Round 2")
	if r.stderr != "" {
		t.Errorf("standard error has:\n%s", r.stderr)
	}
	if strings.Contains(r.stdout, "\x1b") {
		t.Error("colours, without a terminal")
	}
	for _, line := range []string{
		`B +takes over.* 34\n`, `A +sets order 1 to cancelled +33  UPDATE 1\n`, `1 \| cancelled \| A +\| +33\n`,
		`B +sets order 1 to shipped +34  UPDATE 1\n`, `A +sets order 1 to cancelled +33  ERROR WF001\n`, `1 \| shipped   \| B +\| +34\n`,
		`presented token 33, current token 34`,
	} {
		if !regexp.MustCompile(line).MatchString(r.stdout) {
			t.Errorf("nothing in the timeline matches %s:\n%s", line, r.stdout)
		}
	}
	nothingLeft(t, dir)
}

func TestDemoIsInterrupted(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	for _, c := range []struct {
		after string
		by    os.Signal
	}{
		{"", syscall.SIGTERM},
		{"PostgreSQL", syscall.SIGINT},
		{"stalls (SIGSTOP)", syscall.SIGINT},
		{"takes over", syscall.SIGTERM},
	} {
		t.Run(fmt.Sprintf("%s after %q", c.by, c.after), func(t *testing.T) {
			t.Parallel()
			dir := ownFolder(t)
			r := start(t, []string{"TMPDIR=" + dir}, "demo")
			if r.stdout.Await(t, "Setting the stage"); c.after != "" {
				r.stdout.Await(t, c.after)
				if runtime.GOOS == "linux" && len(processesOf(dir)) < 2 {
					t.Error("the test doesn't see the demo's processes")
				}
			}
			r.signal(t, c.by)
			r.end(t).expect(t, 1, "interrupted")
			nothingLeft(t, dir)
		})
	}
}

// A pager that quits early closes the demo's output.
func TestDemoLosesItsReader(t *testing.T) {
	t.Parallel()
	dir := ownFolder(t)
	sh := exec.Command("sh", "-c", `"$0" demo | head -n 4`, os.Args[0])
	sh.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := sh.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Redis runs") {
		t.Errorf("%v:\n%s", err, out)
	}
	nothingLeft(t, dir)
}

// inMode makes this test binary be a demo whose proxy has a mode that doesn't refuse. It is a
// process of its own, since it freezes all that it starts, and adopts what that leaves.
const inMode = "WFTEST_DEMO_IN_MODE"

func runDemo(mode string) error {
	os.Unsetenv(inMode)
	return demo.Run(context.Background(), demo.Options{Executable: os.Args[0], Output: os.Stdout, ProxyMode: mode, TTL: time.Second})
}

// A demo whose fence doesn't hold says so.
func TestDemoNoticesABrokenFence(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), inMode+"=off")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if text := complaints.String(); err == nil || !strings.Contains(text, "the fence did not hold") || !strings.Contains(text, "UPDATE 1") || strings.Contains(text, "round 1") {
		t.Errorf("got %v, %s", err, text)
	}
	if !strings.Contains(string(out), "This went differently") {
		t.Errorf("the timeline doesn't tell:\n%s", out)
	}
}

func TestDemoKeeps(t *testing.T) {
	stack.NeedsMore(t, "6 s")
	t.Parallel()
	dir := ownFolder(t)
	r := start(t, []string{"TMPDIR=" + dir}, "demo", "--keep")
	r.stdout.Await(t, " lock orders -- ")
	text := r.stdout.String()
	for _, c := range []struct{ name, want string }{
		{"stale", "stale fencing token"}, {"current", "UPDATE 1"}, {"knows", " worker-B "}, {"lease of its own", "UPDATE 1"},
	} {
		if got := try(t, text, c.name); !strings.Contains(got, c.want) {
			t.Errorf("what is said of %q gives, not %q:\n%s", c.name, c.want, got)
		}
	}
	for _, name := range []string{"proxy", "PostgreSQL", "issuer"} {
		stack.Exec(t, place(t, text, name), "SELECT 1")
	}
	options, err := goredis.ParseURL(place(t, text, "Redis"))
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	console, token, ok := strings.Cut(place(t, text, "console"), "#token=")
	if !ok || strings.Count(text, console) != 2 {
		t.Errorf("the console's address isn't told before the play and behind it, with a token: %s", console)
	}
	for _, url := range []string{place(t, text, "metrics"), console, strings.Replace(console, "/console/", "/v1/whoami", 1)} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", url, resp.Status)
		}
	}
	r.signal(t, os.Interrupt)
	r.end(t).expect(t, 0)
	nothingLeft(t, dir)
}

// place returns the address that --keep prints behind a name.
func place(t *testing.T, text, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^  ` + name + ` +(\S+)$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no place named %q in:\n%s", name, text)
	}
	return found[1]
}

// try runs what --keep suggests under a heading, and returns what it prints.
func try(t *testing.T, text, heading string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^[A-Z].*` + heading + `.*:\n\n((?:  .*\n)+)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing to try for %q in:\n%s", heading, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "sh", "-c", found[1]).CombinedOutput()
	return string(out)
}
