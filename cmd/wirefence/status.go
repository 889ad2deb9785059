package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/doctor"
)

type statusSettings struct {
	StoreSettings
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required, but for --ready)"`
	AdminListen string `env:"WIREFENCE_ADMIN_LISTEN" envDefault:"127.0.0.1:9433" help:"with --ready: where the proxy's probes are"`
	Ready       bool   `env:"WIREFENCE_READY" help:"ask the proxy on this machine whether it is ready, for health checks: exit status 0 or 1"`
	Guards      bool   `env:"WIREFENCE_GUARDS" help:"list the guarded tables instead, and what is wrong with any"`
	JSON        bool   `env:"WIREFENCE_JSON" help:"print JSON"`
}

func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "List the resources: last token, lease, holder, policy, open writers, refusals",
		Long: `Prints a line for each resource: its last token, whether the lease is held now, who
was granted it last and when, its policy, how many open transactions hold it, and how many writes were refused, or let
pass in shadow mode, in the last hour, as far as the history was told of them.

Whether a lease is held, its store tells: name it as for the proxy. Of a resource
whose tokens come from elsewhere it is unknown.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := read[statusSettings](c)
			if err != nil {
				return err
			}
			if cfg.Ready && cfg.Guards {
				return usageError{errors.New("--ready and --guards ask for different things: give one")}
			}
			if cfg.Ready {
				return askReady(c.Context(), cfg.AdminListen)
			}
			return printStatus(c.Context(), cfg, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	settings[statusSettings](c)
	return c
}

func printStatus(ctx context.Context, cfg statusSettings, w, stderr io.Writer) error {
	return onSchema(ctx, cfg.DatabaseURL, func(conn *pgx.Conn) error {
		if cfg.Guards {
			return printGuards(ctx, conn, cfg.JSON, w)
		}
		return listStatus(ctx, conn, cfg, w, stderr)
	})
}

func listStatus(ctx context.Context, conn *pgx.Conn, cfg statusSettings, w, stderr io.Writer) error {
	all, err := fence.Status(ctx, conn)
	if err != nil {
		return err
	}
	refusals, err := fence.RefusalsWithin(ctx, conn, time.Hour)
	if err != nil {
		return err
	}
	leases, err := lookAtLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, all, stderr)
	if err != nil {
		return err
	}
	if cfg.JSON {
		return printJSON(w, inFull(all, leases, refusals))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No resource has been fenced yet.")
	} else if err := printResources(w, all, leases, refusals); err != nil {
		return err
	}
	var others fence.RefusalCount
	for _, n := range refusals {
		others.Refused += n.Refused
		others.LetPass += n.LetPass
	}
	for _, r := range all {
		others.Refused -= refusals[r.Resource].Refused
		others.LetPass -= refusals[r.Resource].LetPass
	}
	if others != (fence.RefusalCount{}) {
		fmt.Fprintf(w, "Besides, of no resource of this list, in the last hour: %d refused, %d let pass. See wirefence history --since 1h.\n",
			others.Refused, others.LetPass)
	}
	return nil
}

func printResources(w io.Writer, all []fence.ResourceStatus, leases []lease, refusals map[fence.Resource]fence.RefusalCount) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tTOKEN\tLEASE\tLAST HOLDER\tGRANTED\tADVANCE\tREUSE\tPREEMPT AFTER\tMODE\tWRITERS\tREFUSED 1H\tLET PASS 1H")
	for i, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", cell(string(r.Resource)), r.LastToken, leases[i].text(), cellOrDash(holderName(r.Holder)), sinceText(r), r.Advance, r.Reuse,
			preemptText(r), r.Mode, r.Writers, refusals[r.Resource].Refused, refusals[r.Resource].LetPass)
	}
	return t.Flush()
}

func sinceText(r fence.ResourceStatus) string {
	if r.Since.IsZero() {
		return "-"
	}
	return r.Since.UTC().Format(time.RFC3339)
}

func preemptText(r fence.ResourceStatus) string {
	if r.PreemptAfter == nil {
		return "never"
	}
	return r.PreemptAfter.String()
}

// statusJSON is how a resource is printed in JSON.
type statusJSON struct {
	Resource       string     `json:"resource"`
	Token          int64      `json:"token"`
	Source         string     `json:"source,omitempty"`
	MustNameSource bool       `json:"must_name_source"`
	Holder         string     `json:"holder,omitempty"`
	Since          *time.Time `json:"since,omitempty"`
	Advance        string     `json:"advance"`
	Reuse          string     `json:"reuse"`
	PreemptAfter   *float64   `json:"preempt_after_seconds"`
	Writers        int        `json:"writers"`
	Mode           string     `json:"mode"`
	Failover       string     `json:"failover"`
	Former         bool       `json:"former"`
}

func inJSON(r fence.ResourceStatus) statusJSON {
	out := statusJSON{
		Resource: string(r.Resource), Token: int64(r.LastToken), Source: string(r.Source), MustNameSource: r.MustNameSource,
		Holder: r.Holder, Advance: string(r.Advance), Reuse: string(r.Reuse), Writers: r.Writers, Mode: string(r.Mode),
		Failover: string(r.Failover), Former: r.Former,
	}
	if !r.Since.IsZero() {
		out.Since = &r.Since
	}
	if r.PreemptAfter != nil {
		seconds := r.PreemptAfter.Seconds()
		out.PreemptAfter = &seconds
	}
	return out
}

func allInJSON(all []fence.ResourceStatus) []statusJSON {
	rows := make([]statusJSON, len(all))
	for i, r := range all {
		rows[i] = inJSON(r)
	}
	return rows
}

// fullStatusJSON adds what isn't in the row of the resource.
type fullStatusJSON struct {
	statusJSON
	Lease   lease `json:"lease"`
	Refused int64 `json:"refused_last_hour"`
	LetPass int64 `json:"let_pass_last_hour"`
}

func inFull(all []fence.ResourceStatus, leases []lease, refusals map[fence.Resource]fence.RefusalCount) []fullStatusJSON {
	rows := make([]fullStatusJSON, len(all))
	for i, r := range all {
		rows[i] = fullStatusJSON{inJSON(r), leases[i], refusals[r.Resource].Refused, refusals[r.Resource].LetPass}
	}
	return rows
}

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// askReady asks the proxy on this machine for /readyz.
func askReady(ctx context.Context, admin string) error {
	address, err := doctor.AdminAddress(admin)
	if err != nil {
		return usageError{fmt.Errorf("WIREFENCE_ADMIN_LISTEN: %w", err)}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	status, reason, err := doctor.Probe(ctx, address, "/readyz")
	switch {
	case err != nil:
		return fmt.Errorf("the proxy's probes don't answer: %w", err)
	case status != http.StatusOK:
		return errors.New(reason)
	}
	return nil
}
