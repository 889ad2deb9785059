package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

func rowsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "rows",
		Short: "Declare rows, such as the jobs of a queue, that judge their own claims",
		Long: `A row of a queue says by which take a job is being worked on: its claim. Declare its
table as a class, and a fence such as job(17)=1763900000000000 is judged by row 17: it
counts while that row has this claim and meets the condition. See docs/reference/rows.md.`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(rowsDeclareCommand(), rowsListCommand(), rowsDropCommand())
	return c
}

type rowsDeclareSettings struct {
	OwnerSettings
	Table  string   `env:"--table" type:"table" help:"the table, as in SQL (required)"`
	Key    []string `env:"--key" type:"column,..." help:"the columns of a unique index, by which a fence names a row (required)"`
	Claim  string   `env:"--claim" type:"expression" help:"an SQL expression of type bigint over the row's columns, with a new value for each take (required)"`
	While  string   `env:"--while" type:"condition" help:"an SQL condition that the row meets while the job is worked on (required)"`
	Shadow bool     `env:"--shadow" help:"record in the history the fences that would be refused, and refuse none"`
	OutputSettings
}

// lacks returns the error for the first required flag that is missing.
func (cfg rowsDeclareSettings) lacks() error {
	for _, f := range [][2]string{
		{cfg.Table, "--table is missing, the table with the rows: --table public.jobs"},
		{strings.Join(cfg.Key, ""), "--key is missing, the columns of the table's key: --key id"},
		{cfg.Claim, "--claim is missing, an expression over the row that is new with each take: --claim claim"},
		{cfg.While, `--while is missing, the condition that the row meets while the job is worked on: --while "state = 'running'"`},
	} {
		if strings.TrimSpace(f[0]) == "" {
			return usageError{errors.New(f[1])}
		}
	}
	return nil
}

func rowsDeclareCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "declare [flags] CLASS",
		Short: "Make the rows of a table judge their own claims, or change how they do",
		Long: `Makes the rows of a table judge fences of a class: CLASS(key)=claim counts while the row
with this key has this claim and meets the condition. The key needs a unique index. The
claim and the condition may use the row's columns of built-in types and enums, and immutable
built-in functions; a timestamptz counts as the timestamp in UTC, an enum as its label.

The claim must be new with each take of the row: a time or a random number, not a counter of
attempts, which may repeat.

Only the table's owner may declare its rows. Run the command again to change the
declaration, and after a change of the table that wirefence rows list reports.`,
		Example: `  wirefence rows declare job --table public.river_job --key id \
    --claim "(extract(epoch from attempted_at) * 1000000)::bigint" --while "state = 'running'"`,
		Args: exactly(1, "one class: wirefence rows declare job --table …"),
	}, func(c *cobra.Command, cfg rowsDeclareSettings, args []string) error {
		if err := cfg.lacks(); err != nil {
			return err
		}
		return cfg.onSchema(c.Context(), func(conn *pgx.Conn) error {
			return declareRows(c.Context(), conn, args[0], cfg, c.OutOrStdout())
		})
	})
}

func declareRows(ctx context.Context, conn *pgx.Conn, class string, cfg rowsDeclareSettings, w io.Writer) error {
	mode, text := fence.ModeEnforce, "rows of %s judge fences of %s\n"
	if cfg.Shadow {
		mode, text = fence.ModeShadow, "rows of %s judge fences of %s in shadow mode: nothing is refused\n"
	}
	wanted := fence.RowClass{Class: class, Table: cfg.Table, Claim: cfg.Claim, While: cfg.While, Mode: mode}
	for _, column := range cfg.Key {
		wanted.Key = append(wanted.Key, strings.TrimSpace(column))
	}
	if err := fence.DeclareRows(ctx, conn, wanted); err != nil {
		return err
	}
	if cfg.inJSON() {
		return printJSON(w, declaredRowsJSON{class, cfg.Table, string(mode)})
	}
	fmt.Fprintf(w, text, cell(cfg.Table), class)
	return nil
}

func rowsListCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "list",
		Short: "List the classes of rows, their refusals and their problems",
		Args:  exactly(0, "no arguments"),
	}, func(c *cobra.Command, cfg ResourceSettings, _ []string) error {
		return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error { return printRows(c.Context(), conn, cfg.inJSON(), c.OutOrStdout()) })
	})
}

// printRows lists the classes of rows, also for wirefence status.
func printRows(ctx context.Context, conn *pgx.Conn, asJSON bool, w io.Writer) error {
	all, err := fence.RowClasses(ctx, conn)
	if err != nil {
		return err
	}
	refusals, err := fence.RefusalsWithin(ctx, conn, time.Hour)
	if err != nil {
		return err
	}
	rows := make([]rowClassJSON, len(all))
	for i, c := range all {
		n := refusals[fence.Resource(c.Class+"()")]
		rows[i] = rowClassJSON{c, n.Refused, n.LetPass}
	}
	switch {
	case asJSON:
		return printJSON(w, rows)
	case len(rows) == 0:
		fmt.Fprintln(w, "No rows are declared.")
		return nil
	}
	t := newTable(w)
	fmt.Fprintln(t, "CLASS\tTABLE\tKEY\tCLAIM\tWHILE\tMODE\tREFUSED 1H\tLET PASS 1H\tBY\tSINCE\tFAULT")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", r.Class, cell(r.Table), cell(strings.Join(r.Key, ",")), cell(r.Claim), cell(r.While), r.Mode, r.Refused, r.LetPass,
			cell(r.By), r.Since.Format(time.RFC3339), cellOrDash(r.Fault))
	}
	return t.Flush()
}

func rowsDropCommand() *cobra.Command {
	return undoCommand(&cobra.Command{
		Use:   "drop [flags] CLASS",
		Short: "Take the declaration of a class back; its fences are refused from then on",
		Args:  exactly(1, "one class"),
	}, fence.DropRows, func(class string) any { return droppedRowsJSON{class} }, "class %s is not declared any more\n")
}
