package main

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
)

// firstWay is a way to PostgreSQL of sessions whose beginning is timed.
type firstWay struct {
	name    string
	target  target
	options string // of the startup packet
	comment string // behind the insert
}

// newBouncer is a PgBouncer that makes a server connection for each client.
const newBouncer = "PgBouncer, with a new server connection"

var firstWays = []firstWay{
	{name: direct, target: postgres}, {name: newBouncer, target: pgbouncer}, {name: viaProxy, target: wirefence},
	{name: byComment, target: wirefence, comment: " /*wirefence.token='" + fenceText + "'*/"},
	{name: byVariable, target: wirefence, options: "-c wirefence.token=" + fenceText},
}

// firstCost is what the beginning of a session takes.
type firstCost struct {
	login  []time.Duration // with a SELECT 1, at which PgBouncer opens its connection
	insert []time.Duration // the first statement of a session
}

// measureFirsts times logins and first statements, each way in turn.
func (w *world) measureFirsts(ctx context.Context) (map[string]*firstCost, error) {
	bouncer, err := servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Upstream: w.postgres.Addr(), Clients: 10, Settings: map[string]string{"server_lifetime": "0"}})
	if err != nil {
		return nil, err
	}
	defer bouncer.Close()
	costs := map[string]*firstCost{}
	for range connections {
		for _, by := range firstWays {
			port := w.ports[by.target]
			if by.name == newBouncer {
				port = bouncer.Port
			}
			cost := costs[by.name]
			if cost == nil {
				cost = &firstCost{}
				costs[by.name] = cost
			}
			login, _, err := timeSession(ctx, port, by, "SELECT 1"+by.comment)
			if err != nil {
				return nil, err
			}
			_, insert, err := timeSession(ctx, port, by, isolatedStatements[0].sql+by.comment)
			if err != nil {
				return nil, err
			}
			cost.login, cost.insert = append(cost.login, login), append(cost.insert, insert)
		}
	}
	for _, cost := range costs {
		slices.Sort(cost.login)
		slices.Sort(cost.insert)
	}
	return costs, nil
}

// lull lets the backend of the session before end: its exit takes a core for a millisecond.
const lull = 10 * time.Millisecond

// timeSession logs in, runs one statement and ends. It returns how long it took up to the
// statement's answer, and how long the statement took alone.
func timeSession(ctx context.Context, port int, by firstWay, sql string) (whole, statement time.Duration, err error) {
	cfg, err := pgconn.ParseConfig(url(port))
	if err != nil {
		return 0, 0, err
	}
	if by.options != "" {
		cfg.RuntimeParams["options"] = by.options
	}
	time.Sleep(lull)
	began := time.Now()
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, 0, err
	}
	loggedIn := time.Now()
	_, err = conn.Exec(ctx, sql).ReadAll()
	answered := time.Now()
	if err != nil {
		return 0, 0, err
	}
	return answered.Sub(began), answered.Sub(loggedIn), conn.Close(ctx)
}

func (b *book) firstTable(p *page) {
	if len(b.firsts) == 0 {
		return
	}
	p.section("### The beginning of a session",
		"Without password: the login with a `SELECT 1`, and an insert as the first statement of another session. The first check of a session compiles its functions in the backend.",
		"| | login and `SELECT 1`, p50 ms | p95 ms | first insert, p50 ms | p95 ms |",
		"|---|---:|---:|---:|---:|")
	for _, by := range firstWays {
		c := b.firsts[by.name]
		p.line("| %s | %s | %s | %s | %s |", by.name, ms(percentile(c.login, 50)), ms(percentile(c.login, 95)), ms(percentile(c.insert, 50)), ms(percentile(c.insert, 95)))
	}
}

// firstVerdicts compares the beginnings of sessions with what is to be reached.
func (b *book) firstVerdicts() []verdict {
	if len(b.firsts) == 0 {
		return nil
	}
	median := func(all []time.Duration) float64 { return float64(percentile(all, 50)) }
	var more []outcome
	for _, by := range []string{byComment, byVariable} {
		more = append(more, outcome{by, single((median(b.firsts[by].insert) - median(b.firsts[viaProxy].insert)) / float64(time.Millisecond)).got})
	}
	return []verdict{
		atMost("first fenced statement of a session: p50 beyond an unfenced one, ms", 1, more...),
		atMost("login: p50 against PgBouncer's with a new server connection", 1.3, single(median(b.firsts[viaProxy].login)/median(b.firsts[newBouncer].login))),
	}
}
