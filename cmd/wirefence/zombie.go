package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/internal/zombie"
)

type zombieSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of a role that may read the watched tables, to the server itself; with REPLICATION it sees all changes (required)"`
	PasswordSettings
	Watch         []string      `env:"--watch" type:"table,..." help:"tables in which the runs' changes are watched, as in SQL, with their partitions (required)"`
	FreezeWhen    string        `env:"--freeze-when" type:"query" help:"freeze the first run when the first column of this query is true"`
	FreezeAfter   time.Duration `env:"--freeze-after" envDefault:"0s" range:"0.." help:"freeze the first run after this time, or when the query says so, if that is earlier; 0: when the query says so"`
	LockEndsAfter time.Duration `env:"--lock-ends-after" range:"0.." help:"time after which the frozen run's lock has run out and the second run is started (required)"`
	SecondFor     time.Duration `env:"--second-for" envDefault:"0s" range:"0.." help:"for a command that doesn't end by itself: freeze the second run, too, after this time; 0: wait for its end"`
	Explore       bool          `env:"--explore" help:"try every moment: freeze the first run before each of its messages to PostgreSQL in turn"`
	Reset         string        `env:"--reset" type:"command" help:"with --explore: command for sh that puts the data back before each play (required with it)"`
	EndLock       string        `env:"--end-lock" type:"command" help:"with --explore: command for sh that ends the frozen run's lock, instead of --lock-ends-after"`
	LockKeys      []string      `env:"--lock-key" type:"key,..." help:"with --explore: keys in Redis that are the lock; commands that name one are moments, too, if the command finds Redis by a URL"`
	Jobs          int           `env:"--jobs" envDefault:"1" range:"1..64" help:"with --explore: how many moments to play at once; more than one are played in copies of the database, for which nobody may be connected to it, and which are dropped at the end; a lock that isn't in the database is one lock for all, and wants 1"`
	Minimal       string        `env:"--minimal" type:"file" help:"with --explore: write the smallest schedule that ends in a stale write to this file, as a script for bash and psql that needs no Wirefence"`
	JUnit         string        `env:"--junit" type:"file" help:"with --explore: write what the moments show to this file, as test cases in JUnit's XML: a stale window fails, one that isn't judged is an error"`
	Page          string        `env:"--page" type:"file" help:"with --explore: write it to this file, as a page of HTML with a time line that needs no other file"`
	Within        time.Duration `env:"--within" envDefault:"10m" range:"1ms.." help:"longest wait for the moment to freeze, and for the end of each run"`
	Control       time.Duration `env:"--control" envDefault:"2s" range:"1ms.." help:"time for which the tables are watched for other writers, before and after the play"`
	TermGrace     time.Duration `env:"WIREFENCE_TERM_GRACE" group:"Leases" envDefault:"10s" range:"1ms.." help:"time from SIGTERM to SIGKILL for what is left of the runs at the end"`
	Yes           bool          `env:"--yes" help:"don't ask whether the command may be run twice"`
	OutputSettings
}

// Exit statuses of `wirefence zombie`, besides 0.
const (
	exitStale   = 1
	exitUnknown = 2
)

func zombieCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "zombie [flags] -- COMMAND [ARG...]",
		Short: "Show whether a job of yours writes after its lock has run out",
		Long: `Runs a command twice, as two machines would: it freezes the first run (SIGSTOP) in
the middle, waits until its lock has run out, lets a second run do the work, lets the
first go on (SIGCONT), and reports what the first then changes in the watched tables.
The schema isn't needed. The command finds the database by its own environment.

The runs really change what the command changes: use a test system, and let nobody else
write to the watched tables. On a terminal it asks before; elsewhere --yes is needed.

Changes are decoded from the server's log where wal_level is logical and the role has
REPLICATION. Elsewhere the tables are compared, which misses writes of the same value
and rows that came and went.

With --explore it finds the moment itself: a proxy counts the command's messages to
PostgreSQL, and the first run is frozen before each of them in turn. Statements that were
in flight at once on two connections are tried in both orders. It prints what the moments
show, and the smallest schedule that ends in a stale write. The command must find the
server by libpq's variables, or by URLs in its environment and its arguments. Without
--lock-ends-after the lock must not end by itself meanwhile.

The output of both runs goes to standard error. Exit status:

    0  the first run changed nothing in the tables after the second had begun
    1  it did: stale writes; with --explore, something was lost by them
    2  the play doesn't show it, or the command line is wrong; the report or standard
       error says why
    130, 143  a signal has ended it`,
		Example: `  wirefence zombie --watch public.totals --freeze-when "SELECT count(*) > 0 FROM totals" \
    --lock-ends-after 5s -- ./nightly.sh
  wirefence zombie --watch jobs,results --freeze-after 3s --lock-ends-after 30s --second-for 20s -- ./worker
  wirefence zombie --explore --watch totals --reset "psql -f seed.sql" --end-lock "redis-cli DEL nightly" -- ./nightly.sh`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 || c.ArgsLenAtDash() != 0 {
				return usageError{errors.New("wants two dashes and a command: wirefence zombie --watch public.totals … -- ./nightly.sh")}
			}
			return nil
		},
	}, func(c *cobra.Command, cfg zombieSettings, args []string) error {
		// A terminal that is closed ends the runs, too.
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGHUP)
		defer stop()
		err := runZombie(ctx, cfg, args, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		switch {
		case c.Context().Err() != nil:
			return &exitStatus{interrupted(c.Context()), errors.New("interrupted; both runs were ended")}
		case err == nil, errors.As(err, new(*exitStatus)), errors.As(err, new(usageError)):
			return err
		}
		return &exitStatus{exitUnknown, err}
	})
}

func (cfg zombieSettings) validate() error {
	for _, missing := range []struct {
		is   bool
		what string
	}{
		{len(cfg.Watch) == 0, "--watch is missing, the tables that the command writes to"},
		{!cfg.Explore && (cfg.Reset+cfg.EndLock+cfg.Minimal+cfg.Page+cfg.JUnit != "" || len(cfg.LockKeys) > 0 || cfg.Jobs > 1), "--reset, --end-lock, --lock-key, --jobs, --minimal, --page and --junit are for --explore"},
		{cfg.Explore && cfg.Reset == "", "--reset is missing, the command that puts the data back before each play"},
		{cfg.Jobs > 1 && len(cfg.LockKeys) > 0, "a lock in Redis is one lock for all copies of the database: --jobs must be 1 with --lock-key"},
		{cfg.Explore && (cfg.FreezeWhen != "" || cfg.FreezeAfter > 0 || cfg.SecondFor > 0), "--explore tries every moment of a command that ends by itself: --freeze-when, --freeze-after and --second-for say another"},
		{cfg.Explore && cfg.EndLock == "" && cfg.LockEndsAfter == 0, "--end-lock is missing, a command that ends the lock, or --lock-ends-after, its time limit"},
		{!cfg.Explore && cfg.FreezeWhen == "" && cfg.FreezeAfter == 0, "--freeze-when or --freeze-after is missing: when does the command hold its lock and has not written yet?"},
		{!cfg.Explore && cfg.LockEndsAfter == 0, "--lock-ends-after is missing, the time limit of the command's lock"},
	} {
		if missing.is {
			return usageError{errors.New(missing.what)}
		}
	}
	return nil
}

func runZombie(ctx context.Context, cfg zombieSettings, command []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	if err := cfg.confirm(conn.Config(), command, stdin, stderr); err != nil {
		return err
	}
	options := zombie.Options{
		Tables: cfg.Watch, Command: command, FreezeWhen: cfg.FreezeWhen, FreezeAfter: cfg.FreezeAfter,
		LockEndsAfter: cfg.LockEndsAfter, SecondFor: cfg.SecondFor, Within: cfg.Within, Control: cfg.Control,
		TermGrace: cfg.TermGrace, Output: os.Stderr,
		Tell: func(_ zombie.Step, line string) { fmt.Fprintln(stderr, "wirefence zombie: "+line) },
	}
	var verdict zombie.Verdict
	var told answer
	if cfg.Explore {
		exploring := zombie.Exploring{Options: options, Env: os.Environ(), Reset: cfg.Reset, EndLock: cfg.EndLock, LockKeys: cfg.LockKeys, Jobs: cfg.Jobs}
		closeConn(conn)
		report, err := zombie.Explore(ctx, conn.Config(), exploring)
		if err != nil {
			return err
		}
		if err := errors.Join(
			writeTo(cfg.JUnit, func(w io.Writer) error { return report.WriteJUnit(w, command) }), cfg.writeSchedule(exploring, report.Schedule, stderr)); err != nil {
			return err
		}
		verdict, told = report.Verdict, answer{report, func(w io.Writer) error { return printExploration(w, report) }}
	} else {
		report, err := zombie.Play(ctx, conn, options)
		if err != nil {
			return err
		}
		verdict, told = report.Verdict, answer{report, func(w io.Writer) error { return printZombie(w, report) }}
	}
	if err := cfg.give(stdout, told); err != nil {
		return err
	}
	return exitAs(map[zombie.Verdict]int{zombie.Stale: exitStale, zombie.Unknown: exitUnknown}[verdict], nil)
}

