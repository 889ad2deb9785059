package fencingtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

const unlock = "SELECT pg_advisory_unlock_all()"

// unlockByKey releases the locks that the session holds, by the keys in pg_locks.
const unlockByKey = `SELECT pg_advisory_unlock_shared(classid::bigint << 32 | objid::bigint) FROM pg_locks
	WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1`

// releasing is a way to release what a session holds.
type releasing struct {
	name string
	// objects is stored code that releases locks. With it the proxy takes no hold.
	objects string
	prepare func(c *client) // before the session holds
	release func(c *client, w *world) error
}

// releases work within a transaction block and outside of one.
var releases = []releasing{
	{name: "text", release: runs(unlock)},
	{name: "text with a comment of another fence", release: runs(unlock + " /*wirefence.token='other=7'*/")},
	{name: "extended", release: func(c *client, _ *world) error { return c.Extended(unlock) }},
	{name: "key by key", release: runs("SELECT pg_advisory_unlock_shared((classid::bigint << 32) | objid::bigint), pg_advisory_unlock_shared((classid::bigint << 32) | objid::bigint) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")},
	{name: "prepared by the protocol", prepare: parses("unlocks", unlock), release: executes("unlocks")},
	{name: "prepared by the protocol, EXECUTE", prepare: parses("unlocks", unlock), release: runs("EXECUTE unlocks")},
	{name: "PREPARE and EXECUTE", prepare: func(c *client) { c.Must("PREPARE unlocks AS " + unlock) }, release: runs("EXECUTE unlocks")},
	{name: "PREPARE behind a DISCARD ALL without an answer, and EXECUTE", prepare: func(c *client) {
		c.Exchange(2, &pgproto3.Query{String: "DISCARD ALL"}, &pgproto3.Query{String: "PREPARE unlocks AS " + unlock})
	}, release: runs("EXECUTE unlocks")},
	{name: "PREPARE, then Bind", prepare: func(c *client) { c.Must("PREPARE unlocks AS " + unlock) }, release: executes("unlocks")},
	{name: "cursor", release: func(c *client, _ *world) error {
		if c.TxStatus() == 'I' {
			return c.Simple("BEGIN; DECLARE unlocks CURSOR FOR " + unlock + "; FETCH unlocks; COMMIT")
		}
		if err := c.Simple("DECLARE unlocks CURSOR FOR " + unlock); err != nil {
			return err
		}
		return c.Simple("FETCH unlocks")
	}},
	{name: "suspended portal", release: func(c *client, _ *world) error {
		return c.Batch(parseOf("", "SELECT pg_advisory_unlock_all() FROM generate_series(1, 2)"), bindOf("p", ""),
			&pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Execute{Portal: "p", MaxRows: 1})
	}},
	{name: "block of code", release: runs("DO $$ BEGIN PERFORM pg_advisory_unlock_all(); END $$")},
	{name: "DISCARD ALL", release: runs("DISCARD ALL")},
	{name: "what asyncpg sends", release: runs(unlock + "; CLOSE ALL; UNLISTEN *; RESET ALL")},
	{name: "stored function", objects: "CREATE FUNCTION unlocks() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_unlock_all()'", release: runs("SELECT unlocks()")},
}

// releasesInABlock make the session's lock go while a transaction is open that wrote under it:
// at that point the hold counts for nothing, or the message carries another fence. PostgreSQL and the
// proxy let them pass.
var releasesInABlock = []releasing{
	{name: "SET LOCAL", release: musts("SET LOCAL wirefence.token = ''", unlock)},
	{name: "SET LOCAL in one message", release: musts("SET LOCAL wirefence.token = ''; " + unlock)},
	{name: "SET to another fence", release: musts("SET wirefence.token = 'other=7'", unlock)},
	{name: "RESET", release: musts("RESET wirefence.token", unlock)},
	{name: "RESET ALL", release: musts("RESET ALL", unlock)},
	{name: "RESET ALL in one message", release: musts("RESET ALL; " + unlock)},
	{name: "set_config, extended", release: func(c *client, _ *world) error {
		stack.WantState(c.T, c.Extended("SELECT set_config('wirefence.token', '', true)"), "")
		stack.WantState(c.T, c.Extended(unlock), "")
		return nil
	}},
	{name: "one batch", release: batch("SET LOCAL wirefence.token = ''", unlock)},
	{name: "a block of code", release: musts("DO $$ BEGIN PERFORM set_config('wirefence.token', '', true); END $$", unlock)},
	{name: "a comment of another fence", release: musts(unlock + " /*wirefence.token='other=7'*/")},
	{name: "a savepoint and a comment of another fence", release: musts("SAVEPOINT s /*wirefence.token='other=7'*/", unlock, "ROLLBACK TO s")},
	{name: "a savepoint without the fence", release: musts("SAVEPOINT s", "SET LOCAL wirefence.token = ''", unlock, "ROLLBACK TO s")},
	{name: "a savepoint, rolled back in one message", release: musts("SAVEPOINT s; " + unlock + "; ROLLBACK TO s")},
	{name: "the keys in pg_locks", release: musts(unlockByKey)},
	{name: "a portal that was bound before", release: func(c *client, _ *world) error {
		stack.WantState(c.T, c.Batch(parseOf("", unlock), bindOf("p", "")), "")
		c.Must("SET LOCAL wirefence.token = ''")
		stack.WantState(c.T, c.Batch(executeOf("p")), "")
		return nil
	}},
}

