package main

import (
	"context"
	"errors"
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
	TableSettings
	Table  string   `env:"--table" type:"table" help:"the table, as in SQL (required)"`
	Key    []string `env:"--key" type:"column,..." help:"the columns of a unique index, by which a fence names a row (required)"`
	Claim  string   `env:"--claim" type:"expression" help:"an SQL expression of type bigint over the row's columns, with a new value for each take (required)"`
	While  string   `env:"--while" type:"condition" help:"an SQL condition that the row meets while the job is worked on (required)"`
	Until  string   `env:"--until" type:"expression" help:"an SQL expression of type timestamp, the time in UTC at which a claim ends, for sidecars that follow the application's lock in a row"`
	Shadow bool     `env:"--shadow" help:"record in the history the fences that would be refused, and refuse none"`
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
			return errors.New(f[1])
		}
	}
	return nil
}

func rowsDeclareCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "declare [flags] CLASS",
		Short: "Make the rows of a table judge their own claims, or change how they do",
		Long: `Makes the rows of a table judge fences of a class: CLASS(key)=claim counts while the row
with this key has this claim and meets the condition. The key needs a unique index. The
claim and the condition may use the row's columns of built-in types and enums, and immutable
built-in functions; a timestamptz counts as the timestamp in UTC, an enum as its label.

The claim must be new with each take of the row: a time or a random number, not a counter of
attempts, which may repeat.

With --until the rows are a lock that the application takes, such as ShedLock's: a trigger on
the table tells sidecars who took it (WIREFENCE_LEASE_FROM=row:CLASS(KEY)=RESOURCE).

Only the table's owner may declare its rows. Run the command again to change the
declaration, and after a change of the table that wirefence rows list reports.`,
		Example: `  wirefence rows declare job --table public.river_job --key id \
    --claim "(extract(epoch from attempted_at) * 1000000)::bigint" --while "state = 'running'"`,
		Args: exactly(1, "one class: wirefence rows declare job --table …"),
	}, func(cfg rowsDeclareSettings, args []string) (question, error) {
		wanted, text := fence.RowClass{Class: args[0], Table: cfg.Table, Claim: cfg.Claim, While: cfg.While, Until: cfg.Until, Mode: fence.ModeEnforce}, "rows of %s judge fences of %s"
		if cfg.Shadow {
			wanted.Mode, text = fence.ModeShadow, "rows of %s judge fences of %s in shadow mode: nothing is refused"
		}
		for _, column := range cfg.Key {
			wanted.Key = append(wanted.Key, strings.TrimSpace(column))
		}
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			done := declaredRowsJSON{wanted.Class, wanted.Table, string(wanted.Mode)}
			return sentence(done, text, cell(done.Table), done.Class), fence.DeclareRows(ctx, conn, wanted)
		}, cfg.lacks()
	})
}

func rowsListCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "list",
		Short: "List the classes of rows, their refusals and their problems",
		Args:  exactly(0, "no arguments"),
	}, func(ResourceSettings, []string) (question, error) { return listRows, nil })
}

// listRows lists the classes of rows, also for wirefence status.
func listRows(ctx context.Context, conn *pgx.Conn) (answer, error) {
	all, err := fence.RowClasses(ctx, conn)
	if err != nil {
		return answer{}, err
	}
	refusals, err := fence.RefusalsWithin(ctx, conn, time.Hour)
	rows := make([]rowClassJSON, len(all))
	for i, c := range all {
		n := refusals[fence.Resource(c.Class+"()")]
		rows[i] = rowClassJSON{c, n.Refused, n.LetPass}
	}
	return table(rows, "No rows are declared.", "CLASS\tTABLE\tKEY\tCLAIM\tWHILE\tUNTIL\tMODE\tREFUSED 1H\tLET PASS 1H\tBY\tSINCE\tFAULT", func(r rowClassJSON) []any {
		return []any{r.Class, r.Table, strings.Join(r.Key, ","), r.Claim, r.While, r.Until, r.Mode, r.Refused, r.LetPass, r.By, timeText(r.Since), r.Fault}
	}), err
}

func rowsDropCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "drop [flags] CLASS",
		Short: "Take the declaration of a class back; its fences are refused from then on",
		Args:  exactly(1, "one class"),
	}, func(_ TableSettings, args []string) (question, error) {
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			return sentence(droppedRowsJSON{args[0]}, "class %s is not declared any more", args[0]), fence.DropRows(ctx, conn, args[0])
		}, nil
	})
}
