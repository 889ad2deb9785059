package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Names of checks that others need.
const (
	databaseReachable = "database.reachable"
	schemaVersion     = "schema.version"
)

// databaseChecks look at the server that judges.
var databaseChecks = []Check{
	{databaseReachable, nil, checkReachable},
	{"database.version", []string{databaseReachable}, checkServerVersion},
	{"database.primary", []string{databaseReachable}, checkPrimary},
	{"database.clock", []string{databaseReachable}, checkDatabaseClock},
}

//go:embed sql/server.sql
var serverSQL string

// server is what the database says of itself.
type server struct {
	Version  string
	Number   int
	Database string
	Standby  bool
	// ReadOnly is default_transaction_read_only as the session began with it,
	// ReadOnlyBy where that comes from.
	ReadOnly   bool
	ReadOnlyBy string
	Now        time.Time
}

// checkReachable connects as the other commands do.
func checkReachable(ctx context.Context, in *Input) ([]Finding, error) {
	cfg := in.Database.Config().ConnConfig
	s, err := row[server](ctx, in, serverSQL)
	if err != nil {
		return []Finding{{
			Grade: Problem, Says: "the database can't be reached: " + unanswered(ctx, err),
			Means:  "Nothing can be sealed or looked at from here; whether checks work for others isn't known.",
			Remedy: []string{"set WIREFENCE_DATABASE_URL to the database whose writes are fenced, and see that it takes connections from here"},
		}}, nil
	}
	trip, err := roundTrip(ctx, func() error { _, err := in.Database.Exec(ctx, "SELECT 1"); return err })
	if err != nil {
		return nil, err
	}
	return fine("database %s at %s:%d answers %s in %v", s.Database, cfg.Host, cfg.Port, in.role(), trip), nil
}

// unanswered is the text of an error, shorter where it only says that time ran
// out.
func unanswered(ctx context.Context, err error) string {
	if ctx.Err() != nil {
		return "no answer in time"
	}
	return err.Error()
}

// roundTrip is the shortest time that some calls took.
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

func checkServerVersion(ctx context.Context, in *Input) ([]Finding, error) {
	s, err := row[server](ctx, in, serverSQL)
	if err != nil {
		return nil, err
	}
	f := Finding{Says: "PostgreSQL " + s.Version}
	switch major := s.Number / 10000; {
	case major < oldestServer:
		f.Grade, f.Means = Problem, fmt.Sprintf("Wirefence needs PostgreSQL %d or later.", oldestServer)
		f.Remedy = []string{"upgrade the server"}
	case major > newestServer:
		f.Grade, f.Means = Warning, fmt.Sprintf("Wirefence was tested up to PostgreSQL %d.", newestServer)
		f.Remedy = []string{"upgrade Wirefence"}
	}
	return []Finding{f}, nil
}

// checkPrimary looks whether tokens can be recorded where the issuer connects.
func checkPrimary(ctx context.Context, in *Input) ([]Finding, error) {
	s, err := row[server](ctx, in, serverSQL)
	if err != nil {
		return nil, err
	}
	const means = "No token can be recorded there: no lease is granted, and nobody is locked out."
	var found []Finding
	if s.Standby {
		found = append(found, Finding{Grade: Problem, Says: "the server is a standby", Means: means,
			Remedy: []string{"name the primary in WIREFENCE_DATABASE_URL, or all servers with target_session_attrs=read-write"}})
	}
	if s.ReadOnly && !s.Standby {
		found = append(found, Finding{Grade: Problem, Says: "default_transaction_read_only is on, by " + s.ReadOnlyBy, Means: means,
			Remedy: []string{resetOf("default_transaction_read_only", s.ReadOnlyBy, in.role(), s.Database)}})
	}
	return orFine(found, "the server is a primary and takes writes"), nil
}

// resetOf is what takes a setting back that comes from a source of pg_settings.
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

// tolerable is an offset between clocks that nobody would look for.
const tolerable = time.Second

// checkDatabaseClock tells how far this machine's clock is from the database's.
func checkDatabaseClock(ctx context.Context, in *Input) ([]Finding, error) {
	before := time.Now()
	s, err := row[server](ctx, in, serverSQL)
	if err != nil {
		return nil, err
	}
	return []Finding{clockFinding("the database's clock", s.Now, before, time.Now())}, nil
}

// clockFinding compares a clock that was read between two moments of this
// machine's.
func clockFinding(whose string, read, before, after time.Time) Finding {
	offset := read.Sub(before.Add(after.Sub(before) / 2)).Round(time.Millisecond)
	f := Finding{Says: fmt.Sprintf("%s is %v off this machine's, give or take %v", whose, offset, (after.Sub(before) / 2).Round(time.Millisecond))}
	if offset.Abs() > tolerable+after.Sub(before) {
		f.Grade, f.Means = Note, "Nothing relies on it: a lease's time is counted by one clock alone. Logs will not line up."
		f.Remedy = []string{"let both follow the same time servers"}
	}
	return f
}
