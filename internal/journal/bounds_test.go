package journal_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/journal"
	"github.com/wirefence/wirefence/proxy"
)

// A client can raise refusals with texts of any length.
func TestLongTextsTakeNoMemory(t *testing.T) {
	j, err := journal.New(journal.Options{Proxy: "p", Connect: func(context.Context) (*pgx.Conn, error) { return nil, errAway }})
	if err != nil {
		t.Fatal(err)
	}
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	for i := range 200 {
		text := fmt.Sprint(i, strings.Repeat("x", 1<<20))
		j.Refused(proxy.Refusal{
			Origin: proxy.Origin{User: text, Database: text, Application: text}, State: fence.StaleToken, Message: text,
			Detail: `Resource "` + text,
		})
	}
	if j.Left() != 200 {
		t.Fatalf("%d refusals wait", j.Left())
	}
	if after := used(); after > before+20<<20 {
		t.Errorf("200 refusals with texts of 1 MB take %d bytes", after-before)
	}
	runtime.KeepAlive(j)
}

// A refusal that the database rejects doesn't delay the others, and is counted as dropped.
func TestWhatCantBeWrittenIsGivenUp(t *testing.T) {
	for _, state := range []string{"P0001", "22023"} {
		t.Run(state, func(t *testing.T) {
			w := newWorld(t, journal.Options{})
			w.exec(t, w.admin, `CREATE FUNCTION public.choke() RETURNS trigger LANGUAGE plpgsql
				AS 'BEGIN IF NEW.reason LIKE ''%poison%'' THEN RAISE EXCEPTION USING ERRCODE = ''`+state+`''; END IF; RETURN NEW; END'`)
			w.exec(t, w.admin, "CREATE TRIGGER choke BEFORE INSERT ON wirefence.history FOR EACH ROW EXECUTE FUNCTION public.choke()")
			for i := range 10 {
				text := fmt.Sprint("refusal ", i)
				if i == 4 {
					text = "poison"
				}
				w.Refused(proxy.Refusal{State: fence.StaleToken, Message: text})
			}
			rows := map[fence.EventKind]int64{}
			for _, e := range w.recorded(t, 10) {
				rows[e.Kind] += e.Count
			}
			if rows[fence.RefusalEvent] != 9 || rows[fence.Dropped] != 1 {
				t.Errorf("recorded: %v", rows)
			}
			w.refused(t, "/*wirefence.token='orders=33'*/ INSERT INTO writes VALUES (1)", "WF001")
			w.recorded(t, 11)
		})
	}
}

func TestNamesOfApplicationsAreWrittenAsPostgreSQLDoes(t *testing.T) {
	w := newWorld(t, journal.Options{})
	w.Refused(proxy.Refusal{Origin: proxy.Origin{Application: "a\n\x1b[2Jé"}, State: fence.StaleToken})
	if all := w.recorded(t, 1); all[0].Application != `a\x0a\x1b[2J\xc3\xa9` {
		t.Errorf("the application is %q", all[0].Application)
	}
}

// Upkeep prunes at any default isolation level, also one at which rows that others delete are
// errors, and more rows than one call deletes.
func TestUpkeepPrunesWhateverTheIsolation(t *testing.T) {
	db := suite.Database(t, 0)
	admin := db.Admin
	db.Exec(t, "ALTER DATABASE "+db.Name+" SET default_transaction_isolation = 'serializable'",
		"INSERT INTO wirefence.history (kind, resource, at) SELECT 'refusal', 'orders', now() - interval '40 days' FROM generate_series(1, 25000)",
		`CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY pruned; RETURN NULL; END'`,
		"CREATE TRIGGER tell AFTER DELETE ON wirefence.history EXECUTE FUNCTION public.tell()", "LISTEN pruned")
	j, err := journal.New(journal.Options{
		Proxy: "p", Upkeep: time.Hour, Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, db.URL(db.Name)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); j.Run(ctx, time.Second) }()
	defer func() { cancel(); <-over }()
	patience, enough := context.WithTimeout(t.Context(), time.Minute)
	defer enough()
	for kept := int64(1); kept > 0; {
		if _, err := admin.WaitForNotification(patience); err != nil {
			t.Fatalf("%d rows are kept: %v", kept, err)
		}
		totals, err := fence.TotalsOfHistory(t.Context(), admin)
		if err != nil {
			t.Fatal(err)
		}
		kept = totals.Kept
	}
}
