package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

// printGuards lists the guarded tables for wirefence status.
func printGuards(ctx context.Context, conn *pgx.Conn, asJSON bool, w io.Writer) error {
	all, err := fence.Guards(ctx, conn)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No table is guarded.")
		return nil
	}
	t := newTable(w)
	fmt.Fprintln(t, "TABLE\tRESOURCE\tMODE\tBY\tSINCE\tFAULT")
	for _, g := range all {
		since := "-"
		if g.By != "" {
			since = g.Since.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", cell(g.Table), cell(g.Resource), g.Mode, cellOrDash(g.By), since, cellOrDash(g.Fault))
	}
	return t.Flush()
}
