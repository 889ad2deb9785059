package migrations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// lastRelease builds the last release from its tag. Before there is one, it is this tree.
func lastRelease(t *testing.T) (binary string) {
	t.Helper()
	stack.NeedsMore(t, "two builds of Wirefence")
	tag, err := osexec.Command("git", "describe", "--tags", "--abbrev=0", "--match=v[0-9]*").Output()
	if err != nil {
		if sums, err := os.ReadFile("released.sha256"); err != nil || len(sums) > 0 {
			t.Fatalf("there was a release, and its tag isn't here: git fetch --tags; %v", err)
		}
		return build(t, "..")
	}
	tree := filepath.Join(t.TempDir(), "tree")
	succeeds(t, osexec.Command("git", "worktree", "add", "--detach", tree, strings.TrimSpace(string(tag))))
	t.Cleanup(func() { succeeds(t, osexec.Command("git", "worktree", "remove", "--force", tree)) })
	return build(t, tree)
}

// nextRelease builds this tree, with a migration more if it has none that the last release hasn't.
func nextRelease(t *testing.T, last int) (binary string) {
	t.Helper()
	if last < migrations.Version() {
		return build(t, "..")
	}
	folder, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(folder, fmt.Sprintf("%03d_next.sql", last+1)): filepath.Join(folder, "testdata", "next.sql"),
	}})
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := errors.Join(err, os.WriteFile(file, overlay, 0o600)); err != nil {
		t.Fatal(err)
	}
	return build(t, "..", "-overlay="+file)
}

func build(t *testing.T, tree string, flags ...string) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "wirefence")
	if err := servers.BuildWirefence(t.Context(), tree, binary, flags...); err != nil {
		t.Fatal(err)
	}
	return binary
}

// program runs a command of a binary on the database, and returns what it says.
func (db database) program(t *testing.T, binary string, args ...string) string {
	t.Helper()
	cmd := osexec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "WIREFENCE_DATABASE_URL="+db.URL(db.name))
	return succeeds(t, cmd)
}

func succeeds(t *testing.T, cmd *osexec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// load is what sessions do until it is over.
type load struct {
	*testing.T
	rounds []*atomic.Int64
	over   atomic.Bool
	all    sync.WaitGroup
}

func (l *load) add(what string, round func(ctx context.Context) error) (rounds *atomic.Int64) {
	rounds = &atomic.Int64{}
	l.rounds = append(l.rounds, rounds)
	ctx := l.Context()
	l.all.Go(func() {
		for !l.over.Load() {
			if err := round(ctx); err != nil {
				l.Errorf("%s, round %d: %v", what, rounds.Load(), err)
				return
			}
			rounds.Add(1)
		}
	})
	return rounds
}

// goesOn waits until each session has done some rounds more.
func (l *load) goesOn() {
	l.Helper()
	for i, rounds := range l.rounds {
		until := rounds.Load() + 20
		stack.Eventually(l, fmt.Sprintf("session %d does 20 rounds more", i), func() bool { return rounds.Load() >= until || l.Failed() })
	}
}

// writer inserts through a proxy, or directly, in a session that carries a token, by one statement and
// by a transaction.
func (l *load) writer(db database, addr, name string) (rounds *atomic.Int64, conn *pgx.Conn) {
	cfg, err := pgx.ParseConfig(db.URLFor("app", db.name))
	if err != nil {
		l.Fatal(err)
	}
	if _, port, err := net.SplitHostPort(addr); err == nil {
		_, err = fmt.Sscan(port, &cfg.Port)
		if err != nil {
			l.Fatal(err)
		}
	}
	cfg.RuntimeParams["wirefence.token"] = "orders=33"
	conn, err = pgx.ConnectConfig(l.Context(), cfg)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = conn.Close(context.Background()) })
	const insert = "INSERT INTO public.writes VALUES ('orders', 33, $1)"
	return l.add(name, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, insert, name)
		return errors.Join(err, pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, name)
			return err
		}))
	}), conn
}

