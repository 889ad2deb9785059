package fencingtest

import (
	"testing"
)

// alone are commands that no check can share a transaction with.
var alone = []string{
	"CREATE INDEX CONCURRENTLY i ON jobs (note)",
	"DROP INDEX CONCURRENTLY i",
	"VACUUM jobs",
	"CALL committing()",
	"DO $$ BEGIN INSERT INTO jobs (note) VALUES ('block'); COMMIT; INSERT INTO jobs (note) VALUES ('block'); END $$",
	"REINDEX TABLE CONCURRENTLY cell",
}

// With reuse = once a token serves one transaction, so the proxy takes no hold.
func TestTokensThatAreUsedOnceAreNotHeld(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "UPDATE wirefence.resource_locks SET reuse = 'once' WHERE resource_id = 'orders'")
		c := w.fenced(t, "orders=34")
		c.Must("INSERT INTO jobs (token) VALUES (34)")
		for range 3 {
			c.Fails("INSERT INTO jobs (token) VALUES (34)", "WF005")
			if n := w.held(t); n != 0 {
				t.Errorf("%d locks are held", n)
			}
		}
		w.Seal(t, "orders", 35)
		c.Must("SET wirefence.token = 'orders=35'")
		c.Fails("CALL committing()", "WF006")
		c.Must("BEGIN", "INSERT INTO jobs (token) VALUES (35)", "INSERT INTO jobs (token) VALUES (35)", "COMMIT")
		w.wantRows(t, 3)
	})
}
