package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/migrations"
)

// node is a database on one node of Citus, or the only one.
type node struct {
	name   string // "" if there are no others
	worker bool
	*pgx.Conn
}

// onNodes calls do with the database and, if each node of Citus has the tokens, with the same one on
// the others. It is told which of those can't be used.
func onNodes(ctx context.Context, url string, do func(all []node, failed error) error) error {
	return onSchema(ctx, url, func(conn *pgx.Conn) error {
		others, err := otherNodes(ctx, conn)
		if err != nil {
			return err
		}
		if len(others) == 0 {
			return do([]node{{Conn: conn}}, nil)
		}
		_, coordinates, err := engine.Citus(ctx, conn)
		if err != nil {
			return err
		}
		all := []node{{serverName(conn.Config()), !coordinates, conn}}
		var failed error
		for i, address := range others {
			at, err := openSchema(ctx, connstring.At(url, address))
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("node %s: %w", address, err))
				continue
			}
			defer at.Close(context.WithoutCancel(ctx))
			all = append(all, node{serverName(at.Config()), coordinates || i > 0, at})
		}
		return do(all, failed)
	})
}

// otherNodes returns the addresses of the other nodes of Citus, if each has the tokens.
func otherNodes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	if has, err := migrations.OnNodes(ctx, conn); err != nil || !has {
		return nil, err
	}
	return engine.CitusNodes(ctx, conn)
}
