package doctor

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/finding"
)

const proxyReachable = "proxy.reachable"

// proxyChecks examine the proxy and its servers.
func (in *Input) proxyChecks() (all []Check) {
	if in.Upstream != nil {
		all = append(all, Check{"proxy.upstream", []string{databaseReachable}, checkUpstream})
	}
	if in.Admin != "" {
		all = append(all, Check{"proxy.ready", nil, checkReady})
	}
	if in.Proxy != nil {
		all = append(all,
			Check{proxyReachable, nil, checkProxy},
			Check{"proxy.database", []string{databaseReachable, proxyReachable}, checkProxyDatabase},
			Check{"proxy.fences", []string{schemaVersion, proxyReachable}, checkProxyFences},
		)
	}
	return all
}

// checkReady asks the proxy's probe.
func checkReady(ctx context.Context, in *Input) ([]Finding, error) {
	status, body, err := Probe(ctx, in.Admin, "/readyz")
	switch {
	case err != nil:
		return []Finding{{Grade: Problem, Says: "the proxy's probes don't answer: " + unanswered(ctx, err),
			Means: "It doesn't run, or its probes are elsewhere.", Remedy: []string{"set WIREFENCE_ADMIN_LISTEN to the proxy's, or to off"}}}, nil
	case status != http.StatusOK:
		return []Finding{{Grade: Problem, Says: "the proxy is not ready: " + strings.TrimSpace(strings.TrimPrefix(body, "not ready: ")),
			Means: "It serves no new clients, or its upstream can't be reached.", Remedy: []string{"see the proxy's log"}}}, nil
	}
	return finding.Fine("the proxy says that it is ready"), nil
}

func checkProxy(ctx context.Context, in *Input) ([]Finding, error) {
	conn, err := pgx.ConnectConfig(ctx, in.Proxy.Copy())
	if err != nil {
		f := Finding{Grade: Problem, Says: "no session through the proxy: " + unanswered(ctx, err), Means: "Applications may not get one, either.",
			Remedy: []string{"set WIREFENCE_LISTEN to where the proxy listens, or --proxy-url to a connection string through it"}}
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code == cannotConnectNow {
			f.Grade, f.Means, f.Remedy = Unchecked, "A proxy on standby takes no sessions; ask the one that holds the lease.", nil
		}
		return []Finding{f}, nil
	}
	defer conn.Close(context.WithoutCancel(ctx))
	trip, err := roundTrip(ctx, func() error { _, err := conn.Exec(ctx, "SELECT 1"); return err })
	if err != nil {
		return nil, err
	}
	return finding.Fine("a session through the proxy at %s:%d answers in %v", in.Proxy.Host, in.Proxy.Port, trip), nil
}

const cannotConnectNow = "57P03"

func checkUpstream(ctx context.Context, in *Input) ([]Finding, error) {
	same, err := in.sameDatabase(ctx, in.Upstream)
	if err != nil {
		return []Finding{{Grade: Problem, Says: "the proxy's upstream can't be reached from here: " + unanswered(ctx, err),
			Means: "The proxy may reach it, if it runs elsewhere.", Remedy: []string{"set WIREFENCE_UPSTREAM to servers that take connections"}}}, nil
	}
	return databaseFinding("WIREFENCE_UPSTREAM", same), nil
}

func checkProxyDatabase(ctx context.Context, in *Input) ([]Finding, error) {
	same, err := in.sameDatabase(ctx, in.Proxy)
	if err != nil {
		return nil, err
	}
	return databaseFinding("the proxy", same), nil
}

func databaseFinding(by string, same bool) []Finding {
	if same {
		return finding.Fine("%s leads to the database of WIREFENCE_DATABASE_URL", by)
	}
	return []Finding{{
		Grade: Problem, Says: by + " leads to another database than WIREFENCE_DATABASE_URL",
		Means:  "Grants are sealed in one and writes checked in the other: a former holder's writes are accepted.",
		Remedy: []string{"let WIREFENCE_UPSTREAM and WIREFENCE_DATABASE_URL name the same server, and clients the same database"},
	}}
}

