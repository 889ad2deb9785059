package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/migrations"
)

// ResourceSettings are those of every command on resources.
type ResourceSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required)"`
	JSON        bool   `env:"WIREFENCE_JSON" help:"print JSON"`
}

// PolicySettings are what can be said of a resource. What is empty is left as it
// is.
type PolicySettings struct {
	Reason         string `env:"WIREFENCE_REASON" help:"why it is so; recorded (required)"`
	Source         string `env:"WIREFENCE_SOURCE" help:"what counts the tokens: redis, etcd, zookeeper, postgres, or a name for a lock service of your own"`
	MustNameSource *bool  `env:"WIREFENCE_MUST_NAME_SOURCE" help:"true: a token that doesn't name its source is refused; false"`
	Advance        string `env:"WIREFENCE_ADVANCE" help:"use: a higher token counts from its first write; grant: only after a seal"`
	Reuse          string `env:"WIREFENCE_REUSE" help:"allow: a token is good for any number of transactions; once: for one"`
	PreemptAfter   string `env:"WIREFENCE_PREEMPT_AFTER" help:"how long a newer token waits before it ends older transactions, as in 5s, or never"`
}

type declareSettings struct {
	ResourceSettings
	PolicySettings
}

type setSettings struct {
	ResourceSettings
	PolicySettings
	LastToken *int64 `env:"WIREFENCE_LAST_TOKEN" help:"the number that tokens count from, for a source that counts lower than the one before"`
}

func resourceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "resource",
		Short: "List, show, declare and change resources: where their tokens come from, and their policy",
		Long: `A resource remembers which lock service counts its tokens: the first that a token
or a seal names. Numbers of two services don't compare, so that a token of another
is refused. Here an operator says it beforehand, or changes it, with the reason.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(resourceListCommand(), resourceShowCommand(), resourceDeclareCommand(), resourceSetCommand())
	return c
}

func resourceListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "List the resources: source and policy",
		Args:  exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := read[ResourceSettings](c)
			if err != nil {
				return err
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error { return listResources(c.Context(), conn, cfg.JSON, c.OutOrStdout()) })
		},
	}
	settings[ResourceSettings](c)
	return c
}

func listResources(ctx context.Context, conn *pgx.Conn, inJSON bool, w io.Writer) error {
	all, err := fence.Status(ctx, conn)
	if err != nil {
		return err
	}
	if inJSON {
		return printJSON(w, allInJSON(all))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No resource has been fenced or declared yet.")
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tTOKEN\tSOURCE\tADVANCE\tREUSE\tPREEMPT AFTER")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", r.Resource, r.LastToken, sourceText(r), r.Advance, r.Reuse, preemptText(r))
	}
	return t.Flush()
}

func sourceText(r fence.ResourceStatus) string {
	if r.MustNameSource {
		return string(r.Source) + ", to be named"
	}
	return orDash(string(r.Source))
}

func resourceShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "show RESOURCE",
		Short: "Show a resource, and what operators said about it",
		Args:  exactly(1, "one resource"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[ResourceSettings](c)
			if err != nil {
				return err
			}
			resource, err := fence.ParseResource(args[0])
			if err != nil {
				return usageError{err}
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				return showResource(c.Context(), conn, resource, cfg.JSON, c.OutOrStdout())
			})
		},
	}
	settings[ResourceSettings](c)
	return c
}

func showResource(ctx context.Context, conn *pgx.Conn, resource fence.Resource, asJSON bool, w io.Writer) error {
	r, known, err := fence.StatusOf(ctx, conn, resource)
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("unknown fenced resource %q: no token of it was ever recorded, and it was not declared (SQLSTATE %s)", resource, fence.ResourceUnknown)
	}
	changes, err := fence.Changes(ctx, conn, resource)
	if err != nil {
		return err
	}
	if asJSON {
		type change struct {
			At       time.Time `json:"at"`
			By       string    `json:"by"`
			Reason   string    `json:"reason"`
			Settings values    `json:"settings"`
		}
		out := struct {
			statusJSON
			Changes []change `json:"changes"`
		}{inJSON(r), make([]change, len(changes))}
		for i, c := range changes {
			out.Changes[i] = change{c.At, c.By, c.Reason, c.Settings}
		}
		return printJSON(w, out)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"resource", string(r.Resource)}, {"last token", r.LastToken.String()}, {"source", sourceText(r)},
		{"holder", orDash(r.Holder)}, {"since", sinceText(r)}, {"advance", string(r.Advance)}, {"reuse", string(r.Reuse)},
		{"preempt after", preemptText(r)}, {"open writers", fmt.Sprint(r.Writers)},
	} {
		fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, c := range changes {
		fmt.Fprintf(w, "\n%s by %s: %s\n", c.At.UTC().Format(time.RFC3339), c.By, c.Reason)
		values(c.Settings).print(w)
	}
	return nil
}

func resourceDeclareCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "declare RESOURCE --reason WHY",
		Short: "Make a resource known before its first token",
		Long: `Makes a resource known before its first token, with a source and a policy. Done
