package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// rivalOf waits for the lease of orders, and returns at the moment when the
// store gives it to another.
func rivalOf(t *testing.T, server *servers.Redis) {
	t.Helper()
	store, err := redis.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	client, err := lockclient.New(store, lockclient.Options{Unsealed: true})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Acquire(t.Context(), fence.Resource("orders"))
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() != 2 {
		t.Errorf("token %d", lease.Token())
	}
	if _, err := lease.Detach(); err != nil {
		t.Error(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// locked is `wirefence lock` with a lease of six seconds in a Redis of its own,
// over a network that can fail.
type locked struct {
	*running
	redis *servers.Redis
	link  *servers.Link
	dir   string // the TMPDIR of all its processes
}

func lockScript(t *testing.T, script string) *locked {
	t.Helper()
	server := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	link := stack.Started(servers.StartLink(server.Addr())).EndWith(t)
	dir := t.TempDir()
	r := start(t, []string{
		"WIREFENCE_REDIS_URL=redis://" + link.Addr() + "/0", "WIREFENCE_TTL=6s", "WIREFENCE_TERM_GRACE=100ms", "TMPDIR=" + dir, "WIREFENCE_UNSEALED=true",
	}, "lock", "orders", "--", "sh", "-c", script)
	t.Cleanup(func() { // of what should not have been left
		for _, process := range processesOf(dir) {
			number, _, _ := strings.Cut(process, " ")
			if pid, err := strconv.Atoi(number); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return &locked{r, server, link, dir}
}

// wantAlone fails the test for each process besides `wirefence lock` itself.
func (l *locked) wantAlone(t *testing.T) {
	t.Helper()
	for _, process := range processesOf(l.dir) {
		if !strings.HasPrefix(process, fmt.Sprint(l.cmd.Process.Pid, " ")) {
			t.Errorf("this process was left: %s", process)
		}
	}
}

// All processes that the command has started, in its group and out of it, have ended when
// the store gives the lease to another. This table has no guard: only their end stops their
// writes.
func TestLockEndsAllWritersBeforeTheLeaseIsAnothers(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (at timestamptz DEFAULT clock_timestamp(), writer text)")
	writer := func(name string) string {
		return fmt.Sprintf(`trap "" TERM; while :; do psql -Xq "%s" -c "INSERT INTO jobs (writer) VALUES (\$\$%s\$\$)"; sleep 0.2; done`, url, name)
	}
	l := lockScript(t, fmt.Sprintf(`trap '' TERM
		(%s) &
		setsid sh -c '%s' &
		(setsid sh -c 'setsid sh -c "$0" & exit' '%s' &)
		(%s)`, writer("child"), writer("session"), writer("daemon"), writer("self")))
	becomes(t, url, "child daemon self session", "SELECT coalesce(string_agg(DISTINCT writer, ' ' ORDER BY writer), '') FROM jobs")
	l.link.Hold()
	rivalOf(t, l.redis)
	var expiry time.Time
	if err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&expiry); err != nil {
		t.Fatal(err)
	}
	l.wantAlone(t)
	l.link.Restore()
	l.end(t).expect(t, 76, "orders")
	becomes(t, url, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'psql'")
	var late int
	if err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT count(*) FROM jobs WHERE at > $1", expiry).Scan(&late); err != nil || late > 0 {
		t.Errorf("%d rows were written after the expiry, %v", late, err)
	}
}

// A stopped `wirefence lock` can end nothing; when it goes on, that is the first
// that it does.
func TestLockStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	l := lockScript(t, `trap '' TERM; setsid sleep 60 & echo held; sleep 60`)
	l.stdout.Await(t, "held")
	l.signal(t, syscall.SIGSTOP)
	rivalOf(t, l.redis)
	l.signal(t, syscall.SIGCONT)
	l.end(t).expect(t, 76, "lease expired")
	l.wantAlone(t)
}

// Processes that the command leaves behind, daemons included, are ended before the lease is
// released.
func TestLockLeavesNoDaemon(t *testing.T) {
	t.Parallel()
	l := lockScript(t, `mkfifo "$TMPDIR/f"; (setsid sh -c 'trap "" TERM; echo >"$TMPDIR/f"; sleep 60' &); read -r _ <"$TMPDIR/f"; exit 3`)
	l.end(t).expect(t, 3)
	l.wantAlone(t)
	rivalOf(t, l.redis)
}

// When `wirefence lock` is killed, the kernel kills the command.
func TestLockKilled(t *testing.T) {
	t.Parallel()
	l := lockScript(t, `echo held; exec sleep 60`)
	l.stdout.Await(t, "held")
	l.signal(t, syscall.SIGKILL)
	<-l.exited
	stack.Eventually(t, "the command has ended", func() bool { return len(processesOf(l.dir)) == 0 })
}
