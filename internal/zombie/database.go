package zombie

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

var (
	//go:embed session.sql
	sessionSQL string
	//go:embed tables.sql
	tablesSQL string
	//go:embed slot.sql
	slotSQL string
	//go:embed flush.sql
	flushSQL string
	//go:embed changes.sql
	changesSQL string
	//go:embed writers.sql
	writersSQL string
	//go:embed open.sql
	openSQL string
	//go:embed blocked.sql
	blockedSQL string
	//go:embed gone.sql
	goneSQL string
	//go:embed end.sql
	endSQL string
)

// slotName is that of the temporary slot, with the number of the session that owns it.
const slotName = "wirefence_zombie_"

// mostRows is how many rows of a table are copied.
const mostRows = 200_000

// table is a watched table, or one below it.
type table struct {
	OID    uint32
	Name   string // as in SQL, with the schema
	Kind   string // of pg_class
	Logged bool
	Copy   string // SQL that reads it, but for the number of rows
	Key    []string
	// Numbered are columns that a sequence fills.
	Numbered []string
}

// database is the session in which the tables are watched. Copies and decoded changes have the
// same spelling of values, since one session's settings decide it.
type database struct {
	conn   *pgx.Conn
	tables []table
	slot   string // empty without logical decoding
	why    string // there is no slot
}

var (
	errNoTable = errors.New("can't be watched")
	// A pooler would keep the session, and with it the slot.
	errPooler = errors.New("a pooler stands before the database: name the server itself")
)

// open finds the tables and begins to decode, if the server and the role's rights allow it.
func open(ctx context.Context, conn *pgx.Conn, names []string) (*database, error) {
	d := &database{conn: conn}
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return nil, err
	}
	if pid != conn.PgConn().PID() {
		return nil, errPooler
	}
	if err := d.find(ctx, names); err != nil {
		return nil, err
	}
	if err := d.decode(ctx); err != nil {
		return nil, err
	}
	_, err := conn.Exec(ctx, sessionSQL)
	return d, err
}

// decode makes the slot, or says why there is none.
func (d *database) decode(ctx context.Context) error {
	slot, refusal := slotName+strconv.FormatUint(uint64(d.conn.PgConn().PID()), 10), (*pgconn.PgError)(nil)
	_, err := d.conn.Exec(ctx, slotSQL, slot) // fails, too, if the server has no test_decoding
	switch {
	case err == nil:
		d.slot = slot
	case errors.As(err, &refusal) && ctx.Err() == nil:
		d.why = refusal.Message
		return nil
	}
	return err
}

// close drops the slot, which otherwise ends a moment after the session.
func (d *database) close(ctx context.Context) {
	if d.slot == "" || d.conn.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = d.conn.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", d.slot)
	d.slot = ""
}

// find looks the tables up: partitions may be made while the commands run.
func (d *database) find(ctx context.Context, names []string) error {
	rows, err := d.conn.Query(ctx, tablesSQL, names)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	if err != nil {
		return err
	}
	d.tables = d.tables[:0]
	for _, t := range found {
		switch t.Kind {
		case "r":
			d.tables = append(d.tables, t)
		case "p": // its partitions have the rows
		default:
			return fmt.Errorf("%s %w: it is no table, or a foreign one", t.Name, errNoTable)
		}
	}
	return nil
}

// isDecoded reports whether the changes of a table are decoded: those of an unlogged one can't
// be.
func (d *database) isDecoded(t table) bool { return d.slot != "" && t.Logged }

func (d *database) oids() (all []uint32) {
	for _, t := range d.tables {
		all = append(all, t.OID)
	}
	return all
}

// changes returns the decoded changes that were committed since the last call, in the order of
// the commits.
func (d *database) changes(ctx context.Context) (all []change, err error) {
	if d.slot == "" {
		return nil, nil
	}
	names, watched := []string{}, map[string]bool{}
	for _, t := range d.tables {
		names, watched[t.Name] = append(names, t.Name), true
	}
	if err := pgx.BeginFunc(ctx, d.conn, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, flushSQL); return err }); err != nil {
		return nil, err
	}
	rows, err := d.conn.Query(ctx, changesSQL, d.slot, names)
	if err != nil {
		return nil, err
	}
	var xid int64
	var line string
	_, err = pgx.ForEachRow(rows, []any{&xid, &line}, func() error {
		c, err := parseChange(line)
		c.transaction = uint32(xid)
		for _, name := range c.tables {
			if watched[name] {
				one := c
				one.tables = []string{name}
				all = append(all, one)
			}
		}
		return err
	})
	return all, err
}

// copied is a table's rows at one moment: by their keys, or as a bag where it has none.
type copied struct {
	rows map[string]Row
	bag  map[string][]Row
}

