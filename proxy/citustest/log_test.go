package citustest

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// logs are the write-ahead logs of a database's nodes, read by logical decoding.
type logs []*stack.DB

// openLogs has each node keep what is written from here on.
func openLogs(t *testing.T, w *world) (all logs) {
	t.Helper()
	for _, node := range w.citus.Nodes() {
		db := &stack.DB{Postgres: node, Name: w.Name, Admin: stack.Connect(t, node.URL(w.Name))}
		db.Exec(t, "select pg_create_logical_replication_slot('order_' || current_database(), 'test_decoding')")
		all = append(all, db)
	}
	return all
}

// granted notes in each log that a grant has returned.
func (all logs) granted(t *testing.T, token int64) {
	t.Helper()
	for _, node := range all {
		stack.MustExec(t, node.Admin, "select pg_logical_emit_message(false, 'granted', $1::bigint::text)", token)
	}
}

var (
	loggedGrant = regexp.MustCompile(`^message: transactional: 0 prefix: granted, sz: \d+ content:(\d+)`)
	loggedRow   = regexp.MustCompile(`^table public\.jobs_\d+: INSERT: .*token\[bigint\]:(\d+)`)
)

// read returns how many rows were written with each token. In the order of each log no row may
// have a token below that of a grant that has returned before it. A node may record a grant while
// another has still to end writers of before, which also write there.
func (all logs) read(t *testing.T) map[int64]int {
	t.Helper()
	written := map[int64]int{}
	for _, node := range all {
		rows, err := node.Admin.Query(t.Context(), "select lsn::text, data from pg_logical_slot_get_changes('order_' || current_database(), null, null)")
		if err != nil {
			t.Fatal(err)
		}
		var at, line string
		highest, grants, stale := int64(0), 0, ""
		if _, err := pgx.ForEachRow(rows, []any{&at, &line}, func() error {
			if m := loggedGrant.FindStringSubmatch(line); m != nil {
				token, err := strconv.ParseInt(m[1], 10, 64)
				highest, grants = max(highest, token), grants+1
				return err
			}
			m := loggedRow.FindStringSubmatch(line)
			if m == nil {
				return nil
			}
			token, err := strconv.ParseInt(m[1], 10, 64)
			written[token]++
			if token < highest && stale == "" {
				stale = fmt.Sprintf("committed a row of token %d at %s, behind token %d", token, at, highest)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if grants == 0 || stale != "" {
			t.Errorf("node %s has %d grants in its log, %s", node.Addr(), grants, stale)
		}
		node.Exec(t, "select pg_drop_replication_slot('order_' || current_database())")
	}
	return written
}
