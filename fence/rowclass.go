package fence

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RowClass is a class of rows that judge their own claims: a fence class(key)=claim counts
// while the row of Table with this key has this claim and meets the condition While.
type RowClass struct {
	Class string `json:"class"` // as Claim has it
	// Table is its name, with the schema.
	Table string `json:"table"`
	// Key has the columns of the key, in the order of a fence.
	Key []string `json:"key"`
	// Claim is an SQL expression of type bigint over the row's columns, While a condition on
	// them. RowClasses has them as PostgreSQL prints them.
	Claim string `json:"claim"`
	While string `json:"while"`
	// Until is an SQL expression of type timestamp, the time in UTC at which a claim ends. With it,
	// sidecars can make leases of the rows; "" for a class that they don't follow.
	Until string `json:"until,omitempty"`
	// Mode is ModeShadow where a fence that is to be refused passes, and is noted. "" is
	// ModeEnforce.
	Mode Mode `json:"mode"`
	// By and Since tell who declared the class, and when.
	By    string    `json:"by"`
	Since time.Time `json:"since"`
	// Fault says why all fences of the class are refused, and what to do; "" if they are not.
	Fault string `json:"fault,omitempty"`
}

//go:embed sql/declare_rows.sql
var declareRowsSQL string

//go:embed sql/drop_rows.sql
var dropRowsSQL string

//go:embed sql/rows.sql
var rowsSQL string

// DeclareRows declares a class, or changes its declaration; By, Since and Fault count for
// nothing. The table is named as in SQL, quoted where need be; the columns of the key are not.
// The role must own the table, and may create temporary tables.
func DeclareRows(ctx context.Context, q Querier, c RowClass) error {
	key := make([][]byte, len(c.Key))
	for i, column := range c.Key {
		key[i] = []byte(column)
	}
	if _, err := q.Exec(ctx, declareRowsSQL, []byte(c.Class), []byte(c.Table), key, []byte(c.Claim), []byte(c.While), c.Mode == ModeShadow, []byte(c.Until)); err != nil {
		return fmt.Errorf("declare rows %s: %w", c.Class, err)
	}
	return nil
}

// DropRows takes the declaration of a class back: its fences are refused with ResourceUnknown
// from then on. The role must own the table; if that has gone, it must have declared the class,
// or have wirefence_issuer.
func DropRows(ctx context.Context, q Querier, class string) error {
	if _, err := q.Exec(ctx, dropRowsSQL, []byte(class)); err != nil {
		return fmt.Errorf("drop rows %s: %w", class, err)
	}
	return nil
}

// RowClasses lists the declared classes by name. The role must have wirefence_issuer.
func RowClasses(ctx context.Context, q Querier) ([]RowClass, error) {
	rows, err := q.Query(ctx, rowsSQL)
	if err != nil {
		return nil, fmt.Errorf("list classes of rows: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RowClass, error) {
		var c RowClass
		var table, claim, while, until []byte
		var key [][]byte
		err := row.Scan(&c.Class, &table, &key, &claim, &while, &until, &c.Mode, &c.By, &c.Since, &c.Fault)
		c.Table, c.Claim, c.While, c.Until, c.Since = string(table), string(claim), string(while), string(until), c.Since.UTC()
		for _, column := range key {
			c.Key = append(c.Key, string(column))
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list classes of rows: %w", err)
	}
	return all, nil
}
