package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/migrations"
)

type statusSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required, but for --ready)"`
	AdminListen string `env:"WIREFENCE_ADMIN_LISTEN" envDefault:"127.0.0.1:9433" help:"with --ready: where the proxy's probes are"`
	Ready       bool   `env:"WIREFENCE_READY" help:"ask the proxy on this machine whether it is ready, for health checks: exit status 0 or 1"`
	JSON        bool   `env:"WIREFENCE_JSON" help:"print JSON"`
}

func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "List the resources: last token, holder, policy, open writers",
		Args:  exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := read[statusSettings](c)
			if err != nil {
				return err
			}
			if cfg.Ready {
				return askReady(c.Context(), cfg.AdminListen)
			}
			return printStatus(c.Context(), cfg, c.OutOrStdout())
		},
	}
	settings[statusSettings](c)
	return c
}

func printStatus(ctx context.Context, cfg statusSettings, w io.Writer) error {
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if err := migrations.Verify(ctx, conn); err != nil {
		return err
	}
	all, err := fence.Status(ctx, conn)
	if err != nil {
		return err
	}
	if cfg.JSON {
		return printJSON(w, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No resource has been fenced yet.")
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tTOKEN\tHOLDER\tSINCE\tADVANCE\tREUSE\tPREEMPT AFTER\tWRITERS")
	for _, r := range all {
		holder, since, preempt := "-", "-", "never"
		if r.Holder != "" {
			holder = r.Holder
		}
		if !r.Since.IsZero() {
			since = r.Since.UTC().Format(time.RFC3339)
		}
		if r.PreemptAfter != nil {
			preempt = r.PreemptAfter.String()
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Resource, r.LastToken, holder, since, r.Advance, r.Reuse, preempt, r.Writers)
	}
	return t.Flush()
}

func printJSON(w io.Writer, all []fence.ResourceStatus) error {
	type row struct {
		Resource     string     `json:"resource"`
		Token        int64      `json:"token"`
		Holder       string     `json:"holder,omitempty"`
		Since        *time.Time `json:"since,omitempty"`
		Advance      string     `json:"advance"`
		Reuse        string     `json:"reuse"`
		PreemptAfter *float64   `json:"preempt_after_seconds"`
		Writers      int        `json:"writers"`
	}
	rows := []row{}
	for _, r := range all {
		out := row{Resource: string(r.Resource), Token: int64(r.LastToken), Holder: r.Holder, Advance: string(r.Advance), Reuse: string(r.Reuse), Writers: r.Writers}
		if !r.Since.IsZero() {
			out.Since = &r.Since
		}
		if r.PreemptAfter != nil {
			seconds := r.PreemptAfter.Seconds()
			out.PreemptAfter = &seconds
		}
		rows = append(rows, out)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// askReady asks the proxy on this machine for /readyz.
func askReady(ctx context.Context, admin string) error {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return usageError{fmt.Errorf("WIREFENCE_ADMIN_LISTEN: %w", err)}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the proxy's probes don't answer: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s", reason)
	}
	return nil
}
