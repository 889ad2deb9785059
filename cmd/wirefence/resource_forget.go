package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

type forgetSettings struct {
	IssuerSettings
	StoreSettings
	UnusedFor string `env:"--unused-for" type:"duration" help:"all resources whose last grant is at least so old, as in 30d or 12h, instead of one"`
	Yes       bool   `env:"--yes" help:"don't ask"`
}

func resourceForgetCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "forget [flags] [RESOURCE]",
		Short: "Remove a resource that is not used any more, or all such",
		Long: `Makes a resource unknown, as if it had never been fenced, and removes its row. From then
on an unknown resource accepts no token up to the highest one that was ever forgotten, and
is granted a higher one. If another service counts lower, declare its resources.

What is in use stays: a resource whose lease is held, of which a session holds the lock,
that an operator has declared or set, or that a guard can name. A resource whose tokens
come from a lease store stays, too, unless the settings name that store.`,
		Example: `  wirefence resource forget invoice:4711
  wirefence resource forget --unused-for 30d --yes`,
		Args: atMostOne("one resource, or none with --unused-for"),
	}, func(c *cobra.Command, cfg forgetSettings, args []string) error {
		var unusedFor time.Duration
		var only fence.Resource
		var err error
		switch {
		case (len(args) == 1) == (cfg.UnusedFor != ""):
			err = errors.New("wants one resource, or --unused-for and a time")
		case len(args) == 1:
			only, err = parseResource(args[0])
		default:
			var is bool
			if unusedFor, is = parseAge(cfg.UnusedFor); !is {
				err = fmt.Errorf("--unused-for %q is not a duration such as 30d or 12h", cfg.UnusedFor)
			}
		}
		if err != nil {
			return usageError{err}
		}
		return cfg.onSchema(c.Context(), func(conn *pgx.Conn) error {
			return cfg.forget(c.Context(), conn, only, unusedFor, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		})
	})
}

// parseAge parses a duration, which may be in days.
func parseAge(text string) (age time.Duration, is bool) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	age, err := time.ParseDuration(text)
	return age, err == nil && age >= 0
}

func (cfg forgetSettings) forget(ctx context.Context, conn *pgx.Conn, only fence.Resource, unusedFor time.Duration, in io.Reader, w, stderr io.Writer) error {
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, nil)
	if err != nil {
		return usageError{err}
	}
	defer leases.close()
	logRedisTo(nil)
	f := forgetter{leases, func(kept fence.Forgettable, why string) {
		if only != "" {
			fmt.Fprintf(stderr, "%s stays: %s\n", cell(string(kept.Resource)), why)
		}
	}}
	var unused []fence.Forgettable
	if only == "" {
		unused, err = fence.ForgettableResources(ctx, conn, unusedFor)
	} else if found, failed := statusOf(ctx, conn, only); failed != nil {
		err = failed
	} else {
		unused = []fence.Forgettable{{Resource: only, LastToken: found[0].LastToken, Source: found[0].Source}}
	}
	if err != nil {
		return err
	}
	if len(unused) > 0 && !cfg.Yes {
		printUnused(w, unused)
		if err := confirm(in, w); err != nil {
			return err
		}
	}
	done, err := f.forget(ctx, conn, unused)
	fmt.Fprintln(w, done)
	if err == nil && only != "" && done.kept > 0 {
		return errors.New("nothing was forgotten")
	}
	return err
}

func printUnused(w io.Writer, unused []fence.Forgettable) {
	fmt.Fprintln(w, "This removes from the database:")
	const most = 10
	var highest fence.Token
	for i, r := range unused {
		if i < most {
			fmt.Fprintf(w, "  resource %s, whose last token is %d\n", cell(string(r.Resource)), r.LastToken)
		}
		highest = max(highest, r.LastToken)
	}
	if more := len(unused) - most; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
	fmt.Fprintf(w, "From then on a resource that is not known accepts no token up to %d.\n", highest)
}

