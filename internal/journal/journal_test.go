package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/journal"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

var suite = stack.Suite{Check: func() error { return goleak.Find() }}

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// world is a database in which token 34 of orders is current, with a proxy that reports to a
// journal.
type world struct {
	admin *pgx.Conn
	app   *pgx.Conn // through the proxy
	away  atomic.Bool
	late  atomic.Bool // two refusals come while the journal connects
	end   func()      // ends the journal
	*journal.Journal
}

var errAway = errors.New("the database is away")

func newWorld(t *testing.T, o journal.Options) *world {
	t.Helper()
	db := suite.Database(t, 0)
	w := &world{admin: db.Admin}
	w.exec(t, w.admin, `CREATE TABLE public.writes (id int);
		SELECT wirefence.seal('orders', 33, 'a/1'), wirefence.seal('orders', 34, 'b/1'), wirefence.protect('public.writes', 'orders');
		CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY told; RETURN NULL; END';
		CREATE TRIGGER tell AFTER INSERT ON wirefence.history EXECUTE FUNCTION public.tell(); LISTEN told`)
	o.Connect = func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := pgx.Connect(ctx, db.URL(db.Name)+"&application_name=journal")
		if err == nil && w.away.Load() {
			_ = conn.Close(ctx)
			return nil, errAway
		}
		if w.late.CompareAndSwap(true, false) {
			for _, message := range []string{"late", "later"} {
				w.Refused(proxy.Refusal{State: fence.StaleToken, Message: message})
			}
		}
		return conn, err
	}
	o.Proxy, o.Pause, o.RetryMin, o.RetryMax = "sidecar-1", 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
	var err error
	if w.Journal, err = journal.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	w.end = func() { cancel(); <-over }
	go func() { defer close(over); w.Run(ctx, 10*time.Second) }()
	addr := stack.Proxy(t, db.Postgres, proxy.Options{Refusals: w.Journal})
	w.app = stack.Connect(t, fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&application_name=job&default_query_exec_mode=simple_protocol", addr, db.Name))
	t.Cleanup(w.end)
	return w
}

func (w *world) exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// goAway ends the journal's connection, and prevents another.
func (w *world) goAway(t *testing.T) {
	t.Helper()
	w.away.Store(true)
	w.exec(t, w.admin, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'journal' AND datname = current_database()")
}

// refused runs a statement through the proxy that must be refused.
func (w *world) refused(t *testing.T, sql, state string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := w.app.Exec(ctx, sql)
	if refusal := (*pgconn.PgError)(nil); !errors.As(err, &refusal) || refusal.Code != state {
		t.Fatalf("%s: %v, want %s", sql, err, state)
	}
}

// minutesLater has the database count refusals that nobody recorded within a minute.
func (w *world) minutesLater(t *testing.T) {
	t.Helper()
	for range 2 {
		w.exec(t, w.admin, "UPDATE wirefence.history_bounds SET marked_at = marked_at - interval '1 min'")
		w.exec(t, w.admin, "SELECT wirefence.prune_history()")
	}
}

// recorded waits until n refusals are in the history, and returns its rows other than handoffs.
func (w *world) recorded(t *testing.T, count int64) (all []fence.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		var err error
		all, err = fence.History(t.Context(), w.admin, fence.EventFilter{Kinds: []fence.EventKind{fence.RefusalEvent, fence.ShadowEvent, fence.Dropped}})
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, e := range all {
			sum += e.Count
		}
		if sum >= count {
			return all
		}
		if _, err := w.admin.WaitForNotification(ctx); err != nil {
			t.Fatalf("the history tells of %d refusals, want %d: %v", sum, count, err)
		}
	}
}

func line(e fence.Event) string {
	return fmt.Sprint(e.Kind, " ", e.State, " ", e.Resource, " ", e.Token, " ", e.CurrentToken, " ", e.Holder, " ", e.Table, " ", e.Login, " ",
		e.Application, " ", e.Address, " ", e.Proxy, " ", e.Database, " ", e.Count)
}

