package parsertest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

//go:embed testdata/observe.sql
var observeQuery string

// judge compares what sqlscan says of each query of a session with what the
// query's tree says, both by the catalog of that moment, and with what the server
// then does: a statement that changes anything is given a transaction id.
type judge struct {
	t       *testing.T
	file    string    // from where the queries come
	conn    *pgx.Conn // to the same database as theirs
	lexing  lexing
	seen    map[string]bool // texts whose lexing was compared
	scanner sqlscan.Scanner

	catalog *sqlscan.Catalog
	known   *known
	stamp   string // of both
	stale   bool   // they may have changed

	pid    uint32    // of the last query's session
	before [2]string // what was observed before it
	read   string    // it, if sqlscan takes it for one that only reads

	tally
}

// begin says that the queries that come now are of another test.
func (j *judge) begin(file string, conn *pgx.Conn) {
	j.file, j.conn, j.stale, j.stamp, j.known = file, conn, true, "", nil
}

// tally counts what was judged.
type tally struct {
	queries  int // texts that a session sent
	refused  int // of those, by the grammar
	reads    int // statements that are no write to anybody
	writes   int // statements that are one to both
	all      int // statements that are writes since every query may be one, by the catalog
	observed int // texts that read, after which no transaction id was found
	alarms   map[string]int
}

func (c *tally) statements() int { return c.reads + c.writes + c.all + c.falseAlarms() }

func (c *tally) falseAlarms() int {
	sum := 0
	for _, n := range c.alarms {
		sum += n
	}
	return sum
}

// add judges one statement, of which the tree says why it may write. It returns
// what is wrong with a verdict, else "".
func (c *tally) add(kind string, write, all bool, why []string) string {
	switch {
	case !write && len(why) > 0:
		return "taken for a read, but there is " + strings.Join(why, ", ")
	case !write:
		c.reads++
	case len(why) > 0:
		c.writes++
	case all:
		c.all++
	default:
		if c.alarms == nil {
			c.alarms = map[string]int{}
		}
		c.alarms[kind]++
	}
	return ""
}

func (c *tally) String() string {
	var alarms []string
	for _, kind := range slices.Sorted(maps.Keys(c.alarms)) {
		alarms = append(alarms, fmt.Sprintf("%s %d", kind, c.alarms[kind]))
	}
	return fmt.Sprintf("%d texts, %d of them refused by the grammar; %d statements: %d read, %d write, %d where every query may write, %d are false alarms (%s); %d texts that read observed",
		c.queries, c.refused, c.statements(), c.reads, c.writes, c.all, c.falseAlarms(), strings.Join(alarms, ", "), c.observed)
}

// ended waits until the session is gone: it may have temporary tables to drop.
func (j *judge) ended(pid uint32) error {
	j.read = ""
	for there := true; there; {
		err := j.conn.QueryRow(context.Background(), "select exists (select from pg_stat_activity where pid = $1)", pid).Scan(&there)
		if err != nil {
			return err
		}
	}
	return nil
}

// settle looks at what the last query did, now that the next one comes.
func (j *judge) settle() {
	var after [2]string
	if err := j.conn.QueryRow(context.Background(), observeQuery, j.pid).Scan(&after[0], &after[1]); err != nil {
		j.t.Error(err)
	}
	if j.read != "" && j.before[0] == "" { // else a transaction has its id already
		j.observed++
		if after != j.before {
			j.t.Errorf("%s: taken for a read, but the server gave it a transaction id: %s", j.file, j.read)
		}
	}
	j.before, j.read = after, ""
}

// catalogDecides has the kinds of statements that write or don't by what the
// catalog says of names. changesNoCatalog has others that leave it as it is.
var (
	catalogDecides   = []string{"SelectStmt", "ExplainStmt", "DeclareCursorStmt", "CopyStmt"}
	changesNoCatalog = []string{"InsertStmt", "UpdateStmt", "DeleteStmt", "FetchStmt", "ClosePortalStmt", "VariableShowStmt"}
)