again with the same settings it changes nothing; with others it is refused.`,
		Example: `  wirefence resource declare orders --source etcd-revision --reason 'the order service has its own election'`,
		Args:    exactly(1, "one resource"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[declareSettings](c)
			if err != nil {
				return err
			}
			resource, policy, err := cfg.policy(args[0])
			if err != nil {
				return usageError{err}
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				made, err := fence.Declare(c.Context(), conn, resource, policy, cfg.Reason)
				switch {
				case fence.IsDeclared(err):
					return fmt.Errorf("%w; to change it: wirefence resource set", err)
				case err != nil:
					return err
				case cfg.JSON:
					return printJSON(c.OutOrStdout(), map[string]any{"resource": resource, "declared": made})
				case made:
					fmt.Fprintf(c.OutOrStdout(), "%s is declared\n", resource)
				default:
					fmt.Fprintf(c.OutOrStdout(), "%s was declared so before\n", resource)
				}
				return nil
			})
		},
	}
	settings[declareSettings](c)
	return c
}

func resourceSetCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "set RESOURCE --reason WHY",
		Short: "Change a resource's source or policy",
		Long: `Changes what is named and leaves the rest.

Another source locks the present holder out, as revoke does, and its tokens count
from the last one on. If it counts lower, say from where with --last-token: from
then on tokens must name their source, lest one from before counts again, unless
--must-name-source=false is given. See docs/sources.md.`,
		Example: `  wirefence resource set orders --source etcd-revision --reason 'moved from Redisson'`,
		Args:    exactly(1, "one resource"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[setSettings](c)
			if err != nil {
				return err
			}
			resource, policy, err := cfg.policy(args[0])
			if err != nil {
				return usageError{err}
			}
			if cfg.LastToken != nil {
				if *cfg.LastToken < 0 {
					return usageError{errors.New("WIREFENCE_LAST_TOKEN must be at least 0")}
				}
				policy.LastToken = (*fence.Token)(cfg.LastToken)
			}
			if policy == (fence.Policy{}) {
				return usageError{errors.New("nothing to change is named")}
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				changed, err := fence.SetPolicy(c.Context(), conn, resource, policy, cfg.Reason)
				if err != nil {
					return err
				}
				if cfg.JSON {
					return printJSON(c.OutOrStdout(), map[string]any{"resource": resource, "settings": changed})
				}
				fmt.Fprintf(c.OutOrStdout(), "%s is set\n", resource)
				values(changed).print(c.OutOrStdout())
				return nil
			})
		},
	}
	settings[setSettings](c)
	return c
}

// policy reads what is said of the resource.
func (cfg PolicySettings) policy(name string) (fence.Resource, fence.Policy, error) {
	resource, err := fence.ParseResource(name)
	p := fence.Policy{Source: fence.Source(cfg.Source), MustNameSource: cfg.MustNameSource, Advance: fence.Advance(cfg.Advance), Reuse: fence.Reuse(cfg.Reuse)}
	switch {
	case err != nil:
		return "", p, err
	case strings.TrimSpace(cfg.Reason) == "":
		return "", p, errors.New("WIREFENCE_REASON is not set: why it is so will be recorded")
	case !slices.Contains([]fence.Advance{"", fence.AdvanceOnUse, fence.AdvanceOnGrant}, p.Advance):
		return "", p, fmt.Errorf("WIREFENCE_ADVANCE is %q: use or grant", p.Advance)
	case !slices.Contains([]fence.Reuse{"", fence.ReuseAllowed, fence.ReuseOnce}, p.Reuse):
		return "", p, fmt.Errorf("WIREFENCE_REUSE is %q: allow or once", p.Reuse)
	}
	if p.Source != "" {
		if _, err := fence.ParseSource(cfg.Source); err != nil {
			return "", p, fmt.Errorf("WIREFENCE_SOURCE: %w", err)
		}
	}
	switch cfg.PreemptAfter {
	case "":
	case "never":
		never := fence.Never
		p.PreemptAfter = &never
	default:
		wait, err := time.ParseDuration(cfg.PreemptAfter)
		if err != nil || wait < 0 {
			return "", p, fmt.Errorf("WIREFENCE_PREEMPT_AFTER is %q: 0 or more, as in 5s, or never", cfg.PreemptAfter)
		}
		p.PreemptAfter = &wait
	}
	return resource, p, nil
}

// values are settings with their values before and after.
type values map[string][2]json.RawMessage

func (v values) print(w io.Writer) {
	text := func(value json.RawMessage) string {
		if string(value) == "null" {
			return "-"
		}
		return strings.Trim(string(value), `"`)
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		fmt.Fprintf(w, "  %s: %s -> %s\n", name, text(v[name][0]), text(v[name][1]))
	}
}

// onSchema connects to the database, which must have the schema that this binary
// knows.
func onSchema(ctx context.Context, url string, do func(conn *pgx.Conn) error) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if err := migrations.Verify(ctx, conn); err != nil {
		return err
	}
	return do(conn)
}
