package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The sidecars of these tests take over within leaseTTL and leasePreempt and a
// second; a loaded machine gets slack more.
const (
	leaseTTL     = 3 * time.Second
	leasePreempt = time.Second
	slack        = 20 * time.Second
)

// duel is an unmodified program that runs twice, each behind a sidecar of its
// own: a leads, b stands by. What is between a and its servers can fail.
type duel struct {
	url      string // past the sidecars
	admin    *pgx.Conn
	slot     string
	a, b     *proxyProcess
	links    []*servers.Link
	programs map[string]*program
}

func newDuel(t *testing.T, redis bool) *duel {
	t.Helper()
	d := &duel{url: database(t, true), programs: map[string]*program{}}
	t.Cleanup(func() {
		for worker, p := range d.programs {
			if t.Failed() {
				t.Logf("%s says %s", worker, p.says)
			}
		}
		for _, p := range []*proxyProcess{d.a, d.b} {
			if t.Failed() && p != nil {
				t.Logf("a sidecar says %s", &p.stderr)
			}
		}
	})
	d.admin = stack.Connect(t, d.url)
	d.slot = "duel_" + d.admin.Config().Database
	// The issuer could not end a superuser's transaction.
	runs(t, d.admin, "CREATE TABLE jobs (worker text); CREATE ROLE "+d.slot+" LOGIN; GRANT ALL ON jobs TO "+d.slot)
	runs(t, d.admin, "SELECT pg_create_logical_replication_slot('"+d.slot+"', 'test_decoding')")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), d.url)
		if err == nil {
			_, err = conn.Exec(context.Background(), "SELECT pg_drop_replication_slot($1)", d.slot)
			_ = conn.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	})
	d.a = d.sidecar(t, "a", redis, d.link)
	awaitRole(t, d.a, "leader")
	runs(t, d.admin, fmt.Sprintf("UPDATE wirefence.resource_locks SET preempt_after = '%d ms'", leasePreempt.Milliseconds()))
	d.b = d.sidecar(t, "b", redis, func(_ *testing.T, url string) string { return url })
	d.b.stderr.Await(t, "standing by for the lease")
	for worker, p := range map[string]*proxyProcess{"a": d.a, "b": d.b} {
		p.url = strings.Replace(p.url, "postgres@", d.slot+"@", 1)
		d.programs[worker] = startProgram(t, worker, p.url)
	}
	d.wrote(t, "a", 40)
	return d
}

// link makes a way to a server that can fail.
func (d *duel) link(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	link := stack.Started(servers.StartLink(u.Host)).EndWith(t)
	d.links = append(d.links, link)
	u.Host = link.Addr()
	return u.String()
}

func (d *duel) sidecar(t *testing.T, name string, redis bool, way func(*testing.T, string) string) *proxyProcess {
	t.Helper()
	settings := []string{"WIREFENCE_LEASE=" + d.slot, "WIREFENCE_HOLDER=" + name, "WIREFENCE_TTL=" + leaseTTL.String()}
	if redis {
		settings = append(settings, "WIREFENCE_REDIS_URL="+way(t, redisServer(t).URL()))
	}
	return startProxy(t, way(t, d.url), settings...)
}

func awaitRole(t *testing.T, p *proxyProcess, role string) {
	t.Helper()
	stack.Eventually(t, "the sidecar is "+role, func() bool {
		status, _ := get(t, "http://"+p.admin+"/readyz?role="+role)
		return status == http.StatusOK
	})
}