func TestRefusalsAreRecordedThoughTheirTransactionsAreNot(t *testing.T) {
	w := newWorld(t, journal.Options{RepeatPause: time.Hour})
	var pid int
	if err := w.app.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	w.refused(t, "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)", "WF001")
	w.refused(t, "INSERT INTO writes VALUES (1)", "WF002")
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w.refused(t, "/*wirefence.token='orders=34,',traceparent='"+trace+"'*/ INSERT INTO writes VALUES (1)", "WF004")
	all := w.recorded(t, 3)
	var lines []string
	for _, e := range all {
		lines = append(lines, line(e))
		if e.PID != pid || e.LastAt != nil || time.Since(e.At) > time.Hour || e.Reason == "" {
			t.Errorf("recorded %+v, pid %d", e, pid)
		}
		if traced := e.State == "WF004"; traced != (e.TraceParent == trace) || !traced && e.TraceParent != "" {
			t.Errorf("recorded %+v", e)
		}
	}
	slices.Sort(lines) // a time is known to what the way to the database took
	if want := []string{
		"refusal WF001 orders 33 34 b/1  postgres job 127.0.0.1 sidecar-1  1",
		"refusal WF002 orders 0 0  public.writes postgres job 127.0.0.1 sidecar-1  1",
		"refusal WF004  0 0   postgres job 127.0.0.1 sidecar-1  1",
	}; !slices.Equal(lines, want) {
		t.Errorf("the history has\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	// The database has not counted the proxy's own refusals. It has counted a refusal of a
	// direct connection, which the proxy has not recorded.
	if _, err := w.admin.Exec(t.Context(), "INSERT INTO writes VALUES (1)"); err == nil {
		t.Error("an unfenced write to a guarded table passed")
	}
	w.minutesLater(t)
	totals, err := fence.TotalsOfHistory(t.Context(), w.admin)
	if err != nil || totals.Raised != 3 || totals.Unrecorded != 1 || totals.Dropped != 0 || totals.Kept != 5 {
		t.Errorf("totals are %+v, %v", totals, err)
	}
	// Repetitions are gathered, and written at the end at the latest.
	for range 50 {
		w.refused(t, "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)", "WF001")
	}
	w.end()
	all = w.recorded(t, 53)
	if last := all[len(all)-1]; len(all) != 4 || last.Count != 50 || last.LastAt == nil || !last.LastAt.After(last.At) {
		t.Errorf("repeats are %d rows, the last %+v", len(all), last)
	}
}

// A recorded refusal that the database didn't count doesn't hide one that it counted.
func TestUncountedRefusalsHideNone(t *testing.T) {
	w := newWorld(t, journal.Options{})
	if _, err := w.admin.Exec(t.Context(), "INSERT INTO writes VALUES (1)"); err == nil {
		t.Error("an unfenced write to a guarded table passed")
	}
	w.refused(t, "BEGIN READ ONLY; SELECT wirefence.check('orders=33')", "WF001")
	w.exec(t, w.app, "ROLLBACK")
	w.refused(t, "DO $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = 'WF001'; END $$", "WF001")
	w.recorded(t, 2)
	w.minutesLater(t)
	if totals, err := fence.TotalsOfHistory(t.Context(), w.admin); err != nil || totals.Raised != 1 || totals.Unrecorded != 1 {
		t.Errorf("totals are %+v, %v", totals, err)
	}
}

// A refusal by another database, of whatever name, doesn't hide one by this database.
func TestRefusalsOfAnotherDatabaseHideNone(t *testing.T) {
	w := newWorld(t, journal.Options{})
	if _, err := w.admin.Exec(t.Context(), "INSERT INTO writes VALUES (1)"); err == nil {
		t.Error("an unfenced write to a guarded table passed")
	}
	other := suite.Database(t, 0)
	other.Exec(t, "CREATE TABLE public.writes (id int)", "SELECT wirefence.seal('orders', 50, 'c/1')")
	here := w.app.Config()
	there := here.Copy()
	there.Database = other.Name
	app, err := pgx.ConnectConfig(t.Context(), there)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close(context.Background()) }()
	for _, conn := range []*pgx.Conn{app, app, w.app} {
		if _, err := conn.Exec(t.Context(), "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)"); !fence.IsStale(err) {
			t.Errorf("a stale token gets %v", err)
		}
	}
	all := w.recorded(t, 3)
	databases := map[string]int64{}
	for _, e := range all {
		databases[e.Database] += e.Count
	}
	if len(databases) != 2 || databases[other.Name] != 2 || databases[""] != 1 {
		t.Errorf("refusals of %v", databases)
	}
	w.minutesLater(t)
	if totals, err := fence.TotalsOfHistory(t.Context(), w.admin); err != nil || totals.Raised != 2 || totals.Unrecorded != 1 {
		t.Errorf("totals are %+v, %v", totals, err)
	}
	if counts, err := fence.RefusalsWithin(t.Context(), w.admin, time.Hour); err != nil || counts["orders"].Refused != 1 {
		t.Errorf("counted are %v, %v", counts, err)
	}
}

func TestWhatIsDroppedIsTold(t *testing.T) {
	w := newWorld(t, journal.Options{Size: 3})
	w.goAway(t)
	w.refused(t, "/*wirefence.token='orders=1'*/ INSERT INTO writes VALUES (1)", "WF001")
	for token := 2; token <= 10; token++ {
		w.refused(t, fmt.Sprintf("/*wirefence.token='orders=%d'*/ INSERT INTO writes VALUES (1)", token), "WF001")
	}
	if left := w.Left(); left != 10 {
		t.Errorf("%d refusals are left to tell of, want 10", left)
	}
	w.away.Store(false)
	all := w.recorded(t, 10)
	var dropped int64
	for _, e := range all {
		if e.Kind == fence.Dropped {
			dropped += e.Count
		}
	}
	if dropped != 7 {
		t.Errorf("%d refusals were recorded as dropped, want 7", dropped)
	}
}

// Refusals that are dropped while the journal writes are told soon, not when it looks after the history.
func TestWhatIsDroppedDuringAWriteIsTold(t *testing.T) {
	w := newWorld(t, journal.Options{Size: 1, Upkeep: time.Hour})
	w.goAway(t)
	w.refused(t, "/*wirefence.token='orders=1'*/ INSERT INTO writes VALUES (1)", "WF001")
	w.late.Store(true)
	w.away.Store(false)
	w.recorded(t, 3)
}

// A history that is locked delays neither a refusal nor an accepted write.
func TestALockedHistoryStopsNobody(t *testing.T) {
	w := newWorld(t, journal.Options{})
	w.exec(t, w.admin, "BEGIN; LOCK TABLE wirefence.history")
	w.refused(t, "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)", "WF001")
	w.exec(t, w.app, "/*wirefence.token='orders=34'*/ INSERT INTO writes VALUES (1)")
	w.refused(t, "/*wirefence.token='orders=32'*/ INSERT INTO writes VALUES (1)", "WF001")
	w.exec(t, w.admin, "COMMIT")
	if all := w.recorded(t, 2); len(all) != 2 {
		t.Errorf("recorded %+v", all)
	}
}

func TestTheEndWaitsForNoDatabase(t *testing.T) {
	w := newWorld(t, journal.Options{})
	w.goAway(t)
	w.refused(t, "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)", "WF001")
	w.end()
	if left := w.Left(); left != 1 {
		t.Errorf("%d refusals are left", left)
	}
}

// Refusals of rows that judge are gathered by class.
func TestRefusalsOfRowsAreGathered(t *testing.T) {
	w := newWorld(t, journal.Options{RepeatPause: time.Hour})
	w.exec(t, w.admin, `CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint);
		INSERT INTO jobs SELECT n, 1 FROM generate_series(1, 20) AS n; SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0')`)
	for n := range 20 {
		w.refused(t, fmt.Sprintf("/*wirefence.token='job(%d)=2'*/ INSERT INTO writes VALUES (1)", n+1), "WF001")
	}
	w.end()
	all := w.recorded(t, 20)
	if len(all) > 10 { // one or a few, since those behind a write wait for more
		t.Errorf("recorded in %d rows", len(all))
	}
	for _, e := range all {
		if e.Resource != "job()" || e.State != fence.StaleToken || e.Token != 0 || e.Reason != "stale claim for row job()" {
			t.Errorf("recorded %+v", e)
		}
	}
}