// ask judges a query of a session.
func (j *judge) ask(pid uint32, query string) error {
	if pid != j.pid {
		j.pid, j.read = pid, ""
	}
	j.settle()
	j.queries++
	if !j.seen[query] { // psql's own queries come again and again
		j.seen[query] = true
		if difference := j.lexing.compare(query, false, 3); difference != "" {
			j.t.Errorf("%s: %s: %s", j.file, query, difference)
			return nil
		}
	}
	trees, err := Parse(query, false)
	if err != nil {
		j.refused++
		return nil
	}
	var kinds []string
	for _, tree := range trees {
		kinds = append(kinds, kindOf(tree.Stmt))
	}
	if j.stale && slices.ContainsFunc(kinds, func(kind string) bool { return slices.Contains(catalogDecides, kind) }) {
		if err := j.refresh(); err != nil {
			return err
		}
	}
	all := j.scanner.Scan([]byte("SELECT 1"), sqlscan.Options{}, j.catalog).Statements[0].Write
	got := j.scanner.Scan([]byte(query), sqlscan.Options{}, j.catalog).Statements
	reads := len(got) > 0
	for i, tree := range trees {
		if wrong := j.add(kinds[i], got[i].Write, all, effects(tree.Stmt, j.known)); wrong != "" {
			j.t.Errorf("%s: %s: %s", j.file, wrong, query)
		}
		decided := slices.Contains(catalogDecides, kinds[i])
		reads = reads && decided && !got[i].Write && !j.known.givesID(tree.Stmt)
		j.stale = j.stale || !decided && !slices.Contains(changesNoCatalog, kinds[i]) || decided && got[i].Write
	}
	if reads {
		j.read = query
	}
	return nil
}

// refresh reads the catalog again if it has changed. While the session holds what
// has to be read, of a view for one, the former catalog stays in force for both: to
// wait for a session that waits for us would take for ever.
func (j *judge) refresh() error {
	ctx := context.Background()
	stamp, err := one(ctx, j.conn, sqlscan.StampQuery)
	if err != nil {
		return err
	}
	// Temporary tables are nothing to sqlscan, but they are to known.
	temporary, err := one(ctx, j.conn, "SELECT coalesce(string_agg(oid::text, ' '), '') FROM pg_class WHERE relpersistence = 't'")
	if err != nil {
		return err
	}
	stamp += " " + temporary
	if stamp == j.stamp {
		j.stale = false
		return nil
	}
	catalog, known, err := readCatalogs(ctx, j.conn)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "55P03" && j.known != nil { // lock_not_available
		return nil
	} else if err != nil {
		return err
	}
	j.catalog, j.known, j.stamp, j.stale = catalog, known, stamp, false
	return nil
}

// readCatalogs reads what sqlscan and what the test knows of a database.
func readCatalogs(ctx context.Context, conn *pgx.Conn) (*sqlscan.Catalog, *known, error) {
	known, err := readKnown(ctx, conn)
	if err != nil {
		return nil, nil, err
	}
	answer, err := one(ctx, conn, sqlscan.CatalogQuery)
	if err != nil {
		return nil, nil, err
	}
	catalog, err := sqlscan.ParseCatalog([]byte(answer))
	return catalog, known, err
}

// one is the only value of an answer.
func one(ctx context.Context, conn *pgx.Conn, query string) (string, error) {
	results, err := conn.PgConn().Exec(ctx, query).ReadAll()
	if err != nil {
		return "", err
	}
	return string(results[0].Rows[0][0]), nil
}

// bound fails the test if too little was compared, or too much was a false alarm.
// The figures are those of the tests of PostgreSQL 15 with some room.
func (j *judge) bound() {
	for _, b := range []struct {
		what        string
		least, most int
		is          int
	}{
		{"statements", 40000, 1 << 30, j.statements()},
		{"statements that read", 20000, 1 << 30, j.reads},
		{"statements that write", 20000, 1 << 30, j.writes},
		{"statements where every query may write", 0, 50, j.all},
		{"texts that the grammar refuses", 50, 300, j.refused},
		{"reads that were observed", 15000, 1 << 30, j.observed},
		{"false alarms", 0, 40, j.falseAlarms()},
		{"statements whose bounds were compared", 30000, 1 << 30, j.lexing.statements},
		{"places in comments", 30000, 1 << 30, j.lexing.comments},
		{"places outside of comments", 30000, 1 << 30, j.lexing.places - j.lexing.comments},
		{"texts left out", 0, 100, j.lexing.continued},
	} {
		if b.is < b.least || b.is > b.most {
			j.t.Errorf("%d %s; %d to %d were expected", b.is, b.what, b.least, b.most)
		}
	}
}
