package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/doctor"
)

type statusSettings struct {
	StoreSettings
	DatabaseURL string        `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"yes" help:"connection string of the issuer's role (required, but for --ready)"`
	AdminListen string        `env:"WIREFENCE_ADMIN_LISTEN" group:"Connections" type:"address" envDefault:"127.0.0.1:9433" help:"with --ready: address of the proxy's probes"`
	Ready       bool          `env:"--ready" help:"ask the proxy on this machine whether it is ready, for health checks: exit status 0 or 1"`
	Wait        time.Duration `env:"--wait" envDefault:"0s" range:"0.." help:"with --ready: time to wait until the proxy is ready; at its end the last reason is printed"`
	Guards      bool          `env:"--guards" help:"list the guarded tables and their problems instead"`
	Rows        bool          `env:"--rows" help:"list the classes of rows and their problems instead"`
	OutputSettings
}

func statusCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "status [flags] [RESOURCE]",
		Short: "List the resources, or one: last token, lease, holder, policy, open writers, refusals",
		Long: `Prints a line for each resource, or for the one that is named: its last token, whether
the lease is held now, who was granted it last and when, its policy, how many open
transactions hold it, and how many writes were refused, or passed in shadow mode, in
the last hour, as far as the history has them.

The lease store knows whether a lease is held: name it as for the proxy. For a
resource whose tokens come from another source, it is unknown.

Exit status:

    0  it is done; with --ready, the proxy is ready
    1  it failed, or the resource isn't known; with --ready, the proxy isn't
       ready, or doesn't answer
    2  wrong usage`,
		Args: atMostOne("one resource or none"),
	}, func(c *cobra.Command, cfg statusSettings, args []string) error {
		switch {
		case cfg.Ready && cfg.Guards, cfg.Ready && cfg.Rows, cfg.Guards && cfg.Rows:
			return usageError{errors.New("--ready, --guards and --rows ask for different things: give one")}
		case len(args) > 0 && (cfg.Ready || cfg.Guards || cfg.Rows):
			return usageError{errors.New("--ready, --guards and --rows ask for nothing of one resource: name none")}
		case cfg.Wait != 0 && !cfg.Ready:
			return usageError{errors.New("--wait waits for a proxy: give it with --ready")}
		case cfg.Ready:
			return printReady(c.Context(), cfg, c.OutOrStdout())
		}
		resource := fence.Resource("")
		if len(args) > 0 {
			var err error
			if resource, err = parseResource(args[0]); err != nil {
				return err
			}
		}
		return printStatus(c.Context(), cfg, resource, c.OutOrStdout(), c.ErrOrStderr())
	})
}

func printStatus(ctx context.Context, cfg statusSettings, resource fence.Resource, w, stderr io.Writer) error {
	return onSchema(ctx, cfg.DatabaseURL, func(conn *pgx.Conn) error {
		switch {
		case cfg.Guards:
			return printGuards(ctx, conn, cfg.inJSON(), w)
		case cfg.Rows:
			return printRows(ctx, conn, cfg.inJSON(), w)
		}
		return listStatus(ctx, conn, cfg, resource, w, stderr)
	})
}

// statusOf returns one resource, or all for none.
func statusOf(ctx context.Context, conn *pgx.Conn, resource fence.Resource) ([]fence.ResourceStatus, error) {
	if resource == "" {
		return fence.Status(ctx, conn)
	}
	r, known, err := fence.StatusOf(ctx, conn, resource)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, unknownResource(resource)
	}
	return []fence.ResourceStatus{r}, nil
}

func unknownResource(resource fence.Resource) error {
	return fmt.Errorf("unknown fenced resource %q: no token of it was ever recorded, and it was not declared (SQLSTATE %s); wirefence status lists those that are known", resource, fence.ResourceUnknown)
}

func listStatus(ctx context.Context, conn *pgx.Conn, cfg statusSettings, resource fence.Resource, w, stderr io.Writer) error {
	if err := fence.CollectRefusals(ctx, conn); err != nil {
		return err
	}
	all, err := statusOf(ctx, conn, resource)
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
	if cfg.inJSON() {
		return printJSON(w, inFull(all, leases, refusals))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No resource has been fenced yet.")
	} else if err := printResources(w, all, leases, refusals); err != nil {
		return err
	}
	if resource != "" {
		return nil
	}
	return printOthers(w, all, refusals)
}

// printOthers tells of refusals that are of none of the resources.
func printOthers(w io.Writer, all []fence.ResourceStatus, refusals map[fence.Resource]fence.RefusalCount) error {
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
		fmt.Fprintf(w, "Not attributed to a resource of this list, in the last hour: %d refused, %d passed in shadow mode. See wirefence history --since 1h.\n",
			others.Refused, others.LetPass)
	}
	return nil
}

func printResources(w io.Writer, all []fence.ResourceStatus, leases []lease, refusals map[fence.Resource]fence.RefusalCount) error {
	t := newTable(w)
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
	return r.Since.Format(time.RFC3339)
}

func preemptText(r fence.ResourceStatus) string {
	if r.PreemptAfter == nil {
		return "never"
	}
	return r.PreemptAfter.String()
}

func printReady(ctx context.Context, cfg statusSettings, w io.Writer) error {
	err := awaitReady(ctx, cfg.AdminListen, cfg.Wait)
	if !cfg.inJSON() || errors.As(err, new(usageError)) {
		return err
	}
	answer := readyJSON{Ready: err == nil}
	if err != nil {
		answer.Reason = err.Error()
	}
	if printed := printJSON(w, answer); err == nil || printed != nil {
		return printed
	}
	return &exitStatus{status: exitFailure}
}

// readyPause is the pause between two questions whether the proxy is ready.
const readyPause = 100 * time.Millisecond

// awaitReady asks until the proxy is ready, or the time to wait is over.
func awaitReady(ctx context.Context, admin string, wait time.Duration) error {
	for end := time.Now().Add(wait); ; {
		err := askReady(ctx, admin)
		if err == nil || ctx.Err() != nil || !time.Now().Before(end) || errors.As(err, new(usageError)) {
			return err
		}
		sleep(ctx, readyPause)
	}
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
