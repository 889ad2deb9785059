package metrics

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/timelines"
)

//go:embed sql/resources.sql
var resourcesSQL string

// resource is a resource as the database has it.
type resource struct {
	name    fence.Resource
	token   fence.Token
	source  fence.Source
	granted *time.Time
	writers int64
	leased  bool // in the database
}

// reading is the result of one look at the database.
type reading struct {
	place     *timelines.Place // nil where the server doesn't tell it
	resources []resource
}

// read reads the resources of the names, and up to more others.
func read(ctx context.Context, conn *pgx.Conn, names []fence.Resource, more int) (*reading, error) {
	r := &reading{}
	if place, err := timelines.Ask(ctx, conn.PgConn()); err == nil {
		r.place = &place
	}
	rows, err := conn.Query(ctx, resourcesSQL, inBytes(names), more)
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	r.resources, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one resource, err error) {
		var name []byte
		err = row.Scan(&name, &one.token, &one.source, &one.granted, &one.writers, &one.leased)
		one.name = fence.Resource(name)
		return one, err
	})
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	return r, nil
}

// Resource names travel as bytes of UTF-8, whatever the encoding of the connection is.
func inBytes(names []fence.Resource) [][]byte {
	all := make([][]byte, len(names))
	for i, name := range names {
		all[i] = []byte(name)
	}
	return all
}
