package engine

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Citus reports whether the database is one of Citus, and whether the server is its coordinator.
// A cluster of one server is a coordinator.
func Citus(ctx context.Context, conn interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (installed, coordinates bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_local_group') IS NOT NULL").Scan(&installed)
	if err == nil && installed {
		err = conn.QueryRow(ctx, "SELECT pg_catalog.bool_and(groupid = 0) FROM pg_catalog.pg_dist_local_group").Scan(&coordinates)
	}
	if err != nil {
		return false, false, fmt.Errorf("read whether the server is a node of Citus: %w", err)
	}
	return installed, coordinates, nil
}

// CitusNodes returns the addresses by which the nodes of Citus reach each other, but for that of the
// server itself: host:port, the coordinator first.
func CitusNodes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT n.nodename, n.nodeport FROM pg_catalog.pg_dist_node AS n
		WHERE n.noderole = 'primary' AND n.groupid <> (SELECT l.groupid FROM pg_catalog.pg_dist_local_group AS l)
		ORDER BY n.groupid`)
	if err != nil {
		return nil, fmt.Errorf("read the nodes of Citus: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var host string
		var port int
		err := row.Scan(&host, &port)
		return net.JoinHostPort(host, strconv.Itoa(port)), err
	})
	if err != nil {
		return nil, fmt.Errorf("read the nodes of Citus: %w", err)
	}
	return all, nil
}

// Single checks that a router doesn't lead one connection to several databases: PgDog answers a
// question of its own, and the next question without a table goes to any shard. Standbys have the
// identity of their primary.
func Single(ctx context.Context, conn *pgx.Conn) ([]Fault, error) {
	const means = "A check asks one of them, and the write behind it may go to another. Put a proxy between the router and each database."
	if answer, err := ask(ctx, conn, "SHOW pgdog.shards"); err == nil {
		return []Fault{{"a router that shards stands before the server: SHOW pgdog.shards is answered by " + answer, means}}, nil
	} else if !answered(err) {
		return nil, err
	}
	const tries = 8
	first := ""
	for try := range tries {
		identity, err := ask(ctx, conn, "SELECT system_identifier FROM pg_catalog.pg_control_system()")
		switch {
		case err != nil && !answered(err):
			return nil, err
		case err != nil:
			return nil, nil // the server doesn't tell, or not this role
		case try == 0:
			first = identity
		case identity != first:
			return []Fault{{fmt.Sprintf("two questions were answered by two servers, %s and %s", first, identity), means}}, nil
		}
	}
	return nil, nil
}