func runs(sql string) func(*client, *world) error {
	return func(c *client, _ *world) error { return c.Simple(sql) }
}

func musts(statements ...string) func(*client, *world) error {
	return func(c *client, _ *world) error { c.Must(statements...); return nil }
}

func batch(statements ...string) func(*client, *world) error {
	return func(c *client, _ *world) error { c.batchFails("", statements...); return nil }
}

func parses(name, sql string) func(*client) {
	return func(c *client) { stack.WantState(c.T, c.Batch(parseOf(name, sql)), "") }
}

func executes(name string) func(*client, *world) error {
	return func(c *client, _ *world) error { return c.Batch(bindOf("", name), executeOf("")) }
}

// onEachWay runs a test for each carrier of the fence, each with a world of its own whose
// takeovers end nobody. There token 7 of other is sealed. by is the comment that carries the
// fence of orders, "" for the session variable.
func onEachWay(t *testing.T, major int, name string, test func(t *testing.T, w *world, by string)) {
	t.Helper()
	for _, by := range []string{"", behindGood} {
		t.Run(name+by, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, major)
			w.Seal(t, "other", 7)
			w.preempt(t, nil)
			test(t, w, by)
		})
	}
}

// Whatever releases the lock of a hold, no seal returns while a transaction is open that wrote
// under it, and the next statement of a stale session is refused.
func TestWhatReleasesAHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, shared *world) {
		for _, way := range releases {
			onEachWay(t, shared.Major, way.name, func(t *testing.T, w *world, by string) {
				w.Exec(t, way.objects)
				c := w.fenced(t, map[string]string{"": "orders=34"}[by])
				if way.prepare != nil {
					way.prepare(c)
				}
				insert := insertOf(34) + by
				c.Must(insert, insert, insert)

				c.Must("BEGIN", insert)
				_ = way.release(c, w) // an error releases the lock of a check
				w.sealWaits(t, c)
				w.wantRefused(t, "behind a transaction", c, insert)

				w.back(t)
				c.Must(insert, insert)
				if err := way.release(c, w); err != nil && stack.State(err) != "WF006" {
					t.Errorf("between two writes: %v", err)
				}
				w.rival(t).succeeds(t)
				w.wantRefused(t, "behind a release", c, insert)
			})
		}
	})
}

func TestLocksThatGoInATransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *world) {
		for _, way := range releasesInABlock {
			onEachWay(t, shared.Major, way.name, func(t *testing.T, w *world, by string) {
				c := w.holding(t, by)
				c.Must("BEGIN", insertOf(34)+by)
				_ = way.release(c, w)
				w.sealWaits(t, c)
			})
		}
	})
}

// The fence changes in a message that was sent ahead, when it wasn't known whether it is in a
// transaction, and then the lock goes.
func TestLocksThatGoBehindAFenceThatChanged(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *world) {
		onEachWay(t, shared.Major, "DO", func(t *testing.T, w *world, by string) {
			c := w.holding(t, by)
			answers(c, queries("BEGIN", insertOf(34)+by, "DO $$ BEGIN PERFORM set_config('wirefence.token', 'other=7', false); END $$"), 3)
			_ = c.Simple("SELECT 1; " + unlock)
			w.sealWaits(t, c)
		})
	})
}

// holding is a session that holds the fence of its variable, or of the comments behind its
// statements.
func (w *world) holding(t *testing.T, comment string) *client {
	t.Helper()
	c := w.connect(t)
	if comment == "" {
		c.Must("SET wirefence.token = 'orders=34'")
	}
	w.warm(comment, c)
	return c
}

// sealWaits commits the client's transaction, for which a takeover waits if it hasn't failed.
func (w *world) sealWaits(t *testing.T, c *client) {
	t.Helper()
	r := w.rival(t)
	if c.TxStatus() == 'T' {
		r.waits(t, "the transaction")
	}
	c.Must("COMMIT")
	r.succeeds(t)
}

// back makes 34 the current token again.
func (w *world) back(t *testing.T) {
	t.Helper()
	w.Exec(t, "UPDATE wirefence.resource_locks SET last_token = 34 WHERE resource_id = 'orders'")
}

// wantRefused fails the test if a stale session's insert goes through.
func (w *world) wantRefused(t *testing.T, about string, c *client, insert string) {
	t.Helper()
	before := w.rows(t)
	stack.WantState(t, c.Simple(insert), "WF001", about)
	stack.WantState(t, c.Extended(insert), "WF001", about)
	if after := w.rows(t); after != before {
		t.Errorf("%s: %d stale rows", about, after-before)
	}
}
