package migrations_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/pages"
)

// attempt is the answer of wirefence.acquire.
type attempt struct {
	Grant   *string    `db:"grant_id"`
	Token   *int64     `db:"token"`
	Expires *time.Time `db:"expires_at"`
	HeldBy  *string    `db:"held_by"`
}

func tryAcquire(conn *pgx.Conn, args ...any) (attempt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	marks := []string{"$1", "$2", "$3", "$4"}[:len(args)]
	rows, err := conn.Query(ctx, "SELECT * FROM wirefence.acquire("+strings.Join(marks, ", ")+")", args...)
	if err != nil {
		return attempt{}, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[attempt])
}

// win acquires a free lease and returns its grant.
func win(t *testing.T, conn *pgx.Conn, resource, holder string, ttl time.Duration) (grant string, token int64) {
	t.Helper()
	a, err := tryAcquire(conn, resource, holder, ttl)
	if err != nil || a.Token == nil || a.Grant == nil || a.Expires == nil || a.HeldBy != nil {
		t.Fatalf("%s did not win: %+v, %v", holder, a, err)
	}
	return *a.Grant, *a.Token
}

func wantHeldBy(t *testing.T, conn *pgx.Conn, resource, holder string) {
	t.Helper()
	a, err := tryAcquire(conn, resource, "rival", time.Minute)
	if err != nil || a.Token != nil || a.Grant != nil || a.HeldBy == nil || *a.HeldBy != holder || a.Expires == nil {
		t.Fatalf("want held by %s, got %+v, %v", holder, a, err)
	}
}

const (
	renewSQL   = "SELECT wirefence.renew($1, $2, '1 min')"
	releaseSQL = "SELECT wirefence.release($1, $2)"
)

// Any role may take an advisory lock, so none that an acquire takes stops the next one.
func TestAStrangersLocksStopNoAcquire(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, stranger := db.as(t, "issuer"), db.app(t)
		mustExec(t, issuer, "BEGIN")
		grant, _ := win(t, issuer, "orders", "a", time.Minute)
		takes := column[string](t, db.admin(t), fmt.Sprintf(`SELECT CASE objsubid WHEN 1 THEN format('SELECT pg_advisory_lock(%%s)', classid::bigint << 32 | objid::bigint)
			ELSE format('SELECT pg_advisory_lock(%%s, %%s)', classid::integer, objid::integer) END FROM pg_locks WHERE pid = %d AND locktype = 'advisory'`, issuer.PgConn().PID()))
		mustExec(t, issuer, "COMMIT; SELECT wirefence.release('orders', '"+grant+"')")
		for _, take := range takes {
			mustExec(t, stranger, take)
		}
		if len(takes) == 0 {
			t.Error("an acquire takes no lock")
		}
		win(t, issuer, "orders", "b", time.Minute)
	})
}

// The winner waits for a writer with the older token. Meanwhile other callers get an
// answer at once, and the lease has its whole ttl after the wait.
//
// Evidence: I2
func TestAcquireSealsBeforeItReturns(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		const ttl = time.Minute
		conn, rival, writer := db.as(t, "issuer"), db.as(t, "issuer"), db.app(t)
		grant, _ := win(t, conn, "orders", "worker-a", time.Minute)
		mustExec(t, writer, "BEGIN; SELECT wirefence.check('orders=1')")
		if !value[bool](t, conn, releaseSQL, "orders", grant) {
			t.Fatal("not released")
		}
		won := db.start(t, conn, "SELECT wirefence.acquire('orders', 'worker-b', $1, 'b')", ttl)
		a, err := tryAcquire(rival, "orders", "rival", time.Minute)
		if err != nil || a.Token != nil || a.HeldBy != nil {
			t.Errorf("beside a seal that waits: %+v, %v", a, err)
		}
		mustExec(t, rival, "SET statement_timeout = '20s'")
		if value[bool](t, rival, renewSQL, "orders", grant) || value[bool](t, rival, releaseSQL, "orders", grant) {
			t.Error("the former holder has the lease")
		}
		before := value[time.Time](t, rival, "SELECT clock_timestamp()")
		mustExec(t, writer, "COMMIT")
		wantCode(t, <-won, "")
		if !value[bool](t, rival, "SELECT expires_at >= $1::timestamptz + $2::interval FROM wirefence.leases", before, ttl) {
			t.Error("the time to live began before the seal")
		}
		if got := db.lastToken(t, "orders"); got != 2 {
			t.Errorf("sealed %d", got)
		}
	})
}

// wantNotice waits for the notice that a lease is free. It contains no name, since every role may
// listen.
func wantNotice(t *testing.T, listener *pgx.Conn, resource string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	notice, err := listener.WaitForNotification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256([]byte(resource))); notice.Payload != want {
		t.Errorf("notice %q, want %q", notice.Payload, want)
	}
}

