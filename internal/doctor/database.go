package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/lockclient/finding"
)

// The names of checks that others need.
const (
	databaseReachable = "database.reachable"
	schemaVersion     = "schema.version"
)

// databaseChecks examine the server that checks fences.
var databaseChecks = []Check{
	{databaseReachable, nil, checkReachable},
	{"database.version", []string{databaseReachable}, judging((*Input).server, judgeVersion)},
	{"database.primary", []string{databaseReachable}, judging((*Input).server, judgePrimary)},
	{"database.clock", []string{databaseReachable}, checkDatabaseClock},
}

//go:embed sql/server.sql
var serverSQL string

// server describes the server and the session.
type server struct {
	Version  string
	Number   int
	Database string
	Standby  bool
	// ReadOnly is the session's initial default_transaction_read_only; ReadOnlyBy is its
	// source (user, database, …).
	ReadOnly   bool
	ReadOnlyBy string
	Now        time.Time
}

func (in *Input) server(ctx context.Context) (server, error) { return row[server](ctx, in, serverSQL) }

func checkReachable(ctx context.Context, in *Input) ([]Finding, error) {
	cfg := in.Database.Config().ConnConfig
	s, err := in.server(ctx)
	if err != nil {
		return []Finding{{
			Grade: Problem, Says: "the database can't be reached: " + unanswered(ctx, err),
			Means:  "No grant can be sealed from here, and no other check can be made. Whether others reach the database isn't known.",
			Remedy: []string{"set WIREFENCE_DATABASE_URL to the database whose writes are fenced, and see that it takes connections from here"},
		}}, nil
	}
	trip, err := roundTrip(ctx, func() error { _, err := in.Database.Exec(ctx, "SELECT 1"); return err })
	if err != nil {
		return nil, err
	}
	return finding.Fine("database %s at %s:%d answers %s in %v", s.Database, cfg.Host, cfg.Port, in.role(), trip), nil
}

// unanswered returns the text of an error, or a shorter one if the check's time is over.
func unanswered(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "no answer in time"
	}
	return err.Error()
}

// roundTrip returns the shortest time of three calls.
func roundTrip(ctx context.Context, call func() error) (shortest time.Duration, err error) {
	for try := range 3 {
		began := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		if took := time.Since(began); try == 0 || took < shortest {
			shortest = took
		}
	}
	return shortest.Round(10 * time.Microsecond), ctx.Err()
}

// The versions that are tested.
const (
	oldestServer = 14
	newestServer = 18
)

func judgeVersion(_ *Input, s server) []Finding {
	f := Finding{Says: "PostgreSQL " + s.Version}
	switch major := s.Number / 10000; {
	case major < oldestServer:
		f.Grade, f.Means = Problem, fmt.Sprintf("Wirefence needs PostgreSQL %d or later.", oldestServer)
		f.Remedy = []string{"upgrade the server"}
	case major > newestServer:
		f.Grade, f.Means = Warning, fmt.Sprintf("Wirefence was tested up to PostgreSQL %d.", newestServer)
		f.Remedy = []string{"upgrade Wirefence"}
	}
	return []Finding{f}
}

// judgePrimary judges whether tokens can be recorded on the issuer's server.
func judgePrimary(in *Input, s server) (found []Finding) {
	const means = "No token can be recorded there: no lease is granted, and no former holder is locked out."
	if s.Standby {
		found = append(found, Finding{Grade: Problem, Says: "the server is a standby", Means: means,
			Remedy: []string{"name the primary in WIREFENCE_DATABASE_URL, or all servers with target_session_attrs=read-write"}})
	}
	if s.ReadOnly && !s.Standby {
		found = append(found, Finding{Grade: Problem, Says: "default_transaction_read_only is on, by " + s.ReadOnlyBy, Means: means,
			Remedy: []string{resetOf("default_transaction_read_only", s.ReadOnlyBy, in.role(), s.Database)}})
	}
	return finding.OrFine(found, "the server is a primary and takes writes")
}

// resetOf returns the command that resets a setting with a source of pg_settings.
func resetOf(setting, source, role, database string) string {
	switch source {
	case "user":
		return fmt.Sprintf("ALTER ROLE %s RESET %s", role, setting)
	case "database":
		return fmt.Sprintf("ALTER DATABASE %s RESET %s", pgx.Identifier{database}.Sanitize(), setting)
	case "database user":
		return fmt.Sprintf("ALTER ROLE %s IN DATABASE %s RESET %s", role, pgx.Identifier{database}.Sanitize(), setting)
	case "client":
		return "take " + setting + " out of WIREFENCE_DATABASE_URL and PGOPTIONS"
	}
	return fmt.Sprintf("ALTER SYSTEM RESET %s; SELECT pg_reload_conf(), or correct postgresql.conf", setting)
}

// checkDatabaseClock tells how far this machine's clock is from the database's.
func checkDatabaseClock(ctx context.Context, in *Input) ([]Finding, error) {
	before := time.Now()
	s, err := in.server(ctx)
	if err != nil {
		return nil, err
	}
	return []Finding{finding.Clock("the database's clock", s.Now, before, time.Now())}, nil
}
