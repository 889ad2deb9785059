package doctor

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/lockclient/finding"
	"github.com/wirefence/wirefence/migrations"
)

// engineChecks examine whether the server behaves as PostgreSQL does.
func engineChecks() (all []Check) {
	for _, p := range engine.Probes {
		all = append(all, Check{"engine." + p.Name, []string{databaseReachable}, func(ctx context.Context, in *Input) ([]Finding, error) {
			return checkEngine(ctx, in, p)
		}})
	}
	return append(all, Check{"engine.single", []string{databaseReachable}, checkSingle}, Check{"engine.citus", []string{databaseReachable}, checkCitus}, Check{"engine.timeline", []string{schemaVersion}, checkTimeline})
}

func checkEngine(ctx context.Context, in *Input, p engine.Probe) (found []Finding, err error) {
	faults, err := onConnection(ctx, in, func(one *pgx.Conn) ([]engine.Fault, error) {
		return onConnection(ctx, in, func(other *pgx.Conn) ([]engine.Fault, error) { return p.Run(ctx, one, other) })
	})
	for _, f := range faults {
		found = append(found, unfit(f))
	}
	return finding.OrFine(found, "%s", map[string]string{
		"locks":    "two connections exclude each other by advisory locks, of sessions and of transactions",
		"sqlstate": "RAISE keeps its SQLSTATE",
		"abort":    "an error aborts its transaction, and what was sent behind it",
	}[p.Name]), err
}

func unfit(f engine.Fault) Finding {
	return Finding{Grade: Problem, Says: f.Says, Means: f.Means, Remedy: []string{"a server that behaves as PostgreSQL does: docs/reference/engines.md"}}
}

// checkSingle checks that no router leads a connection to several databases.
func checkSingle(ctx context.Context, in *Input) (found []Finding, err error) {
	faults, err := onConnection(ctx, in, func(conn *pgx.Conn) ([]engine.Fault, error) { return engine.Single(ctx, conn) })
	for _, f := range faults {
		found = append(found, unfit(f))
	}
	return finding.OrFine(found, "one server answers all questions of a connection"), err
}

//go:embed sql/identity.sql
var identitySQL string

// identity is the server's identity in the schema.
type identity struct {
	Name       string
	Reacquires bool // a resource has failover = reacquire, which depends on the identity
}

// unknownServer is the identity in a schema that doesn't ask the server for its own.
const unknownServer = "unknown"

// checkTimeline compares the timeline that the server reports with the schema's identity.
func checkTimeline(ctx context.Context, in *Input) ([]Finding, error) {
	faults, err := onConnection(ctx, in, func(conn *pgx.Conn) ([]engine.Fault, error) { return engine.Timeline(ctx, conn) })
	if err != nil {
		return nil, err
	}
	id, err := row[identity](ctx, in, identitySQL)
	refusal := (*pgconn.PgError)(nil)
	const inRecovery = "55000"
	switch {
	case len(faults) == 0 && errors.As(err, &refusal) && refusal.Code == inRecovery:
		return finding.Fine("a standby has no timeline of its own"), nil
	case len(faults) > 0 && errors.As(err, &refusal):
		return []Finding{{Grade: Problem, Says: faults[0].Says, Means: "Checks of granted tokens fail, and grants too.",
			Remedy: []string{"a server that tells its timeline", "or, where the storage keeps every commit across a failover: DROP SCHEMA wirefence CASCADE, " +
				"which removes all tokens and guards, and wirefence migrate --failover trust"}}}, nil
	case errors.As(err, &refusal) && refusal.Code == insufficientPrivilege:
		return nil, &finding.MissingRight{What: refusal.Message, Remedy: []string{"GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system(), pg_catalog.pg_current_wal_lsn(), " +
			"pg_catalog.pg_walfile_name(pg_lsn) TO wirefence_owner, wirefence_issuer"}}
	case err != nil:
		return nil, err
	}
	return timelineFindings(faults, id), nil
}

func timelineFindings(faults []engine.Fault, id identity) []Finding {
	const trusted = "A promotion isn't noticed: tokens still count after it, as failover = trust says. That is right where the storage keeps every commit across a failover."
	asks := "SET ROLE wirefence_owner; " + migrations.IdentitySQL()
	switch unknown := id.Name == unknownServer; {
	case unknown && id.Reacquires && len(faults) > 0:
		return []Finding{{Grade: Problem, Says: "failover is reacquire, but " + faults[0].Says, Means: faults[0].Means,
			Remedy: []string{"wirefence resource set --failover trust --reason …, where the storage keeps every commit across a failover"}}}
	case unknown && id.Reacquires:
		return []Finding{{Grade: Problem, Says: "failover is reacquire, but the schema doesn't ask which server this is",
			Means: "A promotion that loses grants isn't noticed: a former holder's token would count again.", Remedy: []string{asks}}}
	case unknown && len(faults) > 0:
		return []Finding{{Grade: Note, Says: faults[0].Says, Means: trusted}}
	case unknown:
		return []Finding{{Grade: Note, Says: "the server tells its timeline, but the schema was made where none did", Means: trusted,
			Remedy: []string{asks + ", and holders acquire again where failover = reacquire is set then"}}}
	}
	return finding.Fine("the server tells its timeline")
}
