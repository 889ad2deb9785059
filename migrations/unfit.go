package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/engine"
)

// UnfitError says that a server cannot enforce fences: it is a standby, or lacks behaviour of
// PostgreSQL. Apply has created nothing there.
type UnfitError struct {
	Faults []string // clauses
	Advice string   // what to do
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("this server can't enforce fences: %s\n%s", strings.Join(e.Faults, "; "), e.Advice)
}

// probe returns an *UnfitError for a server that is unfit for the pending migrations. An
// existing schema has its failover policy already, so the timeline is probed only before the
// first migration.
func (o Options) probe(ctx context.Context, conn *pgx.Conn, have int) error {
	installed, coordinates, err := engine.Citus(ctx, conn)
	if err != nil {
		return err
	}
	nodes, err := OnNodes(ctx, conn)
	switch {
	case err != nil:
		return err
	case nodes && o.Citus == CitusCoordinator:
		return &UnfitError{Faults: []string{"each node of Citus has the tokens"}, Advice: "To change that, run wirefence uninstall, on the workers first."}
	case !installed && o.Citus == CitusNodes:
		return &UnfitError{Faults: []string{"its database has no Citus"}, Advice: "Run CREATE EXTENSION citus first, or leave --citus out."}
	case installed && !coordinates && !nodes && o.Citus != CitusNodes:
		return &UnfitError{Faults: []string{"it is a worker of Citus"}, Advice: "Connect to the coordinator, which has the tokens, and to which all fenced clients connect. Or run wirefence migrate --citus nodes on all nodes, the coordinator first."}
	}
	if have >= Version() {
		return nil
	}
	var standby bool
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_is_in_recovery()").Scan(&standby); err != nil {
		return fmt.Errorf("read whether the server is a standby: %w", err)
	}
	if standby {
		return &UnfitError{Faults: []string{"it is a standby"}, Advice: "Connect to the primary, or name all hosts and target_session_attrs=read-write."}
	}
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return fmt.Errorf("probe the server by a second connection: %w", err)
	}
	defer other.Close(context.WithoutCancel(ctx))
	found, err := engine.Single(ctx, conn)
	if err == nil && len(found) == 0 {
		found, err = engine.Faults(ctx, conn, other)
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return unfit(found, "Fences need this behaviour of PostgreSQL; docs/reference/engines.md lists the services that were tested.")
	}
	if have > 0 || o.trusts() {
		return nil
	}
	found, err = engine.Timeline(ctx, conn)
	if err == nil && len(found) > 0 {
		err = unfit(found, "If its storage keeps every commit across a failover, run wirefence migrate --failover trust. docs/reference/engines.md lists such services.")
	}
	return err
}

// OnNodes reports whether the schema is there and is one of those that each node of Citus has, with
// tokens.
func OnNodes(ctx context.Context, conn *pgx.Conn) (has bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_catalog.to_regprocedure('wirefence.citus_group()') IS NOT NULL").Scan(&has)
	if err == nil && has {
		err = conn.QueryRow(ctx, "SELECT wirefence.citus_group() IS NOT NULL").Scan(&has)
	}
	return has, err
}

func unfit(found []engine.Fault, advice string) error {
	e := &UnfitError{Advice: advice}
	for _, f := range found {
		e.Faults = append(e.Faults, f.Says)
	}
	return e
}

// reportFailover reports that the schema has another policy than was requested.
func (o Options) reportFailover(ctx context.Context, conn querier, report func(line string)) error {
	if o.Failover == "" {
		return nil
	}
	var is fence.Failover
	if err := conn.QueryRow(ctx, "SELECT failover FROM wirefence.settings").Scan(&is); err != nil {
		return fmt.Errorf("read the policy of failovers: %w", err)
	}
	if is != o.Failover {
		report(fmt.Sprintf("failover stays %s; to change it, run wirefence resource set --failover %s", is, o.Failover))
	}
	return nil
}
