package loadtest

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// journal holds what PostgreSQL's logical decoding tells of the commits, in their
// order, against what clients were told.
type journal struct {
	conn  *pgx.Conn
	steps *stack.Steps
	wrong bool // with one of them
	fault func(format string, args ...any)

	// In the order of commits, by resource.
	highest   [resources]int64   // the last token recorded
	rows      [resources]int64   // in the table journal
	rowsAt    map[recorded]int64 // rows, when a token was recorded
	of        map[int64]int      // rows by transaction
	decoded   int64              // rows in all
	takeovers int64              // tokens recorded

	mu     sync.Mutex
	fates  map[int64]outcome
	seen   map[recorded]int64 // by the new holder, of older rows
	cited  map[recorded]bool  // current tokens that refusals have named
	higher map[recorded]bool  // tokens that were too low for a seal
}

type recorded struct {
	id    int
	token int64
}

// outcome is what a client was told of a transaction, and how many rows it must
// have left if it is committed.
type outcome struct {
	fate fate
	rows int
}

const slot = "contention_"

// noStep begins what is wrong with the first step that the model hasn't.
const noStep = "no step of the model"

// openJournal begins to keep what is committed.
func openJournal(ctx context.Context, url string, steps *stack.Steps, fault func(string, ...any)) (*journal, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1 || current_database(), 'test_decoding')", slot); err != nil {
		return nil, err
	}
	return &journal{
		conn: conn, steps: steps, fault: fault, rowsAt: map[recorded]int64{}, of: map[int64]int{},
		fates: map[int64]outcome{}, seen: map[recorded]int64{}, cited: map[recorded]bool{}, higher: map[recorded]bool{},
	}, nil
}

func (j *journal) told(tx int64, p plan, f fate) {
	o := outcome{fate: f}
	for _, part := range p.parts {
		o.rows += part.rows()
	}
	note(j, j.fates, tx, o)
}

// note records what a client was told.
func note[K comparable, V any](j *journal, in map[K]V, what K, value V) {
	j.mu.Lock()
	defer j.mu.Unlock()
	in[what] = value
}

var (
	decodedRow   = regexp.MustCompile(`^table public\.(\w+): (?:INSERT|UPDATE): id\[integer\]:(\d+) token\[bigint\]:(\d+) tx\[bigint\]:(-?\d+)`)
	decodedToken = regexp.MustCompile(`^table wirefence\.resource_locks: (?:INSERT|UPDATE): resource_id\[text\]:'doc:(\d+)' last_token\[bigint\]:(\d+) `)
)

// read takes in some of what was committed, and reports whether there was any.
func (j *journal) read(ctx context.Context) (bool, error) {
	rows, err := j.conn.Query(ctx, "SELECT lsn::text, data FROM pg_logical_slot_get_changes($1 || current_database(), NULL, 20000)", slot)
	if err != nil {
		return false, err
	}
	var at, line string
	lines, err := pgx.ForEachRow(rows, []any{&at, &line}, func() error {
		if err := j.steps.Read(at, line); err != nil && !j.wrong {
			j.wrong = true
			j.fault("%s: %v", noStep, err)
		}
		return j.take(line)
	})
	return lines.RowsAffected() > 0, err
}

func (j *journal) take(line string) error {
	if m := decodedRow.FindStringSubmatch(line); m != nil {
		tx, _ := strconv.ParseInt(m[4], 10, 64)
		id, _ := strconv.Atoi(m[2])
		j.takeRow(m[1], recorded{id, number(m[3])}, tx)
	} else if m := decodedToken.FindStringSubmatch(line); m != nil {
		id, _ := strconv.Atoi(m[1])
		j.takeToken(recorded{id, number(m[2])})
	} else if strings.HasPrefix(line, "table public.") && !strings.Contains(line, ": DELETE: ") {
		return fmt.Errorf("not understood: %s", line)
	}
	return nil
}

// takeRow wants a row's token to be the one that was recorded last before it was
// committed. That is I1 and I2 in one: no commit carries less than any commit or
// any seal before it.
func (j *journal) takeRow(table string, row recorded, tx int64) {
	j.decoded++
	j.of[tx]++
	if table == "journal" {
		j.rows[row.id]++
	}
	if tx == undoneTx {
		j.fault("a row of %s was rolled back, and is committed: %v", table, row)
	}
	if last := j.highest[row.id]; row.token != last {
		j.fault("transaction %d committed a row of %s for resource %d with token %d while the last recorded was %d", tx, table, row.id, row.token, last)
	}
}

func (j *journal) takeToken(r recorded) {
	if r.token < j.highest[r.id] {
		j.fault("resource %d went from token %d to %d", r.id, j.highest[r.id], r.token)
	}
	if r.token > j.highest[r.id] {
		j.takeovers++
		j.highest[r.id] = r.token
		j.rowsAt[r] = j.rows[r.id]
	}
}

// compare holds what clients were told against all that was committed.
func (j *journal) compare() {
	for tx, o := range j.fates {
		rows := j.of[tx]
		delete(j.of, tx)
		switch {
		case o.fate == committed && rows < o.rows:
			j.fault("transaction %d committed, and left %d rows of %d", tx, rows, o.rows)
		case (o.fate == refused || o.fate == conflict) && rows > 0:
			j.fault("transaction %d was refused, and left %d rows", tx, rows)
		}
	}
	for tx, rows := range j.of {
		j.fault("transaction %d left %d rows, and nobody ran it", tx, rows)
	}
	for r, rows := range j.seen {
		if there, ok := j.rowsAt[r]; !ok || there != rows {
			j.fault("who took over resource %d with token %d saw %d older rows; there are %d (%v)", r.id, r.token, rows, there, ok)
		}
	}
	for r := range j.cited {
		if _, ok := j.rowsAt[r]; !ok {
			j.fault("a refusal names token %d as the current one of resource %d, and it was never recorded", r.token, r.id)
		}
	}
	for r := range j.higher {
		if j.highest[r.id] < r.token {
			j.fault("token %d of resource %d was too low for a seal, and none as high was ever recorded", r.token, r.id)
		}
	}
}

// close drops the slot.
func (j *journal) close(ctx context.Context) error {
	_, err := j.conn.Exec(ctx, "SELECT pg_drop_replication_slot($1 || current_database())", slot)
	_ = j.conn.Close(ctx)
	return err
}

// number reads digits.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}
