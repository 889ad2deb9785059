package conformance

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// goClient is lockclient, which asks Redis and PostgreSQL itself.
type goClient struct {
	name     string
	url      string // of the database through the proxy
	store    *redis.Store
	pool     *pgxpool.Pool
	outcomes chan map[string]any

	lease  *lockclient.Lease
	margin time.Duration
	began  time.Time
}

func launchGo(t *testing.T, w *world, name string) client {
	t.Helper()
	w.links[name] = link(t, w.redis.Addr())
	store, err := redis.Open("redis://" + w.links[name].Addr() + "/0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	pool := stack.Started(pgxpool.New(t.Context(), w.URL(w.Name))).EndWith(t)
	return &goClient{name: name, url: w.url, store: store, pool: pool, outcomes: make(chan map[string]any, 1)}
}

func (g *goClient) begin(t *testing.T, s step) {
	steps := map[string]func(*testing.T, context.Context, step) (map[string]any, error){
		"acquire": g.acquire, "check": g.check, "remaining": g.remaining, "await_end": g.awaitEnd,
		"release": g.release, "keep": g.keep, "run": g.run, "write": g.write, "sql": g.sql, "claims": g.claims,
	}
	do := steps[s.Do]
	if do == nil {
		t.Fatalf("lockclient is told to %q", s.Do)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
		defer cancel()
		began := time.Now()
		outcome, err := do(t, ctx, s)
		if err != nil {
			outcome = failure(err)
		}
		outcome["took"] = time.Since(began).Seconds()
		g.outcomes <- outcome
	}()
}

func (g *goClient) finish(t *testing.T) map[string]any {
	t.Helper()
	select {
	case outcome := <-g.outcomes:
		return outcome
	case <-time.After(2 * stack.Patience):
		t.Fatalf("client %s doesn't answer", g.name)
		return nil
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func (g *goClient) acquire(t *testing.T, ctx context.Context, s step) (map[string]any, error) {
	options := lockclient.Options{
		Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: g.pool, Source: redis.Source}}, Holder: g.name,
		TTL: max(time.Second, seconds(s.number("ttl"))), MaxHold: seconds(s.number("max_hold")), KeepFor: seconds(s.number("keep_for")),
	}
	client, err := lockclient.New(g.store, options)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
		defer cancel()
		_ = client.Close(ctx)
	})
	g.margin, g.began = options.TTL/5, time.Now()
	lease, err := win(ctx, client, fence.Resource(s.text("resource")), lockclient.WithID(s.text("key")), seconds(s.number("wait")))
	if err != nil {
		return nil, err
	}
	g.lease = lease
	return map[string]any{
		"granted": true, "token": lease.Token().String(), "fence": lease.Fence().String(), "comment": strings.TrimSpace(lease.Fence().Comment()),
		"grant_id": lease.GrantID(), "remaining": min(lease.Remaining()-g.margin, cap(options.MaxHold)).Seconds(),
	}, nil
}

// cap is a maximum hold as a bound.
func cap(hold time.Duration) time.Duration {
	if hold == 0 {
		return 24 * time.Hour
	}
	return hold
}

// win waits for a holder as Acquire does, and beyond a failing store, which ends an
// Acquire.
func win(ctx context.Context, client *lockclient.Client, resource fence.Resource, id lockclient.AcquireOption, wait time.Duration) (*lockclient.Lease, error) {
	if wait == 0 {
		return client.TryAcquire(ctx, resource, id)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		lease, err := client.Acquire(waiting, resource, id)
		switch {
		case err == nil:
			return lease, nil
		case waiting.Err() != nil:
			return client.TryAcquire(ctx, resource, id) // which tells who has it
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-waiting.Done():
		}
	}
}

var causes = map[error]string{
	lockclient.ErrExpired: "expired", lockclient.ErrUnreachable: "unreachable", lockclient.ErrLost: "lost", lockclient.ErrRevoked: "revoked",
	lockclient.ErrFailover: "failover", lockclient.ErrMaxHold: "max_hold", lockclient.ErrReleased: "released", lockclient.ErrKept: "released",
}

func causeOf(err error) string {
	if end, ok := errors.AsType[*lockclient.EndError](err); ok {
		return causes[end.Reason]
	}
	return ""
}

func (g *goClient) check(*testing.T, context.Context, step) (map[string]any, error) {
	if err := g.lease.Err(); err != nil {
		return map[string]any{"held": false, "cause": causeOf(err)}, nil
	}
	return map[string]any{"held": true}, nil
}

// remaining is the time until the context ends, which lockclient doesn't tell: a lease that
// has ended has none.
func (g *goClient) remaining(*testing.T, context.Context, step) (map[string]any, error) {
	if g.lease.Err() != nil {
		return map[string]any{"remaining": 0.0}, nil
	}
	return map[string]any{"remaining": (g.lease.Remaining() - g.margin).Seconds()}, nil
}