//go:embed sql/take_mark.sql
var takeMarkSQL string

//go:embed sql/see_mark.sql
var seeMarkSQL string

// sameDatabase reports whether a session leads to the same database of the same server. A
// server's identifiers are copied with its files, so it takes a lock here and looks for it
// there.
func (in *Input) sameDatabase(ctx context.Context, other *pgx.ConnConfig) (bool, error) {
	there, err := pgx.ConnectConfig(ctx, other.Copy())
	if err != nil {
		return false, err
	}
	defer there.Close(context.WithoutCancel(ctx))
	return marked(ctx, in, func(mark int64) (same bool, err error) {
		err = there.QueryRow(ctx, seeMarkSQL, mark).Scan(&same)
		return same, err
	})
}

// setProbe sets a malformed fence. A comment would be refused by the proxy; the setting is
// refused by the database.
const setProbe = "SET LOCAL wirefence.token = '" + fence.Probe + "'"

// harmlessWrite is checked as a write, also in shadow mode, and does nothing if it passes: a
// transaction that is rolled back notifies nobody.
const harmlessWrite = "NOTIFY wirefence_doctor"

// checkProxyFences sends a write under a malformed fence by both protocols, in a read-only
// transaction that is rolled back.
func checkProxyFences(ctx context.Context, in *Input) (found []Finding, err error) {
	conn, err := pgx.ConnectConfig(ctx, in.Proxy.Copy())
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, way := range []struct {
		protocol string
		send     func(tx pgx.Tx) error
	}{
		{"simple", func(tx pgx.Tx) error { return tx.Conn().PgConn().Exec(ctx, harmlessWrite).Close() }},
		{"extended", func(tx pgx.Tx) error {
			return tx.Conn().PgConn().ExecParams(ctx, harmlessWrite, nil, nil, nil, nil).Read().Err
		}},
	} {
		refused, err := refuses(ctx, conn, way.send)
		switch {
		case err != nil:
			return found, err
		case !refused:
			return append(found, in.unfenced(ctx)), nil
		}
	}
	return finding.Fine("the proxy has fences checked, in both protocols"), nil
}

// refuses reports whether a statement under a malformed fence is refused as malformed.
func refuses(ctx context.Context, conn *pgx.Conn, send func(tx pgx.Tx) error) (bool, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, setProbe); err != nil {
		return false, err
	}
	err = send(tx)
	if fence.IsMalformed(err) {
		return true, nil
	}
	return false, err
}

// unfenced returns the finding about a proxy that refused nothing.
func (in *Input) unfenced(ctx context.Context) Finding {
	f := Finding{
		Grade: Problem, Says: "a malformed fence was not refused", Means: "Writes go through unchecked: the proxy is off, or this is no proxy.",
		Remedy: []string{"WIREFENCE_MODE=enforce", "let clients connect to the proxy, not to the database"},
	}
	if in.Admin == "" {
		f.Means = "Writes go through unchecked: the proxy is in shadow mode or off, or this is no proxy."
	} else if _, metrics, err := Probe(ctx, in.Admin, "/metrics"); err == nil && wouldHaveRefused(metrics) {
		f.Grade, f.Says = Warning, "the proxy is in shadow mode"
		f.Means, f.Remedy = "It reports what it would refuse, and refuses nothing.", []string{"WIREFENCE_MODE=enforce, when it reports no more writes that should pass"}
	}
	return f
}

// wouldHaveRefused reports whether the proxy's metrics count a probe in shadow mode.
func wouldHaveRefused(metrics string) bool {
	lines := bufio.NewScanner(strings.NewReader(metrics))
	for lines.Scan() {
		series, count, _ := strings.Cut(lines.Text(), "} ")
		if series == `wirefence_doctor_probes_total{shadow="true"` && count != "0" {
			return true
		}
	}
	return false
}
