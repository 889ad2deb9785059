package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

// ResourceSettings are those of every command on resources.
type ResourceSettings struct {
	IssuerSettings
	OutputSettings
}

// PolicySettings are the policy of a resource. An empty field changes nothing.
type PolicySettings struct {
	Reason         string `env:"--reason" type:"why" help:"the reason for the change; recorded in the history (required)"`
	Source         string `env:"--source" type:"name" help:"the counter of the tokens: a lease store, as in postgres or redis, or a name for your own lock service"`
	MustNameSource *bool  `env:"--must-name-source" help:"true: a token that doesn't name its source is refused; false"`
	Advance        string `env:"--advance" oneof:"use|grant" help:"use: a higher token below 2^62 is valid from its first use on; grant: only after a seal"`
	Reuse          string `env:"--reuse" oneof:"allow|once" help:"allow: a token is valid for any number of transactions; once: for one"`
	PreemptAfter   string `env:"--preempt-after" type:"duration" help:"time that a newer token waits before it ends older transactions, as in 5s, or never"`
	ResourceMode   string `env:"--resource-mode" oneof:"enforce|shadow" help:"enforce; shadow: record in the history the statements that would be refused, and refuse nothing"`
	Failover       string `env:"--failover" oneof:"reacquire|trust" help:"reacquire: tokens from before a promotion of the database are invalid; trust: they stay valid, since the storage keeps every commit"`
}

type showSettings struct {
	ResourceSettings
	StoreSettings
}

type declareSettings struct {
	ResourceSettings
	PolicySettings
}

type setSettings struct {
	ResourceSettings
	PolicySettings
	LastToken  *int64 `env:"--last-token" type:"token" range:"0.." help:"the new value of the current token, for a source with lower numbers than the one before"`
	Undeclared string `env:"--undeclared" oneof:"allow|refuse" help:"without a RESOURCE: refuse tokens of resources that are not known (WF008), or allow them"`
}

func resourceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "resource",
		Short: "List, show, declare, change and forget resources",
		Long: `A resource remembers which lock service counts its tokens: the first one that a
token or a seal names. Tokens of another one are refused. These commands set the
service beforehand or change it, and the policy, and record the reason.`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(resourceListCommand(), resourceShowCommand(), resourceDeclareCommand(), resourceSetCommand(), resourceForgetCommand())
	return c
}

func resourceListCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "list",
		Short: "List the resources: source and policy",
		Args:  exactly(0, "no arguments"),
	}, func(ResourceSettings, []string) (question, error) { return listResources, nil })
}

func listResources(ctx context.Context, conn *pgx.Conn) (answer, error) {
	all, err := fence.Status(ctx, conn)
	const heading = "RESOURCE\tTOKEN\tSOURCE\tADVANCE\tREUSE\tPREEMPT AFTER\tMODE\tFAILOVER"
	return table(allInJSON(all), "No resource has been fenced or declared yet.", heading, func(of statusJSON) []any {
		r := of.ResourceStatus
		return []any{r.Resource, r.LastToken, sourceText(r), r.Advance, r.Reuse, preemptText(r), r.Mode, failoverText(r)}
	}), err
}

func sourceText(r fence.ResourceStatus) string {
	if r.MustNameSource {
		return cell(string(r.Source)) + ", to be named"
	}
	return string(r.Source)
}

func failoverText(r fence.ResourceStatus) string {
	if r.Former {
		return string(r.Failover) + ", awaits a grant"
	}
	return string(r.Failover)
}

func resourceShowCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "show [flags] RESOURCE",
		Short: "Show a resource, whether its lease is held now, and what operators said about it",
		Args:  exactly(1, "one resource"),
	}, func(cfg showSettings, args []string) (question, error) {
		resource, err := parseResource(args[0])
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) { return cfg.show(ctx, conn, resource) }, err
	})
}

func (cfg showSettings) show(ctx context.Context, conn *pgx.Conn, resource fence.Resource) (answer, error) {
	found, err := statusOf(ctx, conn, resource)
	if err != nil {
		return answer{}, err
	}
	changes, err := fence.Changes(ctx, conn, resource)
	if err != nil {
		return answer{}, err
	}
	leases, err := lookAtLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, found, os.Stderr)
	if err != nil {
		return answer{}, err
	}
	return answer{shownJSON{inJSON(found[0]), leases[0], changes}, func(w io.Writer) error {
		if err := printResource(w, found[0], leases[0]); err != nil {
			return err
		}
		printChanges(w, changes)
		return nil
	}}, nil
}

func printResource(w io.Writer, r fence.ResourceStatus, l lease) error {
	return printTable(w, [][]any{
		{"resource", r.Resource}, {"last token", r.LastToken}, {"source", sourceText(r)},
		{"lease", l.longText()}, {"last holder", r.Holder}, {"granted", timeText(r.Since)}, {"advance", r.Advance}, {"reuse", r.Reuse},
		{"preempt after", preemptText(r)}, {"mode", r.Mode}, {"failover", failoverText(r)}, {"writers", r.Writers},
	}, "", "", func(row []any) []any { return row })
}

func printChanges(w io.Writer, changes []fence.ResourceChange) {
	for _, c := range changes {
		by := cell(c.By)
		if c.Application != "" {
			by += " (" + cell(c.Application) + ")"
		}
		fmt.Fprintf(w, "\n%s by %s: %s\n", c.At.UTC().Format(time.RFC3339), by, cell(c.Reason))
		printValues(w, c.Settings)
	}
}

func resourceDeclareCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "declare [flags] --reason WHY RESOURCE",
		Short: "Make a resource known before its first token",
		Long: `Makes a resource known before its first token, with a source and a policy. Repeated
with the same settings it changes nothing; with others it fails.`,
		Example: `  wirefence resource declare orders --source etcd-revision --reason 'the order service has its own election'`,
		Args:    exactly(1, "one resource"),
	}, func(cfg declareSettings, args []string) (question, error) {
		resource, policy, err := cfg.policy(args[0])
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			made, err := fence.Declare(ctx, conn, resource, policy, cfg.Reason)
			if fence.IsDeclared(err) {
				err = fmt.Errorf("%w; to change it: wirefence resource set", err)
			}
			text := "%s is declared"
			if !made {
				text = "%s was declared so before"
			}
			return sentence(declaredJSON{string(resource), made}, text, cell(string(resource))), err
		}, err
	})
}

func resourceSetCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "set [flags] --reason WHY [RESOURCE]",
		Short: "Change a resource's source or policy, or the policy for unknown resources",
		Long: `Changes the settings that you name and leaves the others.

A new source locks the present holder out, as revoke does, and its tokens count
from the last one on. If the new source counts lower, give its number with
--last-token: tokens must then name their source, so that no older token counts
again, unless you give --must-name-source=false. See docs/reference/sources.md.

Without a resource, --undeclared and --failover apply to all that have no setting of
their own. See docs/reference/policies.md.`,
		Example: `  wirefence resource set orders --source etcd-revision --reason 'moved from Redisson'
  wirefence resource set orders --reuse once --preempt-after 1s --reason 'paid once'
  wirefence resource set --undeclared refuse --reason 'all are declared by the deployment'
  wirefence resource set --failover trust --reason 'Aurora keeps every commit'`,
		Args: atMostOne("one resource, or none with --undeclared or --failover"),
	}, func(cfg setSettings, args []string) (question, error) {
		if len(args) == 0 {
			return cfg.setForAll, cfg.checkForAll()
		}
		return cfg.setPolicy(args[0])
	})
}

// setPolicy returns the question that changes a resource as the flags say.
func (cfg setSettings) setPolicy(name string) (question, error) {
	resource, policy, err := cfg.policy(name)
	switch {
	case err != nil:
		return nil, err
	case cfg.Undeclared != "":
		return nil, errors.New("--undeclared is for all resources: name none")
	}
	policy.LastToken = (*fence.Token)(cfg.LastToken)
	if policy == (fence.Policy{}) {
		return nil, errors.New("nothing to change is named")
	}
	return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
		changed, err := fence.SetPolicy(ctx, conn, resource, policy, cfg.Reason)
		return wasSet(resource, changed, cell(string(resource))+" is set"), err
	}, nil
}

func checkReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return errors.New("--reason is missing: say why you do this; it is recorded in the history")
	}
	return nil
}

// policy parses the resource's name and the flags of its policy.
func (cfg PolicySettings) policy(name string) (fence.Resource, fence.Policy, error) {
	resource, err := parseResource(name)
	if err == nil {
		err = checkReason(cfg.Reason)
	}
	p := fence.Policy{
		Source: fence.Source(cfg.Source), MustNameSource: cfg.MustNameSource, Advance: fence.Advance(cfg.Advance), Reuse: fence.Reuse(cfg.Reuse),
		Mode: fence.Mode(cfg.ResourceMode), Failover: fence.Failover(cfg.Failover),
	}
	switch {
	case err != nil:
		return "", p, err
	case p.Source != "":
		if _, err := fence.ParseSource(cfg.Source); err != nil {
			return "", p, fmt.Errorf("--source: %w", err)
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
			return "", p, fmt.Errorf("--preempt-after is %q: 0 or more, as in 5s, or never", cfg.PreemptAfter)
		}
		p.PreemptAfter = &wait
	}
	return resource, p, nil
}

// checkForAll checks the flags of a command that names no resource.
func (cfg setSettings) checkForAll() error {
	others := cfg.PolicySettings
	others.Reason, others.Failover = "", ""
	switch {
	case cfg.Undeclared == "" && cfg.Failover == "":
		return errors.New("wants one resource, or --undeclared allow or refuse, or --failover reacquire or trust")
	case cfg.Undeclared != "" && cfg.Failover != "":
		return errors.New("set --undeclared and --failover one after the other")
	case others != (PolicySettings{}) || cfg.LastToken != nil:
		return errors.New("wants one resource: only --undeclared and --failover can be for all")
	}
	return checkReason(cfg.Reason)
}

// setForAll changes the settings of all resources.
func (cfg setSettings) setForAll(ctx context.Context, conn *pgx.Conn) (answer, error) {
	if cfg.Failover != "" {
		changed, err := fence.SetFailover(ctx, conn, fence.Failover(cfg.Failover), cfg.Reason)
		return wasSet("", changed, "it is set for all resources, except for those of which it was said"), err
	}
	changed, err := fence.SetUndeclared(ctx, conn, fence.Undeclared(cfg.Undeclared), cfg.Reason)
	return wasSet("", changed, "it is set for all resources; those in wirefence resource list are known"), err
}