// A renewal that came in time but commits late still succeeds: the rival that saw the
// lease expired gets none, at once, and has sealed nothing.
func TestALateRenewalIsNotOvertaken(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		conn, rival := db.as(t, "issuer"), db.as(t, "issuer")
		grant, _ := win(t, conn, "orders", "worker-a", 2*time.Second)
		mustExec(t, conn, "BEGIN")
		if !value[bool](t, conn, renewSQL, "orders", grant) {
			t.Fatal("expired too soon")
		}
		mustExec(t, rival, "SELECT pg_sleep_until(expires_at) FROM wirefence.leases")
		if !value[bool](t, rival, "SELECT token IS NULL FROM wirefence.acquire('orders', 'rival', '1 min')") {
			t.Error("the rival won the lease")
		}
		mustExec(t, conn, "COMMIT")
		wantHeldBy(t, rival, "orders", "worker-a")
		if got := db.lastToken(t, "orders"); got != 1 {
			t.Errorf("token %d was sealed", got)
		}
	})
}

// For a lease in PostgreSQL DETAIL says correctly whether it is held or was held.
func TestRefusalsTellWhetherALeaseIsHeld(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, app := db.as(t, "issuer"), db.app(t)
		detail := func() string {
			t.Helper()
			pgErr, ok := exec(app, "SELECT wirefence.check('orders=1')").(*pgconn.PgError)
			if !ok || pgErr.Code != "WF001" {
				t.Fatalf("not refused: %v", pgErr)
			}
			return pgErr.Detail
		}
		wants := func(what, text string) {
			t.Helper()
			if got := detail(); !contains(got, text) {
				t.Errorf("%s: %s, want %s", what, got, text)
			}
		}
		grant := "none"
		acquire := func(ttl string) {
			t.Helper()
			mustExec(t, issuer, "SELECT wirefence.release('orders', $1)", grant)
			grant = value[string](t, issuer, "SELECT grant_id FROM wirefence.acquire('orders', 'worker-b', $1::text::interval)", ttl)
		}
		acquire("1 h")
		acquire("1 h")
		wants("while it is held", `current token 2, held by "worker-b" since 20`)
		mustExec(t, app, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		wants("in a snapshot", `current token 2, granted to "worker-b" at 20`)
		mustExec(t, app, "ROLLBACK")
		mustExec(t, issuer, "SELECT wirefence.release('orders', $1)", grant)
		wants("after its release", `current token 2, last held by "worker-b", granted at 20`)
		acquire("1 ms")
		mustExec(t, issuer, "SELECT pg_sleep(0.01)")
		wants("after its end", `current token 3, last held by "worker-b", granted at 20`)
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'another store', source => 'redis')")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', wirefence.revoke('orders') + 1, 'worker-c', 'redis')")
		wants("in another store", `granted to "worker-c" at 20`)
	})
}

// An expired lease is lost, though nobody else has taken it.
func TestAnExpiredLeaseIsNotRenewed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		grant, _ := win(t, issuer, "orders", "worker-a", time.Millisecond)
		mustExec(t, issuer, "SELECT pg_sleep(0.01)")
		if value[bool](t, issuer, renewSQL, "orders", grant) {
			t.Error("it is renewed")
		}
	})
}

// documentedScript returns the first SQL text of a page.
func documentedScript(t *testing.T, page string) string {
	t.Helper()
	script, err := pages.First("../docs/reference/"+page, "", "sql")
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// psql runs a script and returns its output.
func (db database) psql(t *testing.T, role, script string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := osexec.CommandContext(ctx, "psql", append(args, "-XAtq", "-f", "-", db.URLFor(role, db.name))...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// The script in docs/reference/sources.md is refused where the page says so, and nowhere else.
func TestTheDocumentedSources(t *testing.T) {
	script := documentedScript(t, "sources.md")
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "CREATE TABLE public.orders (item text); GRANT INSERT ON public.orders TO app")
		out, err := db.psql(t, "app", script)
		if err != nil {
			t.Fatal(err)
		}
		stale, foreign, _ := strings.Cut(out, "ERROR:  unknown fencing token")
		if strings.Count(stale, "ERROR: ") != 1 || !strings.Contains(stale, "ERROR:  stale fencing token") ||
			!strings.Contains(foreign, `it comes from "redisson", not from "etcd-revision"`) {
			t.Errorf("the script says %s", out)
		}
		if n := look[int](t, db, "SELECT count(*) FROM public.orders"); n != 1 {
			t.Errorf("%d orders", n)
		}
	})
}

// The script in docs/reference/leases.md does what the page says.
func TestTheDocumentedLeaseScript(t *testing.T) {
	script := documentedScript(t, "leases.md")
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "CREATE TABLE public.orders (item text); GRANT INSERT ON public.orders TO issuer")
		run := func() string {
			t.Helper()
			out, err := db.psql(t, "issuer", script)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return out
		}
		for range 2 {
			if out := run(); out != "t\nt" {
				t.Errorf("the script says %q", out)
			}
		}
		win(t, db.as(t, "issuer"), "orders", "worker-b", time.Minute)
		if out := run(); out != "orders is held by worker-b" {
			t.Errorf("beside a holder the script says %q", out)
		}
		if n := look[int](t, db, "SELECT count(*) FROM public.orders"); n != 2 {
			t.Errorf("%d orders", n)
		}
		// The error says what to do, and the script prints nothing after it.
		if out, err := db.psql(t, "app", script); err == nil || !strings.Contains(out, "GRANT wirefence_issuer TO app") || strings.Contains(out, "is held by") {
			t.Errorf("without the right the script says %q, %v", out, err)
		}
	})
}