func (g *goClient) awaitEnd(_ *testing.T, ctx context.Context, s step) (map[string]any, error) {
	select {
	case <-g.lease.Context().Done():
		return map[string]any{"cause": causeOf(context.Cause(g.lease.Context())), "at": time.Since(g.began).Seconds()}, nil
	case <-time.After(seconds(s.number("within"))):
		return map[string]any{"error": "not ended"}, nil
	}
}

func (g *goClient) release(_ *testing.T, ctx context.Context, _ step) (map[string]any, error) {
	return map[string]any{"released": true}, g.lease.Release(ctx)
}

func (g *goClient) keep(_ *testing.T, ctx context.Context, _ step) (map[string]any, error) {
	return map[string]any{"given_up": true}, g.lease.Keep(ctx)
}

// run works with a lease as a block of the other clients does, and fails if the step says so.
func (g *goClient) run(t *testing.T, ctx context.Context, s step) (map[string]any, error) {
	if _, err := g.acquire(t, ctx, s); err != nil {
		return nil, err
	}
	<-time.After(seconds(s.number("works")))
	end := g.lease.Keep
	if s.fields["fails"] == true {
		end = g.lease.Release
	}
	return map[string]any{"ran": true}, end(ctx)
}

const insert = "INSERT INTO orders (item) VALUES ('book')"

func (g *goClient) write(_ *testing.T, ctx context.Context, s step) (map[string]any, error) {
	var f fence.Fence
	var err error
	if s.fields["rows"] == nil {
		f = g.lease.Fence()
	} else if f, err = claimsOf(s); err != nil {
		return nil, err
	}
	var options fence.Fence
	if s.text("via") == "options" {
		options = f
	}
	return map[string]any{"written": true}, g.session(ctx, options, func(conn *pgx.Conn) error {
		if s.text("via") != "set_local" {
			text := insert
			if s.text("via") != "options" {
				text += f.Comment()
			}
			_, err := conn.Exec(ctx, text)
			return err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if _, err := tx.Exec(ctx, f.Transaction()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insert); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

func (g *goClient) claims(_ *testing.T, _ context.Context, s step) (map[string]any, error) {
	f, err := claimsOf(s)
	if err != nil {
		return nil, err
	}
	return map[string]any{"fence": f.String(), "comment": strings.TrimSpace(f.Comment()), "set_local": f.Transaction()}, nil
}

func claimsOf(s step) (fence.Fence, error) {
	var all []fence.Claim
	for i := range int(s.number("count")) {
		all = append(all, fence.Claim{Class: s.text("class"), Key: fence.Key(i + 1), Value: 1})
	}
	rows, _ := s.fields["rows"].([]any)
	for _, row := range rows {
		pair := row.([]any)
		columns, several := pair[0].([]any)
		if !several {
			columns = pair[:1]
		}
		columns = slices.Clone(columns)
		for i, column := range columns { // JSON's numbers are floats
			if n, is := column.(float64); is && n == math.Trunc(n) {
				columns[i] = int64(n)
			}
		}
		value, err := strconv.ParseInt(pair[1].(string), 10, 64)
		if err != nil {
			return fence.Fence{}, &fence.SyntaxError{Reason: err.Error()}
		}
		all = append(all, fence.Claim{Class: s.text("class"), Key: fence.Key(columns...), Value: value})
	}
	return fence.NewClaims(all...)
}

func (g *goClient) sql(_ *testing.T, ctx context.Context, s step) (map[string]any, error) {
	return map[string]any{}, g.session(ctx, fence.Fence{}, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, s.text("sql"), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

func (g *goClient) session(ctx context.Context, options fence.Fence, work func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(g.url)
	if err != nil {
		return err
	}
	if !options.IsZero() {
		cfg.RuntimeParams["options"] = "-c " + fence.Variable + "=" + options.String()
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return work(conn)
}

// names are what the other clients call the predicates of package fence.
var names = map[fence.SQLState]string{
	fence.StaleToken: "StaleToken", fence.TokenRequired: "TokenRequired", fence.UnknownToken: "UnknownToken",
	fence.MalformedToken: "MalformedToken", fence.TokenReused: "TokenReused", fence.CannotBeFenced: "CannotBeFenced",
	fence.LeaseNotHeld: "LeaseNotHeld", fence.ResourceUnknown: "ResourceUnknown",
}

func failure(err error) map[string]any {
	if state := fence.StateOf(err); state == fence.MalformedToken && !isServers(err) {
		return map[string]any{"error": "invalid"}
	} else if state != "" {
		told := map[string]any{"error": names[state], "sqlstate": string(state), "condition": state.Condition()}
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			told["message"], told["detail"], told["hint"] = pg.Message, pg.Detail, pg.Hint
		}
		return told
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return map[string]any{"error": "other", "sqlstate": pg.Code}
	}
	if held, ok := errors.AsType[*lockclient.HeldError](err); ok {
		return map[string]any{"error": "held", "held_by": held.Holder}
	}
	if cause := causeOf(err); cause != "" {
		return map[string]any{"error": "lost", "cause": cause}
	}
	return map[string]any{"error": "unavailable", "about": err.Error()}
}

// isServers reports that the server has told of an error, not this process.
func isServers(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok
}
