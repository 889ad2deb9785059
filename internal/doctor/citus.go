package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/lockclient/finding"
	"github.com/wirefence/wirefence/migrations"
)

// settlesSQL asks whether the functions that ask all nodes of Citus belong to a superuser. Without the
// schema they do.
const settlesSQL = `SELECT coalesce(bool_and(r.rolsuper), true) FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner
	WHERE p.pronamespace = to_regnamespace('wirefence') AND p.proname IN ('recover_citus', 'tell_workers', 'at_coordinator')`

// checkCitus examines the server's place in a cluster of Citus.
func checkCitus(ctx context.Context, in *Input) ([]Finding, error) {
	return onConnection(ctx, in, func(conn *pgx.Conn) ([]Finding, error) {
		installed, coordinates, err := engine.Citus(ctx, conn)
		if err != nil {
			return nil, err
		} else if !installed {
			return finding.Fine("the server isn't one of Citus"), nil
		}
		nodes, err := migrations.OnNodes(ctx, conn)
		if err != nil {
			return nil, err
		} else if !coordinates && !nodes {
			return []Finding{{Grade: Problem, Says: "the server is a worker of Citus", Means: "No token is granted there, and fences aren't those of the coordinator.",
				Remedy: []string{"name the coordinator in WIREFENCE_DATABASE_URL and WIREFENCE_UPSTREAM", "or run wirefence migrate --citus nodes on all nodes"}}}, nil
		}
		var settles bool
		if err := conn.QueryRow(ctx, settlesSQL).Scan(&settles); err != nil {
			return nil, err
		}
		switch {
		case !settles:
			return []Finding{{Grade: Problem, Says: "wirefence.recover_citus belongs to no superuser", Means: "No token is granted: it is not known whether a commit is still to be carried out on a worker.",
				Remedy: []string{"let a superuser run wirefence migrate"}}}, nil
		case nodes:
			var unready *string
			if err := conn.QueryRow(ctx, "SELECT wirefence.unready_workers()").Scan(&unready); err != nil {
				return nil, err
			} else if unready != nil {
				return []Finding{{Grade: Problem, Says: "not all workers of Citus record grants: " + *unready, Means: "No token is granted until each of them does.",
					Remedy: []string{"run wirefence migrate --citus nodes at the coordinator, if a worker has no schema, or another version", "bring back a worker that doesn't answer, or remove it with citus_remove_node"}}}, nil
			}
			return finding.Fine("the server is a node of Citus, of which each takes fenced clients"), nil
		}
		return finding.Fine("the server is the coordinator of Citus, to which all fenced clients have to connect"), nil
	})
}