// wrote waits until a worker has written more rows.
func (d *duel) wrote(t *testing.T, worker string, more int) {
	t.Helper()
	count := func() (n int) {
		if err := d.admin.QueryRow(t.Context(), "SELECT count(*) FROM jobs WHERE worker = $1", worker).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	goal := count() + more
	stack.Eventually(t, fmt.Sprintf("%s has written %d rows", worker, goal), func() bool { return count() >= goal })
}

// program is psql scripts in a loop, that know nothing of fences: transactions of
// two rows, twenty to a session.
type program struct {
	cmd  *exec.Cmd
	says *stack.Log
}

const script = `while :; do
	for i in 1 2 3 4 5 6 7 8 9 10; do
		echo "BEGIN; INSERT INTO jobs VALUES ('$WORKER'); SELECT 1; INSERT INTO jobs VALUES ('$WORKER'); COMMIT;"
	done | psql -X -q -o /dev/null "$URL"
	sleep 0.2
done`

func startProgram(t *testing.T, worker, url string) *program {
	t.Helper()
	p := &program{exec.Command("sh", "-c", script), &stack.Log{}}
	p.cmd.Env = append(os.Environ(), "WORKER="+worker, "URL="+url)
	p.cmd.Stderr = p.says
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

// end ends the program with its psql. It may be called twice.
func (p *program) end() {
	if p.cmd.ProcessState == nil {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait()
	}
}

var (
	decodedSeal = regexp.MustCompile(`^table wirefence\.resource_locks: .* last_token\[bigint\]:(\d+) .*holder\[text\]:'(\w)/`)
	decodedJob  = regexp.MustCompile(`^table public\.jobs: INSERT: worker\[text\]:'(\w)'`)
)

// judge reads all commits in their order: each row is of the worker whose grant
// was the last to be sealed.
func (d *duel) judge(t *testing.T) {
	t.Helper()
	for _, p := range d.programs {
		p.end()
	}
	// Only flushed commits are decoded. A synchronous commit flushes the earlier ones, too.
	runs(t, d.admin, "SET synchronous_commit = on; CREATE TABLE flushed ()")
	rows, err := d.admin.Query(t.Context(), "SELECT data FROM pg_logical_slot_get_changes($1, NULL, NULL, 'include-xids', '0')", d.slot)
	if err != nil {
		t.Fatal(err)
	}
	holder, token, written, handoffs := "", "", map[string]int{}, 0
	var line string
	_, err = pgx.ForEachRow(rows, []any{&line}, func() error {
		if m := decodedSeal.FindStringSubmatch(line); m != nil {
			if m[1] != token {
				handoffs++
			}
			token, holder = m[1], m[2]
		} else if m := decodedJob.FindStringSubmatch(line); m != nil {
			if written[m[1]]++; m[1] != holder {
				return fmt.Errorf("a row of %s is committed behind the grant %s of %s", m[1], token, holder)
			}
		} else if strings.HasPrefix(line, "table ") && !strings.HasPrefix(line, "table wirefence.history: ") && !strings.HasPrefix(line, "table wirefence.history_bounds: ") {
			return fmt.Errorf("not understood: %s", line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if handoffs < 2 || written["a"] < 40 || written["b"] < 40 {
		t.Errorf("%d grants, rows by worker %v", handoffs, written)
	}
	t.Logf("%d grants, rows by worker %v, each of the holder at its commit", handoffs, written)
}

// Two programs that know nothing of fences are a leader and a standby. Whatever
// happens to the leader's sidecar, the other takes over in time, and not a row of
// the former leader's is committed after that.
func TestSidecarsTakeOver(t *testing.T) {
	stack.NeedsMore(t, "10 s of CPU")
	t.Parallel()
	for name, fault := range map[string]struct {
		strike, undo func(t *testing.T, d *duel)
		says         string // to the former leader's program, when it is back
	}{
		"kill": {func(t *testing.T, d *duel) { d.a.signal(t, syscall.SIGKILL) }, func(*testing.T, *duel) {}, "onnection"},
		"stop": {func(t *testing.T, d *duel) { d.a.signal(t, syscall.SIGSTOP) }, func(t *testing.T, d *duel) { d.a.signal(t, syscall.SIGCONT) }, "is not held here"},
		"silence": {func(_ *testing.T, d *duel) {
			for _, link := range d.links {
				link.Hold()
			}
		}, func(_ *testing.T, d *duel) {
			for _, link := range d.links {
				link.Restore()
			}
		}, "is not held here"},
	} {
		for store, redis := range map[string]bool{"Redis": true, "PostgreSQL": false} {
			t.Run(name+"/"+store, func(t *testing.T) {
				t.Parallel()
				d := newDuel(t, redis)
				// One whose transaction is open all the time, and doesn't give up.
				zombie := stack.Connect(t, d.a.url)
				runs(t, zombie, "BEGIN; INSERT INTO jobs VALUES ('a')")
				began := time.Now()
				fault.strike(t, d)
				d.wrote(t, "b", 1)
				took, goal := time.Since(began), leaseTTL+leasePreempt+time.Second
				t.Logf("taken over after %v (goal %v)", took.Round(time.Millisecond), goal)
				if took > goal+slack {
					t.Errorf("taken over after %v, not within %v", took, goal)
				}
				fault.undo(t, d)
				if _, err := zombie.Exec(t.Context(), "COMMIT"); err == nil {
					t.Error("a transaction of the former leader's was committed")
				}
				d.programs["a"].says.Await(t, fault.says)
				d.wrote(t, "b", 40)
				d.judge(t)
			})
		}
	}
}

// SIGTERM hands the lease over when the last transaction has ended.
func TestSidecarHandsOver(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	t.Parallel()
	for store, redis := range map[string]bool{"Redis": true, "PostgreSQL": false} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			d := newDuel(t, redis)
			began := time.Now()
			d.a.signal(t, syscall.SIGTERM)
			d.wrote(t, "b", 1)
			took := time.Since(began)
			t.Logf("handed over after %v", took.Round(time.Millisecond))
			if took > leaseTTL/2+slack {
				t.Errorf("handed over after %v", took)
			}
			d.a.end(t).expect(t, 0, "drained", "the lease was released")
			d.wrote(t, "b", 40)
			d.judge(t)
		})
	}
}

// A sidecar that an operator locks out gives way to another. If none waits, it leads again,
// with a new token.
func TestSidecarIsRevoked(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (worker text)")
	p := startProxy(t, url, "WIREFENCE_LEASE=night shift", "WIREFENCE_TTL=6s")
	awaitRole(t, p, "leader")
	conn := stack.Connect(t, p.url)
	runs(t, conn, "INSERT INTO jobs VALUES ('first')")
	wirefence(t, issuer(url), "revoke", "night shift").expect(t, 0)
	want := "first second"
	_, err := conn.Exec(t.Context(), "INSERT INTO jobs VALUES ('revoked')")
	if err == nil && strings.Contains(p.stderr.String(), "lease revoked") {
		want = "first revoked second" // its renewal had failed before, and it leads again
	} else if fence.StateOf(err) != fence.StaleToken && fence.StateOf(err) != fence.LeaseNotHeld {
		t.Errorf("a write behind the revocation: %v", err)
	}
	p.stderr.Await(t, "lease revoked")
	awaitRole(t, p, "leader")
	runs(t, conn, "INSERT INTO jobs VALUES ('second')")
	if got := workers(t, url); got != want {
		t.Errorf("jobs holds %q", got)
	}
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0, `"token":3`, "the lease was released")
}
