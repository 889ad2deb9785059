package fence_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// migrated makes a database in an encoding.
func migrated(t *testing.T, server *servers.Postgres, encoding string) *pgx.Conn {
	t.Helper()
	name := strings.ToLower(encoding)
	stack.Exec(t, server.URL("postgres"), "CREATE DATABASE "+name+" TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING "+encoding)
	conn := stack.Connect(t, server.URL(name))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestCalls(t *testing.T) {
	ctx := context.Background()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := stack.Started(servers.StartPostgres(ctx, servers.PostgresConfig{})).EndWith(t)
	for _, encoding := range []string{"UTF8", "LATIN1"} {
		t.Run(encoding, func(t *testing.T) {
			conn := migrated(t, server, encoding)
			t.Run("grants", func(t *testing.T) { grants(ctx, t, conn) })
			t.Run("policies", func(t *testing.T) { policies(ctx, t, conn) })
			t.Run("status", func(t *testing.T) { status(ctx, t, conn) })
			t.Run("rows", func(t *testing.T) { rowClasses(ctx, t, conn) })
			t.Run("carried by pgx", func(t *testing.T) { carriedByPgx(ctx, t, conn) })
			if _, err := fence.Seal(ctx, conn, fence.Grant{Resource: "library", Token: 2}); err != nil {
				t.Fatal(err)
			}
			for _, driver := range []string{"pgx", "postgres"} {
				t.Run("carried by database/sql on "+driver, func(t *testing.T) { carriedBySQL(ctx, t, driver, conn.Config().ConnString()) })
			}
		})
	}
}

func grants(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	const resource fence.Resource = "café 'au lait'"
	if last, err := fence.LastToken(ctx, conn, resource); last != 0 || err != nil {
		t.Errorf("never granted: %d, %v", last, err)
	}
	if _, err := fence.Revoke(ctx, conn, resource); !fence.IsUndeclared(err) {
		t.Errorf("revoked what was never granted: %v", err)
	}
	for _, want := range []bool{true, false} {
		if ok, err := fence.Seal(ctx, conn, fence.Grant{Resource: resource, Token: 34, Holder: "worker-b"}); ok != want || err != nil {
			t.Errorf("sealed: %v, %v", ok, err)
		}
	}
	check := func(token fence.Token) error {
		f, err := fence.New(fence.Pair{Resource: resource, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(ctx, f.Check())
		return err
	}
	if err := check(34); err != nil {
		t.Error(err)
	}
	if err := check(33); !fence.IsStale(err) {
		t.Errorf("stale: %v", err)
	}
	if err := check(35); !fence.IsUnknown(err) {
		t.Errorf("never granted: %v", err)
	}
	if last, err := fence.Revoke(ctx, conn, resource); last != 35 || err != nil {
		t.Errorf("revoked: %d, %v", last, err)
	}
	if err := check(34); !fence.IsStale(err) {
		t.Errorf("revoked: %v", err)
	}
	if last, err := fence.LastToken(ctx, conn, resource); last != 35 || err != nil {
		t.Errorf("last token: %d, %v", last, err)
	}
	if _, err := conn.Exec(ctx, checkVariable); err != nil {
		t.Errorf("no fence: %v", err)
	}
	if _, err := conn.Exec(ctx, "SET wirefence.token = 'nonsense'"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, checkVariable); !fence.IsMalformed(err) {
		t.Errorf("the session variable: %v", err)
	}
	if _, err := conn.Exec(ctx, "RESET wirefence.token"); err != nil {
		t.Fatal(err)
	}
}

func policies(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	const resource fence.Resource = "prêt"
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	wait, last := 1500*time.Millisecond, fence.Token(40)
	if _, err := tx.Exec(ctx, "SET LOCAL application_name = 'fence'"); err != nil {
		t.Fatal(err)
	}
	policy := fence.Policy{Source: "etcd", Reuse: fence.ReuseOnce, PreemptAfter: &wait}
	for _, want := range []bool{true, false} {
		if made, err := fence.Declare(ctx, tx, resource, policy, "it's new"); made != want || err != nil {
			t.Errorf("declared: %v, %v", made, err)
		}
	}
	named := true
	settings, err := fence.SetPolicy(ctx, tx, resource, fence.Policy{MustNameSource: &named, LastToken: &last, Advance: fence.AdvanceOnUse}, "later")
	if err != nil || len(settings) != 3 || string(settings["last_token"][1]) != "40" || string(settings["advance"][0]) != `"grant"` {
		t.Errorf("set %s, %v", settings, err)
	}
	changes, err := fence.Changes(ctx, tx, resource)
	if err != nil || len(changes) != 2 || changes[0].Reason != "it's new" || changes[0].By == "" || changes[0].Application != "fence" || changes[1].At.Before(changes[0].At) || len(changes[1].Settings) != 3 {
		t.Errorf("changes %+v, %v", changes, err)
	}
	all, err := fence.Status(ctx, tx)
	if i := slices.IndexFunc(all, func(s fence.ResourceStatus) bool { return s.Resource == resource }); err != nil || i < 0 || !all[i].MustNameSource ||
		all[i].Source != "etcd" || all[i].LastToken != 40 || *all[i].PreemptAfter != wait || all[i].Reuse != fence.ReuseOnce {
		t.Errorf("%+v, %v", all, err)
	}
	never := fence.Never
	if _, err := fence.Declare(ctx, tx, resource, fence.Policy{PreemptAfter: &never}, "otherwise"); !fence.IsDeclared(err) {
		t.Errorf("declared otherwise: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := fence.SetPolicy(ctx, conn, resource, policy, "why"); !fence.IsUndeclared(err) || fence.IsDeclared(err) {
		t.Errorf("set of what isn't known: %v", err)
	}
	if _, err := fence.Declare(ctx, conn, "a", fence.Policy{Source: "Etcd"}, "why"); !fence.IsMalformed(err) {
		t.Errorf("declared a bad source: %v", err)
	}
}

func status(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	began := time.Now()
	if _, err := fence.Seal(ctx, tx, fence.Grant{Resource: "a", Token: 7, Holder: "w", Source: "redis"}); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "UPDATE wirefence.resource_locks SET preempt_after = NULL WHERE resource_id = 'a'"); err != nil {
		t.Fatal(err)
	}
	all, err := fence.Status(ctx, tx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, page := range []struct {
		after fence.Resource
		limit int
		want  []fence.ResourceStatus
	}{{"", 5, all}, {"", 1, all[:1]}, {"a", 1, all[1:]}, {"a", 5, all[1:]}, {"B", 1, all[:1]}, {all[1].Resource, 5, all[2:]}} {
		got, err := fence.StatusAfter(ctx, tx, page.after, page.limit)
		if err != nil || !slices.EqualFunc(got, page.want, func(a, b fence.ResourceStatus) bool { return a.Resource == b.Resource }) {
			t.Errorf("%d after %q: %+v, %v", page.limit, page.after, got, err)
		}
	}
	if one, known, err := fence.StatusOf(ctx, tx, all[1].Resource); one.Resource != all[1].Resource || !known || err != nil {
		t.Errorf("one: %+v, %v, %v", one, known, err)
	}
	if one, known, err := fence.StatusOf(ctx, tx, "b"); one != (fence.ResourceStatus{}) || known || err != nil {
		t.Errorf("an unknown one: %+v, %v, %v", one, known, err)
	}
	a, revoked := all[0], all[1]
	if a.Since.Before(began.Add(-time.Minute)) || a.PreemptAfter != nil {
		t.Errorf("%+v", a)
	}
	a.Since = time.Time{}
	if want := (fence.ResourceStatus{Resource: "a", LastToken: 7, Source: "redis", Holder: "w", Advance: fence.AdvanceOnGrant, Reuse: fence.ReuseAllowed,
		Mode: fence.ModeEnforce, Failover: fence.FailoverReacquire, Writers: 1}); a != want {
		t.Errorf("%+v", a)
	}
	if revoked.Resource != "café 'au lait'" || revoked.Holder != "" || !revoked.Since.IsZero() || *revoked.PreemptAfter != 5*time.Second || revoked.Writers != 0 {
		t.Errorf("%+v", revoked)
	}
	if slices.ContainsFunc(all, func(s fence.ResourceStatus) bool { return s.LastToken == 0 }) {
		t.Error("a resource without a token")
	}
}

func rowClasses(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	const table = `public."Jöbs"`
	if _, err := conn.Exec(ctx, `CREATE TABLE U&"J\00f6bs" (U&"n\00e9" text, id int, claim bigint, running boolean, PRIMARY KEY (id, U&"n\00e9"));
		INSERT INTO U&"J\00f6bs" VALUES (U&'pr\00eat', 17, 5, true)`); err != nil {
		t.Fatal(err)
	}
	want := fence.RowClass{Class: "job", Table: table, Key: []string{"né", "id"}, Claim: "claim + id", While: `running AND "né" <> 'ü'`, Mode: fence.ModeShadow}
	for _, mode := range []fence.Mode{fence.ModeShadow, ""} {
		want.Mode = mode
		if err := fence.DeclareRows(ctx, conn, want); err != nil {
			t.Fatal(err)
		}
	}
	check := func(value int64) error {
		f, err := fence.NewClaims(fence.Claim{Class: "job", Key: fence.Key("prêt", 17), Value: value})
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(ctx, f.Check())
		return err
	}
	if err := check(22); err != nil {
		t.Error(err)
	}
	if err := check(5); !fence.IsStale(err) {
		t.Errorf("another claim: %v", err)
	}
	all, err := fence.RowClasses(ctx, conn)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	got := all[0]
	if got.Class != want.Class || got.Table != want.Table || !slices.Equal(got.Key, want.Key) || got.Claim != "(claim + id)" || !strings.Contains(got.While, "'ü'") ||
		got.Mode != fence.ModeEnforce || got.By != "postgres" || time.Since(got.Since) > time.Hour || got.Fault != "" {
		t.Errorf("%+v", got)
	}
	want.Key = []string{"né", "none"}
	if err := fence.DeclareRows(ctx, conn, want); err == nil || !strings.Contains(err.Error(), `column "none"`) {
		t.Errorf("a key of a column that isn't there: %v", err)
	}
	if _, err := conn.Exec(ctx, `ALTER TABLE U&"J\00f6bs" RENAME claim TO claimed`); err != nil {
		t.Fatal(err)
	}
	if all, err = fence.RowClasses(ctx, conn); err != nil || len(all) != 1 || !strings.Contains(all[0].Fault, "declare it again") {
		t.Errorf("%+v, %v", all, err)
	}
	if err := fence.DropRows(ctx, conn, "job"); err != nil {
		t.Fatal(err)
	}
	if err := check(22); !fence.IsUndeclared(err) {
		t.Errorf("dropped: %v", err)
	}
	if err := fence.DropRows(ctx, conn, "jobs"); err == nil || !strings.Contains(err.Error(), `"jobs" is not declared`) {
		t.Errorf("dropped what isn't there: %v", err)
	}
}