// The last release's schema is migrated while sessions write, leases are granted and a job runs, by
// binaries of both releases. Nobody notices, and nothing is forgotten.
func TestMigratingTheLastReleaseUnderLoad(t *testing.T) {
	t.Parallel()
	last := lastRelease(t)
	// A server of its own: the roles are those of a server.
	db := create(t, stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: stack.Versions()[0]})).EndWith(t), "")
	db.program(t, last, "migrate")
	admin := db.admin(t)
	mustExec(t, admin, suite.Objects)
	mustExec(t, admin, "SELECT wirefence.protect('public.writes', 'orders')")
	db.seal(t, "orders", 33)
	mustExec(t, db.as(t, "issuer"), "SELECT wirefence.declare_resource('kept', 'a test', reuse => 'once')")
	leased := value[int64](t, admin, "SELECT token FROM wirefence.acquire('kept', 'worker-a', interval '1 hour', 'grant')")
	const state = `SELECT concat_ws(' ', l, (SELECT count(*) FROM wirefence.history WHERE resource IN ('orders', 'kept')), wirefence.identity()) FROM (
		SELECT string_agg(concat_ws(' ', resource_id, last_token, holder, reuse), ', ' ORDER BY resource_id) AS l
		FROM wirefence.resource_locks WHERE resource_id IN ('orders', 'kept')) AS l`
	was, version := value[string](t, admin, state), value[int](t, admin, "SELECT version FROM wirefence.applied_version")
	next := nextRelease(t, version)

	l := &load{T: t}
	defer l.all.Wait()
	defer l.over.Store(true)
	written := map[string]*atomic.Int64{}
	sessions := []*pgx.Conn{}
	for name, binary := range map[string]string{"through the last release": last, "through the next one": next, "directly": ""} {
		addr := ""
		if binary != "" {
			addr = stack.Started(servers.StartWirefence(t.Context(), binary, "WIREFENCE_UPSTREAM=postgres://"+db.Addr()+"/", "WIREFENCE_DATABASE_URL="+db.URL(db.name))).EndWith(t).Addr()
		}
		rounds, conn := l.writer(db, addr, name)
		written[name], sessions = rounds, append(sessions, conn)
	}
	issuer := db.as(t, "issuer")
	before := int64(0)
	l.add("grants", func(ctx context.Context) error {
		var token int64
		err := issuer.QueryRow(ctx, "SELECT token FROM wirefence.acquire('turns', 'worker', interval '1 minute', 'grant')").Scan(&token)
		if err == nil && token <= before {
			err = fmt.Errorf("token %d behind %d", token, before)
		}
		if _, stale := issuer.Exec(ctx, "SELECT wirefence.check($1)", fmt.Sprint("turns=", before)); err == nil && before > 0 && code(stale) != "WF001" {
			err = fmt.Errorf("the check of a former token: %w", stale)
		}
		before = token
		_, released := issuer.Exec(ctx, "SELECT wirefence.release('turns', 'grant')")
		return errors.Join(err, released)
	})
	over := filepath.Join(t.TempDir(), "over")
	jobs := map[string]string{"nightly": last, "hourly": next}
	var done sync.WaitGroup
	for resource, binary := range jobs {
		done.Go(func() {
			db.program(t, binary, "lock", resource, "--ttl=5s", "--", "sh", "-c", "while [ ! -e '"+over+"' ]; do sleep 0.1; done")
		})
		stack.Eventually(t, resource+" runs", func() bool {
			return look[bool](t, db, "SELECT EXISTS (SELECT FROM wirefence.resource_locks WHERE resource_id = $1)", resource) || t.Failed()
		})
	}
	l.goesOn()
	if out := db.program(t, next, "migrate"); !contains(out, fmt.Sprintf("apply %03d_", version+1)) {
		t.Errorf("migrating says %s", out)
	}
	l.goesOn()
	if out := db.program(t, last, "migrate"); contains(out, "apply ") {
		t.Errorf("the last release migrates, too: %s", out)
	}
	renewed := look[string](t, db, "SELECT string_agg(expires_at::text, ' ') FROM wirefence.leases WHERE resource_id IN ('nightly', 'hourly')")
	stack.Eventually(t, "the jobs renew their leases", func() bool {
		return renewed != look[string](t, db, "SELECT string_agg(expires_at::text, ' ') FROM wirefence.leases WHERE resource_id IN ('nightly', 'hourly')")
	})
	if err := os.WriteFile(over, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done.Wait()
	l.over.Store(true)
	l.all.Wait()

	for name, rounds := range written {
		if n := look[int64](t, db, "SELECT count(*) FROM public.writes WHERE note = $1", name); n != 2*rounds.Load() {
			t.Errorf("%s: %d rows of %d rounds", name, n, rounds.Load())
		}
	}
	if is := value[string](t, admin, state); is != was {
		t.Errorf("the state was %s and is %s", was, is)
	}
	mustExec(t, db.app(t), "SELECT wirefence.check($1)", fmt.Sprint("kept=", leased))
	db.seal(t, "orders", 34)
	for _, conn := range sessions {
		wantCode(t, exec(conn, "INSERT INTO public.writes VALUES ('orders', 33, 'stale')"), "WF001")
	}
	if _, err := migrations.Usable(t.Context(), admin); err != nil {
		t.Error(err)
	}
	if drifts, err := migrations.Drifts(t.Context(), admin); version < migrations.Version() && (err != nil || len(drifts) > 0) {
		t.Errorf("drifted: %+v, %v", drifts, err)
	}
}
