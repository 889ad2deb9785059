package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/doctor"
)

type statusSettings struct {
	StoreSettings
	SealSettings
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of the issuer's role (required, but for --ready)"`
	PasswordSettings
	AdminListen string        `env:"WIREFENCE_ADMIN_LISTEN" group:"Connections" type:"address" envDefault:"127.0.0.1:9433" help:"with --ready and --adopted: address of the proxy's admin listener"`
	TokenFile   string        `env:"WIREFENCE_ADMIN_TOKEN_FILE" group:"TLS and authentication" help:"with --adopted: file with the proxy's tokens, of which the first one is sent"`
	Ready       bool          `env:"--ready" help:"ask the proxy on this machine whether it is ready, for health checks: exit status 0 or 1"`
	Wait        time.Duration `env:"--wait" envDefault:"0s" range:"0.." help:"with --ready: time to wait until the proxy is ready; at its end the last reason is printed"`
	Guards      bool          `env:"--guards" help:"list the guarded tables and their problems instead"`
	Rows        bool          `env:"--rows" help:"list the classes of rows and their problems instead"`
	Adopted     bool          `env:"--adopted" help:"ask the proxy on this machine for the application's own locks, of WIREFENCE_LEASE_FROM, and the leases that follow them"`
	OutputSettings
}

func statusCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "status [flags] [RESOURCE]",
		Short: "List the resources, or one: last token, lease, holder, policy, open writers, refusals",
		Long: `Prints a line for each resource, or for the one that is named: its last token, whether
the lease is held now, the last grant's holder and time, its policy, open transactions
that hold it, and writes that were refused, or passed in shadow mode, in the last hour.

Name the lease store as for the proxy: it knows whether a lease is held. For a resource
whose tokens come from another source, that is unknown.

With --adopted it prints the application's own locks, of the proxy's WIREFENCE_LEASE_FROM,
with the last lease that followed each, from when, until when, and why it is over.

With further databases, and if each node of Citus has the tokens, there is a line for each.

Exit status:

    0  it is done; with --ready, the proxy is ready
    1  it failed, or the resource isn't known; with --ready, the proxy isn't
       ready, or doesn't answer
    2  wrong usage`,
		Args: atMostOne("one resource or none"),
	}, func(c *cobra.Command, cfg statusSettings, args []string) error {
		switch {
		case count(cfg.Ready, cfg.Guards, cfg.Rows, cfg.Adopted) > 1:
			return usageError{errors.New("--ready, --guards, --rows and --adopted ask for different things: give one")}
		case len(args) > 0 && count(cfg.Ready, cfg.Guards, cfg.Rows, cfg.Adopted) > 0:
			return usageError{errors.New("--ready, --guards, --rows and --adopted ask for nothing of one resource: name none")}
		case cfg.Wait != 0 && !cfg.Ready:
			return usageError{errors.New("--wait waits for a proxy: give it with --ready")}
		case cfg.Ready:
			return printReady(c.Context(), cfg, c.OutOrStdout())
		case cfg.Adopted:
			return printAdopted(c.Context(), cfg, c.OutOrStdout())
		case cfg.Guards:
			return printAnswer(c, cfg, listGuards)
		case cfg.Rows:
			return printAnswer(c, cfg, listRows)
		}
		resource := fence.Resource("")
		if len(args) > 0 {
			var err error
			if resource, err = parseResource(args[0]); err != nil {
				return err
			}
		}
		return listStatus(c.Context(), cfg, resource, c.OutOrStdout(), c.ErrOrStderr())
	})
}

func (cfg statusSettings) onSchema(ctx context.Context, do func(conn *pgx.Conn) error) error {
	return IssuerSettings{DatabaseURL: cfg.DatabaseURL}.onSchema(ctx, do)
}

