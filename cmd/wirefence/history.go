package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type historySettings struct {
	DatabaseURL string   `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required)"`
	Since       string   `env:"WIREFENCE_SINCE" help:"only what happened since: a duration such as 2h, or a time such as 2006-01-02T15:04:05Z"`
	Kinds       []string `env:"WIREFENCE_KIND" help:"only these kinds, separated by commas: handoff, revocation, ended, refusal, shadow, bypass, dropped"`
	Limit       int      `env:"WIREFENCE_LIMIT" envDefault:"100" help:"the newest so many"`
	Follow      bool     `env:"WIREFENCE_FOLLOW" help:"go on and print what happens, until a signal"`
	JSON        bool     `env:"WIREFENCE_JSON" help:"print JSON: a list, or with --follow an object a line"`
}

func historyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "history [RESOURCE]",
		Short: "Show who took resources over, and whose writes were refused",
		Long: `Prints the history that the database keeps, the newest last: handoffs and
revocations, and the refusals that proxies have seen. What could not be recorded
is counted below.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("wants one resource or none")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[historySettings](c)
			if err != nil {
				return err
			}
			filter, err := cfg.filter(args)
			if err != nil {
				return usageError{err}
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				if cfg.Follow {
					return followHistory(c.Context(), conn, filter, cfg.JSON, c.OutOrStdout())
				}
				return printHistory(c.Context(), conn, filter, cfg.JSON, c.OutOrStdout())
			})
		},
	}
	settings[historySettings](c)
	return c
}

func (cfg historySettings) filter(args []string) (f fence.EventFilter, err error) {
	if len(args) == 1 {
		if f.Resource, err = fence.ParseResource(args[0]); err != nil {
			return f, err
		}
	}
	if f.Limit = cfg.Limit; f.Limit < 1 || f.Limit > 1_000_000 {
		return f, fmt.Errorf("--limit must be from 1 to 1000000")
	}
	if f.Kinds, err = fence.ParseEventKinds(cfg.Kinds); err != nil {
		return f, err
	}
	if cfg.Since != "" {
		if d, wrong := time.ParseDuration(cfg.Since); wrong == nil && d > 0 {
			f.Since = time.Now().Add(-d)
		} else if f.Since, err = time.Parse(time.RFC3339, cfg.Since); err != nil {
			return f, fmt.Errorf("--since %q is neither a duration such as 2h nor a time such as 2006-01-02T15:04:05Z", cfg.Since)
		}
	}
	return f, nil
}

func printHistory(ctx context.Context, conn *pgx.Conn, f fence.EventFilter, asJSON bool, w io.Writer) error {
	all, err := fence.History(ctx, conn, f)
	if err != nil {
		return err
	}
	if asJSON {
		if all == nil {
			all = []fence.Event{}
		}
		return printJSON(w, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "Nothing of the kind is in the history.")
	} else if err := printEvents(w, all, true); err != nil {
		return err
	}
	totals, err := fence.TotalsOfHistory(ctx, conn)
	if err != nil {
		return err
	}
	if totals.Unrecorded > 0 {
		fmt.Fprintf(w, "Not recorded: %d of %d refusals that the database has raised, for writes around the proxies or ones whose proxy could not record them.\n",
			totals.Unrecorded, totals.Raised)
	}
	if totals.Dropped > 0 {
		fmt.Fprintf(w, "Not recorded: %d handoffs, since the history could not be written.\n", totals.Dropped)
	}
	return nil
}

// How often a follower looks, and for how long it looks back: a transaction's rows
// are seen when it has committed.
const (
	followPause    = time.Second
	followLookback = time.Minute
)

// followHistory prints what is there and what comes until ctx ends.
func followHistory(ctx context.Context, conn *pgx.Conn, f fence.EventFilter, asJSON bool, w io.Writer) error {
	seen := map[string]bool{}
	for first := true; ; first = false {
		all, err := fence.History(ctx, conn, f)
		if ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		known := seen
		seen = make(map[string]bool, len(all))
		fresh := all[:0:0]
		for _, e := range all {
			seen[e.ID] = true
			if !known[e.ID] {
				fresh = append(fresh, e)
			}
		}
		if err := printFollowed(w, fresh, asJSON, first); err != nil {
			return err
		}
		if first && len(all) == f.Limit {
			f.Since = all[0].At // what the limit left out is not wanted later either
		}
		if n := len(all); n > 0 && all[n-1].At.Add(-followLookback).After(f.Since) {
			f.Since = all[n-1].At.Add(-followLookback)
		}
		f.Limit = 1_000_000
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

func printFollowed(w io.Writer, all []fence.Event, asJSON, heading bool) error {
	if !asJSON {
		return printEvents(w, all, heading)
	}
	lines := json.NewEncoder(w)
	for _, e := range all {
		if err := lines.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

func printEvents(w io.Writer, all []fence.Event, heading bool) error {
	t := tabwriter.NewWriter(w, 10, 0, 2, ' ', 0)
	if heading {
		fmt.Fprintln(t, "AT\tKIND\tRESOURCE\tTOKEN\tCURRENT\tHOLDER\tSESSION\tTIMES\tWHAT")
	}
	for _, e := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", e.At.UTC().Format("2006-01-02T15:04:05.000Z"), e.Kind, orDash(string(e.Resource)),
			tokenText(e.Token), tokenText(e.CurrentToken), orDash(e.Holder), sessionText(e), e.Count, whatText(e))
	}
	return t.Flush()
}

func tokenText(token fence.Token) string {
	if token == 0 {
		return "-"
	}
	return token.String()
}

// sessionText is who was logged in, from where, under which name.
func sessionText(e fence.Event) string {
	text := e.Login
	if e.Address != "" {
		text += "@" + e.Address
	}
	if e.Application != "" {
		text += " " + e.Application
	}
	return orDash(text)
}

func whatText(e fence.Event) string {
	var all []string
	for _, part := range []struct{ label, text string }{
		{"", string(e.State)}, {"", e.Reason}, {"from ", e.FormerHolder}, {"on ", e.Table}, {"in database ", e.Database}, {"told by ", e.Proxy},
	} {
		if part.text != "" {
			all = append(all, part.label+part.text)
		}
	}
	return orDash(strings.Join(all, ", "))
}
