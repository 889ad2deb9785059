package stack

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/model"
)

//go:embed testdata/steps.sql
var stepsSQL string

// Steps walks the steps of a database through the model. Checks, holds, takeovers and writes tell
// theirs in the write-ahead log, which has what was committed, too, all in one order.
type Steps struct {
	model.Walk
	table    string
	resource string
	ran      map[uint64]map[int64]string // by transaction and token, who has written
	takers   map[string]string           // by resource and token
	last     map[string]int64            // by resource, of the seals so far
	open     []model.Step                // of the transaction that is being read
}

const stepsSlot = "steps_"

// TellSteps has a database tell its steps from here on. Each row of the table has the token of
// the resource by which it is written. The connection is a superuser's.
func TellSteps(t TB, conn *pgx.Conn, table, resource string) *Steps {
	t.Helper()
	MustExec(t, conn, stepsSQL)
	MustExec(t, conn, fmt.Sprintf("CREATE TRIGGER tells BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION wirefence.tell_write('%s')", table, resource))
	s := &Steps{table: table, resource: resource, ran: map[uint64]map[int64]string{}, takers: map[string]string{}, last: map[string]int64{}}
	s.Quiet = true
	rows, err := conn.Query(t.Context(), "SELECT resource_id, last_token FROM wirefence.resource_locks WHERE last_token > 0")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	var token int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &token}, func() error {
		s.last[name] = token
		if err := s.Step(model.Step{Kind: model.Wanted, Actor: "first", Resource: name, Token: token}); err != nil {
			return err
		}
		return s.Step(model.Step{Kind: model.Sealed, Actor: "first", Resource: name, Token: token})
	}); err != nil {
		t.Fatal(err)
	}
	MustExec(t, conn, "SELECT pg_create_logical_replication_slot($1 || current_database(), 'test_decoding')", stepsSlot)
	return s
}

// Granted tells that an acquire has returned, whose seal was this connection's.
func (s *Steps) Granted(t TB, conn *pgx.Conn, token int64) {
	t.Helper()
	MustExec(t, conn, "SELECT wirefence.tell_step('granted', wirefence.step_actor(false), $1, $2)", s.resource, token)
}

var (
	toldStep      = regexp.MustCompile(`^message: transactional: 0 prefix: step, sz: \d+ content:(.*)$`)
	committedRow  = regexp.MustCompile(`^table public\.(\w+): INSERT: .*token\[\w+\]:(\d+)`)
	committedSeal = regexp.MustCompile(`^table wirefence\.resource_locks: (?:INSERT|UPDATE): .*resource_id\[text\]:'([^']*)' last_token\[bigint\]:(\d+) `)
	commitLine    = regexp.MustCompile(`^COMMIT (\d+)`)
)

// Follow walks the steps since the last call, and returns what is wrong with the first one that
// can't be. last drops what keeps the log.
func (s *Steps) Follow(ctx context.Context, conn *pgx.Conn, last bool) (wrong, err error) {
	rows, err := conn.Query(ctx, "SELECT lsn::text, data FROM pg_logical_slot_get_changes($1 || current_database(), NULL, NULL)", stepsSlot)
	if err != nil {
		return nil, err
	}
	var at, line string
	_, err = pgx.ForEachRow(rows, []any{&at, &line}, func() error {
		if wrong == nil {
			wrong = s.read(at, line)
		}
		return nil
	})
	if err == nil && last {
		_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1 || current_database())", stepsSlot)
	}
	return wrong, err
}

// read takes a line of the log, which is at this position.
func (s *Steps) read(at, line string) error {
	if m := toldStep.FindStringSubmatch(line); m != nil {
		step, err := model.ParseStep(m[1])
		switch {
		case err != nil:
			return err
		case step.Kind == model.Ran:
			if s.ran[step.Position] == nil {
				s.ran[step.Position] = map[int64]string{}
			}
			s.ran[step.Position][step.Token] = step.Actor
		case step.Kind == model.Wanted:
			s.takers[fmt.Sprint(step.Resource, "=", step.Token)] = step.Actor
			if step.Token == 0 { // it takes the next one, whatever that is
				return nil
			}
		}
		return s.Step(step)
	}
	if m := committedSeal.FindStringSubmatch(line); m != nil {
		token, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return err
		}
		if token == s.last[m[1]] { // the row has changed otherwise
			return nil
		}
		s.last[m[1]] = token
		taker := s.takers[fmt.Sprint(m[1], "=", token)]
		if next := s.takers[m[1]+"=0"]; taker == "" && next != "" {
			taker = next
			s.open = append(s.open, model.Step{Kind: model.Wanted, Actor: taker, Resource: m[1], Token: token})
		}
		s.open = append(s.open, model.Step{Kind: model.Sealed, Actor: taker, Resource: m[1], Token: token})
	} else if m := committedRow.FindStringSubmatch(line); m != nil && m[1] == s.table {
		token, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return err
		}
		s.open = append(s.open, model.Step{Kind: model.Commits, Resource: s.resource, Token: token})
	} else if m := commitLine.FindStringSubmatch(line); m != nil {
		return s.commit(at, m[1])
	}
	return nil
}

// commit walks the steps of a transaction.
func (s *Steps) commit(at, transaction string) error {
	high, low, _ := strings.Cut(at, "/")
	position, err := strconv.ParseUint(high+fmt.Sprintf("%08s", low), 16, 64)
	if err != nil {
		return err
	}
	xid, err := strconv.ParseUint(transaction, 10, 64)
	if err != nil {
		return err
	}
	for _, step := range s.open {
		if step.Kind == model.Commits {
			step.Actor, step.Position = s.ran[xid][step.Token], position
		}
		if err := s.Step(step); err != nil {
			return err
		}
	}
	delete(s.ran, xid)
	s.open = s.open[:0]
	return nil
}