// readStatus reads one resource, or all for none, from each database that is named, on all nodes of
// Citus that have the tokens. The error is of the databases that can't be read, beside the rows of
// the others.
func readStatus(ctx context.Context, cfg statusSettings, resource fence.Resource, stderr io.Writer) (all []fullStatusJSON, others fence.RefusalCount, err error) {
	var failed []error
	for _, url := range append([]string{cfg.DatabaseURL}, cfg.SealURLs...) {
		name := ""
		if len(cfg.SealURLs) > 0 {
			parsed, err := connstring.Conn(url)
			if err != nil {
				return nil, others, usageError{fmt.Errorf("WIREFENCE_DATABASE_URL, WIREFENCE_SEAL_URLS: %w", err)}
			}
			name = serverName(parsed)
		}
		err := onNodes(ctx, url, func(nodes []node, failed error) error {
			for _, node := range nodes {
				rows, err := statusIn(ctx, node.Conn, resource, &others)
				if err != nil && node.name != "" { // the others may know more
					failed = errors.Join(failed, fmt.Errorf("node %s: %w", node.name, err))
					continue
				} else if err != nil {
					return err
				}
				for _, row := range rows {
					row.Database = cmp.Or(node.name, name)
					all = append(all, row)
				}
			}
			return failed
		})
		if err != nil && name != "" {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	unread := errors.Join(failed...)
	if len(failed) == 1 {
		unread = failed[0]
	}
	if unread != nil && len(all) == 0 {
		return nil, others, unread
	}
	statuses := make([]fence.ResourceStatus, len(all))
	for i, row := range all {
		statuses[i] = row.ResourceStatus
	}
	leases, err := lookAtLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, statuses, stderr)
	if err != nil {
		return nil, others, err
	}
	for i := range all {
		all[i].Lease = leases[i]
	}
	return all, others, unread
}

// statusIn reads from one database. It adds refusals that are of none of its resources to
// others.
func statusIn(ctx context.Context, conn *pgx.Conn, resource fence.Resource, others *fence.RefusalCount) ([]fullStatusJSON, error) {
	if err := fence.CollectRefusals(ctx, conn); err != nil {
		return nil, err
	}
	all, err := statusOf(ctx, conn, resource)
	if err != nil {
		return nil, err
	}
	refusals, err := fence.RefusalsWithin(ctx, conn, time.Hour)
	if err != nil {
		return nil, err
	}
	rows := make([]fullStatusJSON, len(all))
	for i, r := range all {
		rows[i] = fullStatusJSON{statusJSON: inJSON(r), Refused: refusals[r.Resource].Refused, LetPass: refusals[r.Resource].LetPass}
		delete(refusals, r.Resource)
	}
	for _, n := range refusals {
		others.Refused += n.Refused
		others.LetPass += n.LetPass
	}
	return rows, nil
}

// statusOf returns one resource, which must be known, or all for none.
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

func listStatus(ctx context.Context, cfg statusSettings, resource fence.Resource, w, stderr io.Writer) error {
	all, others, failed := readStatus(ctx, cfg, resource, stderr)
	if failed != nil && len(all) == 0 {
		return failed
	}
	return errors.Join(cfg.give(w, answer{append([]fullStatusJSON{}, all...), func(w io.Writer) error {
		if err := printResources(w, all); err != nil {
			return err
		}
		if resource == "" && others != (fence.RefusalCount{}) {
			fmt.Fprintf(w, "Not attributed to a resource of this list, in the last hour: %d refused, %d passed in shadow mode. See wirefence history --since 1h.\n",
				others.Refused, others.LetPass)
		}
		return nil
	}}), failed)
}

func printResources(w io.Writer, all []fullStatusJSON) error {
	several := len(all) > 0 && all[0].Database != ""
	heading := "RESOURCE\tTOKEN\tLEASE\tLAST HOLDER\tGRANTED\tADVANCE\tREUSE\tPREEMPT AFTER\tMODE\tWRITERS\tREFUSED 1H\tLET PASS 1H"
	if several {
		heading = "DATABASE\t" + heading
	}
	return printTable(w, all, "No resource has been fenced yet.", heading, func(r fullStatusJSON) (row []any) {
		if several {
			row = []any{r.Database}
		}
		return append(row, r.Resource, r.LastToken, r.Lease.text(), holderName(r.Holder), timeText(r.Since), r.Advance, r.Reuse,
			preemptText(r.ResourceStatus), r.Mode, r.Writers, r.Refused, r.LetPass)
	})
}

// timeText is "" for a time that isn't known.
func timeText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339)
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

// count counts what is so.
func count(all ...bool) (n int) {
	for _, so := range all {
		if so {
			n++
		}
	}
	return n
}

// printAdopted asks the proxy on this machine for the leases that follow the application's locks.
func printAdopted(ctx context.Context, cfg statusSettings, w io.Writer) error {
	address, err := doctor.AdminAddress(cfg.AdminListen)
	if err != nil {
		return usageError{fmt.Errorf("WIREFENCE_ADMIN_LISTEN: %w", err)}
	}
	token, err := api.FirstToken(cfg.TokenFile)
	if err != nil {
		return usageError{fmt.Errorf("WIREFENCE_ADMIN_TOKEN_FILE: %w", err)}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	status, body, err := doctor.Ask(ctx, address, "/v1/about", token)
	if err != nil {
		return fmt.Errorf("the proxy's admin listener doesn't answer: %w", err)
	}
	var told struct {
		Adopted []adoptedJSON `json:"adopted"`
		Detail  string        `json:"detail"`
	}
	err = json.Unmarshal([]byte(body), &told)
	switch {
	case status != http.StatusOK && told.Detail != "":
		return fmt.Errorf("the proxy answers with status %d: %s", status, told.Detail)
	case status != http.StatusOK || err != nil:
		return fmt.Errorf("the proxy answers with status %d, and not as wirefence does", status)
	}
	return cfg.give(w, table(append([]adoptedJSON{}, told.Adopted...), "No lock of the application's is followed: WIREFENCE_LEASE_FROM isn't set for this proxy.",
		"FROM\tRESOURCE\tTOKEN\tHELD\tHOLDER\tSINCE\tUNTIL\tENDED", func(l adoptedJSON) []any {
			held := "no"
			if l.Held {
				held = "yes"
			}
			return []any{l.From, l.Resource, l.TokenText, held, holderName(l.Holder), timeText(l.Since), timeText(l.Until), l.Ended}
		}))
}