// writeSchedule writes the smallest schedule to files, if there is one. It says why if it can't be a
// script.
func (cfg zombieSettings) writeSchedule(o zombie.Exploring, s *zombie.Schedule, stderr io.Writer) error {
	if s == nil {
		return nil
	}
	if cfg.Minimal != "" {
		script, err := o.Script(s)
		if err != nil {
			fmt.Fprintf(stderr, "wirefence zombie: %s is not written: %v\n", cfg.Minimal, err)
		} else if err := os.WriteFile(cfg.Minimal, []byte(script), 0o755); err != nil {
			return err
		}
	}
	return writeTo(cfg.Page, func(w io.Writer) error { return s.WritePage(w, o.Command) })
}

// writeTo writes a file, if it has a name.
func writeTo(name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

// confirm asks on a terminal whether the command may be run twice.
func (cfg zombieSettings) confirm(database *pgx.ConnConfig, command []string, stdin io.Reader, stderr io.Writer) error {
	if cfg.Yes {
		return nil
	}
	if f, ok := stdin.(*os.File); !ok || columns(f) < 0 {
		return usageError{errors.New("it runs the command twice for real: say --yes if that may be done here")}
	}
	times := "twice, freezes the first run"
	if cfg.Explore {
		times = "and --reset many times, freezes runs"
	}
	fmt.Fprintf(stderr, "This runs %s %s, and watches %s in database %s on %s:%d.\nNever do this in production. Go on? [y/N] ",
		strings.Join(command, " "), times, strings.Join(cfg.Watch, ", "), database.Database, database.Host, database.Port)
	answer, err := bufio.NewReader(stdin).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); err == nil && (answer == "y" || answer == "yes") {
		return nil
	}
	return &exitStatus{exitUnknown, errors.New("not confirmed; nothing was run")}
}

func printZombie(w io.Writer, r *zombie.Report) error {
	for _, run := range []struct {
		name string
		zombie.Run
	}{{"first run", r.First}, {"second run", r.Second}} {
		if run.Started != nil {
			fmt.Fprintf(w, "%-12s%s\n", run.name+":", runText(run.Run))
		}
	}
	if len(r.Writes) > 0 {
		fmt.Fprintln(w)
		if err := printWrites(w, r.Writes); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	for _, note := range r.Notes {
		fmt.Fprintln(w, "note: "+note)
	}
	_, err := fmt.Fprintln(w, map[zombie.Verdict]string{
		zombie.Stale:   fmt.Sprintf("STALE: the first run made %d changes after the second run had the turn.", len(r.Writes)),
		zombie.None:    "None: the first run changed nothing after the second run had the turn.",
		zombie.Unknown: "Unknown: " + r.Reason + ".",
	}[r.Verdict])
	return err
}

func printWrites(w io.Writer, writes []zombie.Write) error {
	return printTable(w, writes, "", "TABLE\tOPERATION\tKEY\tBEFORE\tAFTER", func(write zombie.Write) []any {
		before, after := write.Before, write.After
		if changed := after.Changed(before); before != nil && len(changed) > 0 { // of an UPDATE
			before, after = before.Changed(after), changed
		}
		return []any{write.Table, write.Operation, write.Key, before, after}
	})
}

func runText(r zombie.Run) string {
	words := []string{fmt.Sprintf("%d changes in its turn", r.Writes)}
	for _, at := range []struct {
		word string
		time *time.Time
	}{{"frozen", r.Frozen}, {"went on", r.Thawed}, {"ended", r.Ended}} {
		if at.time != nil {
			words = append(words, fmt.Sprintf("%s after %v", at.word, at.time.Sub(*r.Started).Round(10*time.Millisecond)))
		}
	}
	if r.Status != nil {
		words = append(words, fmt.Sprintf("status %d", *r.Status))
	}
	return strings.Join(words, ", ")
}