// forgotten counts what a forgetter has done.
type forgotten struct{ removed, marked, kept int }

func (f forgotten) String() string {
	text := fmt.Sprintf("removed: %d", f.removed)
	if f.marked > 0 {
		text += fmt.Sprintf("; unknown from now on, and to be removed by a later run, since older transactions are open: %d", f.marked)
	}
	if f.kept > 0 {
		text += fmt.Sprintf("; in use, and kept: %d", f.kept)
	}
	return text
}

// forgetter removes resources whose leases are free.
type forgetter struct {
	leases *leases
	keeps  func(kept fence.Forgettable, why string)
}

// forget marks the resources, and then removes those whose mark every transaction can see.
func (f forgetter) forget(ctx context.Context, conn *pgx.Conn, unused []fence.Forgettable) (done forgotten, err error) {
	asked := make([]fence.ResourceStatus, len(unused))
	seen := make([]lease, len(unused))
	for i, r := range unused {
		asked[i] = fence.ResourceStatus{Resource: r.Resource, Source: r.Source}
		seen[i].State = leaseUnknown
	}
	// PostgreSQL's own leases are looked at under the lock.
	if looker, ok := f.leases.store.(lockclient.Looker); ok && f.leases.counts != fence.SourcePostgres {
		if err := lookAtAll(ctx, looker, f.leases.counts, asked, seen); err != nil {
			return done, fmt.Errorf("the lease store could not be asked who holds what: %w", err)
		}
	}
	var marked []fence.Forgettable
	keep := func(r fence.Forgettable, why string) {
		done.kept++
		f.keeps(r, why)
	}
	for i, r := range unused {
		inStore := !r.Forgotten && r.Source != fence.SourcePostgres && slices.Contains(storeSources(), r.Source)
		switch {
		case inStore && seen[i].State == leaseUnknown:
			keep(r, "its lease store, "+string(r.Source)+", is not configured here")
			continue
		case inStore && seen[i].State == leaseHeld:
			keep(r, "its lease is held")
			continue
		}
		switch removed, err := fence.Forget(ctx, conn, r.Resource, r.LastToken); {
		case fence.IsInUse(err):
			keep(r, err.Error())
		case err != nil:
			return done, err
		case removed:
			done.removed++
		default:
			marked = append(marked, r)
		}
	}
	for _, r := range marked {
		removed, err := fence.Forget(ctx, conn, r.Resource, r.LastToken)
		switch {
		case err != nil && !fence.IsInUse(err): // it may have been granted again meanwhile
			return done, err
		case removed:
			done.removed++
		default:
			done.marked++
		}
	}
	return done, nil
}

// forgetDaily returns the work of a proxy that removes unused resources at once and then each day.
func forgetDaily(cfg proxySettings, leases *leases, log *slog.Logger) (func(context.Context), error) {
	switch {
	case cfg.ForgetAfter == 0:
		return nil, nil
	case cfg.DatabaseURL == "":
		return nil, errors.New("WIREFENCE_FORGET_AFTER is set without WIREFENCE_DATABASE_URL, whose role forgets resources")
	}
	f := forgetter{leases, func(fence.Forgettable, string) {}}
	return func(ctx context.Context) {
		for ctx.Err() == nil {
			done, err := f.forgetUnused(ctx, cfg)
			if err != nil && ctx.Err() == nil {
				log.Warn("cannot forget unused resources, retrying tomorrow", "error", err)
			} else if done != (forgotten{}) {
				log.Info("forgot unused resources", "removed", done.removed, "marked", done.marked, "kept", done.kept)
			}
			sleep(ctx, 24*time.Hour)
		}
	}, nil
}

func (f forgetter) forgetUnused(ctx context.Context, cfg proxySettings) (forgotten, error) {
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return forgotten{}, err
	}
	defer closeConn(conn)
	unused, err := fence.ForgettableResources(ctx, conn, cfg.ForgetAfter)
	if err != nil {
		return forgotten{}, err
	}
	return f.forget(ctx, conn, unused)
}
