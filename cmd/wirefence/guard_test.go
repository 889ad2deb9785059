package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// fenced makes a database in which 34 is the last token of orders. The settings are of a
// role without rights, whose sessions a takeover may end.
func fenced(t *testing.T) (url string, settings []string) {
	t.Helper()
	url = database(t, true)
	stack.Exec(t, url, `DO $$ BEGIN CREATE ROLE checker LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	seal(t, url, 34)
	return url, []string{"WIREFENCE_DATABASE_URL=" + strings.Replace(url, "postgres@", "checker@", 1)}
}

func seal(t *testing.T, url string, token int) {
	t.Helper()
	stack.Exec(t, url, fmt.Sprintf("SELECT wirefence.seal('orders', %d, 'worker-%d')", token, token))
}

func preemptAfter(t *testing.T, url, interval string) {
	t.Helper()
	stack.Exec(t, url, "UPDATE wirefence.resource_locks SET preempt_after = '"+interval+"' WHERE resource_id = 'orders'")
}

// A pooler that gives each transaction a server connection may stand before the database.
func TestChecksThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer")
	url, _ := fenced(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 10, PoolSize: 2, PoolMode: "transaction"})).EndWith(t)
	settings := []string{"WIREFENCE_DATABASE_URL=" + pooler.URL(cfg.Database)}
	for range 3 {
		wirefence(t, settings, "check", "orders=34").expect(t, 0)
		wirefence(t, settings, "check", "orders=33").expect(t, 10, "WF001")
	}
	effect := startEffect(t, settings, "sleep 3; echo done")
	for range 2 {
		wirefence(t, settings, "check", "orders=34").expect(t, 0)
	}
	before := time.Now()
	seal(t, url, 35)
	if waited := time.Since(before); waited < 500*time.Millisecond {
		t.Errorf("the next grant waited %v for the effect", waited)
	}
	effect.end(t).expect(t, 0)
	wirefence(t, settings, "guard", "orders=34", "--", "true").expect(t, 10, "WF001")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	_, settings := fenced(t)
	wirefence(t, settings, "check", "orders=34").expect(t, 0).says(t, "orders=34 is current")
	stale := wirefence(t, settings, "check", "orders=33").expect(t, 10, "WF001", "DETAIL: ", "worker-34", "HINT: ")
	if stale.stdout != "" {
		t.Errorf("it printed %q", stale.stdout)
	}
	wirefence(t, settings, "check", "-o", "json", "orders=34").expect(t, 0).says(t, `"current": true`)
	refused := wirefence(t, settings, "check", "-o", "json", "orders=33").expect(t, 10, "WF001").says(t, `"current": false`, `"sqlstate": "WF001"`)
	documented(t, "wirefence check", 0, refused.stdout)
	wirefence(t, settings, "check", "orders=35").expect(t, 10, "WF003")
	wirefence(t, append(settings, "WIREFENCE_FENCE=orders=33"), "check").expect(t, 10, "WF001")
	wirefence(t, append(settings, "WIREFENCE_FENCE=orders=33"), "check", "orders=34").expect(t, 0)
	wirefence(t, settings, "check").expect(t, 2, "WIREFENCE_FENCE")
	wirefence(t, settings, "check", "34").expect(t, 2, "resource=token")
	wirefence(t, settings, "check", "orders=34", "parts=1").expect(t, 2, "one fence")
	wirefence(t, settings, "check", "--timeout=0s", "orders=34").expect(t, 2, "--timeout is")
	wirefence(t, nil, "check", "orders=34").expect(t, 2, "WIREFENCE_DATABASE_URL")
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x?sslmode=disable"}, "check", "orders=34").expect(t, 69)
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + database(t, false)}, "check", "orders=34").expect(t, 69)
}

// A database that does not answer within --timeout is given up.
func TestCheckDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	url, settings := fenced(t)
	other := stack.Connect(t, url)
	stack.MustExec(t, other, "BEGIN")
	stack.MustExec(t, other, "SELECT wirefence.seal('orders', 35, 'worker-35')")
	wirefence(t, settings, "check", "--timeout=300ms", "orders=34").expect(t, 69)
	stack.MustExec(t, other, "ROLLBACK")
	wirefence(t, settings, "check", "orders=34").expect(t, 0)
}

func TestCheckAndGuardUnderLock(t *testing.T) {
	t.Parallel()
	settings, resource := lockSettingsFor(t, database(t, true))
	script := fmt.Sprintf("%[1]s check && %[1]s guard -- sh -c 'echo effect of $WIREFENCE_FENCE; exit 7'", os.Args[0])
	wirefence(t, settings, "lock", resource, "--", "sh", "-c", script).expect(t, 7).says(t, "is current", "effect of "+resource+"=")
}

func TestGuardPassesTheExitStatus(t *testing.T) {
	t.Parallel()
	_, settings := fenced(t)
	for _, c := range []struct {
		status int
		args   []string
		says   string
	}{
		{0, []string{"orders=34", "--", "true"}, ""},
		{7, []string{"orders=34", "--", "sh", "-c", "exit 7"}, ""},
		{143, []string{"orders=34", "--", "sh", "-c", "kill -TERM $$"}, ""},
		{127, []string{"orders=34", "--", "no-such-command"}, "no-such-command"},
		{126, []string{"orders=34", "--", "/etc/passwd"}, "/etc/passwd"},
		{124, []string{"--timeout=200ms", "orders=34", "--", "sleep", "60"}, "200ms"},
		{124, []string{"--timeout=200ms", "--term-grace=100ms", "orders=34", "--", "sh", "-c", "trap '' TERM; while :; do sleep 60; done"}, "200ms"},
		{2, []string{"orders=34", "true"}, "two dashes"},
		{2, []string{"orders=34", "parts=1", "--", "true"}, "two dashes"},
		{2, []string{"orders=34", "--"}, "two dashes"},
		{2, []string{"--", "true"}, "WIREFENCE_FENCE"},
		{2, []string{"--timeout=-1s", "orders=34", "--", "true"}, "--timeout is"},
		{2, []string{"--term-grace=0s", "orders=34", "--", "true"}, "--term-grace is"},
		{69, []string{"--database-url=postgres://127.0.0.1:1/x?sslmode=disable", "orders=34", "--", "true"}, ""},
	} {
		wirefence(t, settings, append([]string{"guard"}, c.args...)...).expect(t, c.status, c.says)
	}
}

// The command isn't started if its fence is refused.
func TestAStaleFenceStartsNoEffect(t *testing.T) {
	t.Parallel()
	_, settings := fenced(t)
	file := filepath.Join(t.TempDir(), "effect")
	wirefence(t, settings, "guard", "orders=33", "--", "touch", file).expect(t, 10, "WF001", "DETAIL: ", "HINT: ")
	if _, err := os.Stat(file); err == nil {
		t.Error("the command has run")
	}
}

// startEffect runs a script that is guarded and says that it has begun.
func startEffect(t *testing.T, settings []string, script string) *running {
	t.Helper()
	r := start(t, settings, "guard", "--term-grace=300ms", "orders=34", "--", "sh", "-c", "echo begun; "+script)
	r.stdout.Await(t, "begun")
	return r
}

// sealing seals the next token, which another has been granted.
func sealing(t *testing.T, url string) (sealed <-chan error) {
	t.Helper()
	conn := stack.Connect(t, url)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT wirefence.seal('orders', 35, 'worker-35')")
		done <- err
	}()
	return done
}

// A command whose check is lost is ended at once, with all processes that it has started.
func TestAGuardedCommandIsEndedWhenItsCheckIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, url string){
		"preempted": func(t *testing.T, url string) {
			preemptAfter(t, url, "200 ms")
			if err := <-sealing(t, url); err != nil {
				t.Error(err)
			}
		},
		"revoked": func(t *testing.T, url string) { stack.Exec(t, url, "SELECT wirefence.revoke('orders')") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, settings := fenced(t)
			dir := t.TempDir()
			r := startEffect(t, append(settings, "TMPDIR="+dir), "trap '' TERM; (setsid sleep 60 &); sleep 60 & while :; do sleep 60; done")
			lose(t, url)
			lost := time.Now()
			r.end(t).expect(t, 76, "lost", "preempt_after", "57P01")
			if took := time.Since(lost); took > 10*time.Second { // SIGKILL comes after one
				t.Errorf("it took %v to end the command", took)
			}
			if left := processesOf(dir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestASignalEndsTheGuardedCommand(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			url, settings := fenced(t)
			preemptAfter(t, url, "1 minute")
			dir := t.TempDir()
			r := startEffect(t, append(settings, "TMPDIR="+dir), "exec sleep 60")
			r.signal(t, signal)
			<-r.exited
			if status := r.cmd.ProcessState.ExitCode(); status == 0 {
				t.Error("it ended with 0")
			}
			stack.Eventually(t, "the command has ended", func() bool { return len(processesOf(dir)) == 0 })
			if err := <-sealing(t, url); err != nil { // which would take a minute
				t.Error(err)
			}
		})
	}
}

// A stopped guard doesn't block a takeover for ever.
func TestAFrozenGuardEnds(t *testing.T) {
	t.Parallel()
	url, settings := fenced(t)
	preemptAfter(t, url, "1 minute")
	r := startEffect(t, settings, "exec sleep 60")
	r.signal(t, syscall.SIGSTOP)
	began := time.Now()
	if err := <-sealing(t, url); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 5*time.Second || took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	r.signal(t, syscall.SIGCONT)
	r.end(t).expect(t, 76, "lost")
}
