package stack

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

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
	ran      map[uint64]string       // by transaction, who has written
	takers   map[string]string       // by resource and token
	sealers  map[string]string       // the same, of what was committed, by the holder's name too
	last     map[string]int64        // by resource, of the seals so far
	later    map[uint64][]model.Step // by transaction, under a token that it records itself
	open     []model.Step            // of the transaction that is being read
}

const stepsSlot = "steps_"

// TellSteps has a database tell its steps from here on. Each row of the table has the token by
// which it is written, of a resource in whose name {id} is the row's. The connection is a
// superuser's.
func TellSteps(t testing.TB, conn *pgx.Conn, table, resource string) *Steps {
	t.Helper()
	s := TellStepsAlone(t, conn, table, resource)
	MustExec(t, conn, "SELECT pg_create_logical_replication_slot($1 || current_database(), 'test_decoding')", stepsSlot)
	return s
}

// TellStepsAlone is TellSteps for one who reads the log otherwise than by Follow.
func TellStepsAlone(t testing.TB, conn *pgx.Conn, table, resource string) *Steps {
	t.Helper()
	MustExec(t, conn, stepsSQL)
	MustExec(t, conn, fmt.Sprintf("CREATE TRIGGER tells BEFORE INSERT ON %s FOR EACH ROW WHEN (NEW.token IS NOT NULL) EXECUTE FUNCTION wirefence.tell_write('%s')", table, resource))
	s := &Steps{
		table: table, resource: resource, ran: map[uint64]string{}, takers: map[string]string{}, sealers: map[string]string{},
		last: map[string]int64{}, later: map[uint64][]model.Step{},
	}
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
	return s
}

// Granted tells that an acquire has returned, whose seal was this connection's.
func (s *Steps) Granted(t testing.TB, conn *pgx.Conn, token int64) {
	t.Helper()
	MustExec(t, conn, "SELECT wirefence.tell_step('granted', wirefence.step_actor(false), $1, $2)", s.resource, token)
}

var (
	toldStep      = regexp.MustCompile(`^message: transactional: 0 prefix: step, sz: \d+ content:(.*)$`)
	committedRow  = regexp.MustCompile(`^table public\.(\w+): INSERT: (?:id\[integer\]:(\d+) )?.*token\[\w+\]:(\d+)`)
	committedSeal = regexp.MustCompile(`^table wirefence\.resource_locks: (?:INSERT|UPDATE): .*resource_id\[text\]:'([^']*)' last_token\[bigint\]:(\d+) (?:.* )?holder\[text\]:(?:'([^'/]*)|null)`)
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
			wrong = s.Read(at, line)
		}
		return nil
	})
	if err == nil && last {
		_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1 || current_database())", stepsSlot)
	}
	return wrong, err
}

// Read takes a line of test_decoding, which is at this position in the log.
func (s *Steps) Read(at, line string) error {
	if m := toldStep.FindStringSubmatch(line); m != nil {
		return s.Told(m[1])
	}
	if m := committedSeal.FindStringSubmatch(line); m != nil {
		token, err := strconv.ParseInt(m[2], 10, 64)
		s.open = append(s.open, model.Step{Kind: model.Sealed, Actor: m[3], Resource: m[1], Token: token})
		return err
	}
	if m := committedRow.FindStringSubmatch(line); m != nil && m[1] == s.table {
		token, err := strconv.ParseInt(m[3], 10, 64)
		s.open = append(s.open, model.Step{Kind: model.Commits, Resource: strings.ReplaceAll(s.resource, "{id}", m[2]), Token: token})
		return err
	}
	if m := commitLine.FindStringSubmatch(line); m != nil {
		xid, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			return err
		}
		open := s.open
		s.open = nil
		return s.Commit(at, xid, open)
	}
	return nil
}

func tokenOf(s model.Step) string { return fmt.Sprint(s.Resource, "=", s.Token) }

// Told takes a step that the log has as a message. One under a token that its transaction records
// itself comes behind that, if it is committed.
func (s *Steps) Told(line string) error {
	step, err := model.ParseStep(line)
	if err != nil {
		return err
	}
	xid := step.Position
	switch step.Kind {
	case model.Ran:
		s.ran[xid] = step.Actor
		if step.Token == 0 { // it is written under the last one, or under none
			step.Token = s.last[step.Resource]
		}
	case model.Wanted: // of token 0: it takes the next one, whatever that is
		s.takers[tokenOf(step)] = step.Actor
		return nil
	case model.Granted: // to a holder, who knows nothing of the session that sealed
		step.Actor = cmp.Or(s.sealers[tokenOf(step)+" "+step.Actor], step.Actor)
	}
	if xid != 0 && step.Token > s.last[step.Resource] {
		s.later[xid] = append(s.later[xid], step)
		return nil
	}
	return s.Step(step)
}

// Commit takes the seals and the rows of a transaction that was committed at a position. A seal's
// actor is the holder.
func (s *Steps) Commit(at string, xid uint64, steps []model.Step) error {
	position, err := parsePosition(at)
	if err != nil {
		return err
	}
	var seals, rows []model.Step
	for _, step := range steps {
		switch {
		case step.Kind == model.Commits:
			step.Actor, step.Position = s.ran[xid], position
			rows = append(rows, step)
		case step.Token != s.last[step.Resource]: // or the resource has changed otherwise
			s.last[step.Resource] = step.Token
			taker := cmp.Or(s.takers[tokenOf(step)], s.takers[step.Resource+"=0"])
			s.sealers[tokenOf(step)+" "+step.Actor], step.Actor = taker, taker
			if taker != "" {
				seals = append(seals, model.Step{Kind: model.Wanted, Actor: taker, Resource: step.Resource, Token: step.Token})
			}
			seals = append(seals, step)
		}
	}
	for _, step := range slices.Concat(seals, s.later[xid], rows) {
		if step.Kind == model.Commits && step.Token == 0 {
			step.Token = s.last[step.Resource]
		}
		if err := s.Step(step); err != nil {
			return err
		}
	}
	delete(s.ran, xid)
	delete(s.later, xid)
	return nil
}

// Promote tells that a standby became the primary which had all up to a position.
func (s *Steps) Promote(at string) error {
	position, err := parsePosition(at)
	if err != nil {
		return err
	}
	clear(s.ran)
	clear(s.later)
	clear(s.takers)
	for name, token := range s.last {
		if err := s.Step(model.Step{Kind: model.Promoted, Resource: name, Token: token, Position: position}); err != nil {
			return err
		}
	}
	return nil
}

func parsePosition(at string) (uint64, error) {
	high, low, _ := strings.Cut(at, "/")
	return strconv.ParseUint(high+fmt.Sprintf("%08s", low), 16, 64)
}

// Defect is SQL that replaces a text of one of Wirefence's functions.
func Defect(function, from, to string) string {
	quoted := func(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
	return fmt.Sprintf("DO $$ BEGIN EXECUTE replace(pg_get_functiondef('wirefence.%s'::regproc), %s, %s); END $$", function, quoted(from), quoted(to))
}

// Defects of takeovers, which the walk must find.
var (
	SealsEarly = Defect("lock_exclusive", "NOT pg_try_advisory_xact_lock(", "NOT pg_try_advisory_xact_lock_shared(")
	JumpsByOne = Defect("next_token", "NOT wirefence.is_former(known)", "true")
)