func (c copied) add(t table, row Row) {
	if key, ok := keyOf(t, row); ok {
		c.rows[key] = row
		return
	}
	text := row.text()
	c.bag[text] = append(c.bag[text], row)
}

// noCopyError says why a table was not copied.
type noCopyError string

func (e noCopyError) Error() string { return string(e) }

func (d *database) copy(ctx context.Context, t table) (c copied, err error) {
	c = copied{map[string]Row{}, map[string][]Row{}}
	read := d.conn.PgConn().ExecParams(ctx, t.Copy+strconv.Itoa(mostRows+1), nil, nil, nil, nil)
	fields, n := read.FieldDescriptions(), 0
	for ; read.NextRow(); n++ {
		row := Row{}
		for i, value := range read.Values() {
			row[fields[i].Name] = spelled(fields[i].DataTypeOID, value)
		}
		c.add(t, row)
	}
	_, err = read.Close()
	switch {
	case isLocked(err):
		return c, noCopyError("is locked")
	case n > mostRows:
		return c, noCopyError(fmt.Sprintf("has more than %d rows", mostRows))
	}
	return c, err
}

// isLocked reports an error of a statement that has waited for a lock for lock_timeout.
func isLocked(err error) bool {
	refusal := (*pgconn.PgError)(nil)
	return errors.As(err, &refusal) && refusal.Code == "55P03"
}

// spelled is a value as test_decoding spells it.
func spelled(oid uint32, value []byte) *string {
	if value == nil {
		return nil
	}
	text := string(value)
	if oid == pgtype.BoolOID {
		text = strconv.FormatBool(text == "t")
	}
	return &text
}

// keyOf is a row's key as one text, if the table has one and the row all its columns.
func keyOf(t table, row Row) (string, bool) {
	key := Row{}
	for _, name := range t.Key {
		value, known := row[name]
		if !known {
			return "", false
		}
		key[name] = value
	}
	return key.text(), len(t.Key) > 0
}

// writer is a session that writes to the tables.
type writer struct {
	PID               uint32
	User, Application string
	Idle              bool // in its transaction; false if this role may not know it
}

func (w writer) String() string {
	return fmt.Sprintf("%q, as %s in server process %d", w.Application, w.User, w.PID)
}

func (d *database) writers(ctx context.Context) ([]writer, error) {
	rows, err := d.conn.Query(ctx, writersSQL, d.oids())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[writer])
}

// openTransactions are those of the database that may still commit something.
func (d *database) openTransactions(ctx context.Context) (map[uint32]bool, error) {
	rows, err := d.conn.Query(ctx, openSQL)
	if err != nil {
		return nil, err
	}
	all := map[uint32]bool{}
	var xid int64
	_, err = pgx.ForEachRow(rows, []any{&xid}, func() error { all[uint32(xid)] = true; return nil })
	return all, err
}

// waiting says who waits for a lock of whom.
type waiting struct {
	text     string // empty if nobody does
	advisory bool   // for an advisory lock
	by       map[uint32][]uint32
}

// behind reports whether a session of one tap's waits for one of another's, or for a session that does.
func (w waiting) behind(waits, holds *tap) bool {
	for pid, by := range w.by {
		if waits.serves(pid) && slices.ContainsFunc(by, func(before uint32) bool {
			return holds.serves(before) || slices.ContainsFunc(w.by[before], holds.serves)
		}) {
			return true
		}
	}
	return false
}

func (d *database) blocked(ctx context.Context) (w waiting, err error) {
	rows, err := d.conn.Query(ctx, blockedSQL)
	if err != nil {
		return w, err
	}
	var all []string
	var pid uint32
	var application string
	var by []uint32
	var advisory bool
	w.by = map[uint32][]uint32{}
	_, err = pgx.ForEachRow(rows, []any{&pid, &application, &by, &advisory}, func() error {
		all = append(all, fmt.Sprintf("server process %d (%s) waits for a lock of process %s", pid, application, strings.Trim(fmt.Sprint(by), "[]")))
		w.by[pid], w.advisory = by, w.advisory || advisory
		return nil
	})
	w.text = strings.Join(all, "; ")
	return w, err
}

// isTrue reports whether the first column of a query's first row is true.
func (d *database) isTrue(ctx context.Context, query string) (bool, error) {
	read := d.conn.PgConn().ExecParams(ctx, query, nil, nil, nil, nil)
	fields, found, first := read.FieldDescriptions(), false, true
	for read.NextRow() {
		if values := read.Values(); first && len(values) > 0 {
			found, first = string(values[0]) == "t", false
		}
	}
	if _, err := read.Close(); err != nil {
		if isLocked(err) {
			err = nil
		}
		return false, err
	}
	if len(fields) == 0 || fields[0].DataTypeOID != pgtype.BoolOID {
		return false, errors.New("its first column is no boolean")
	}
	return found, nil
}
