package demo

import (
	"context"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// round plays the story once. c names the servers of the workers. Each round has its own Redis
// database, so that both count from the same token.
func round(ctx context.Context, s *stage, t *timeline, c workerConfig) (o outcome, err error) {
	if err := s.prepare(ctx, c.Redis); err != nil {
		return o, err
	}
	c.TTL = s.ttl
	c.Name = "A"
	a, err := startWorker(ctx, s.executable, c)
	if err != nil {
		return o, err
	}
	defer a.kill()
	c.Name = "B"
	b, err := startWorker(ctx, s.executable, c)
	if err != nil {
		return o, err
	}
	defer b.kill()

	t.columns()
	if o.a, err = takeLease(ctx, t, a, "takes the lease of orders"); err != nil {
		return o, err
	}
	if _, err = writeAs(ctx, t, a, o.a, packed); err != nil {
		return o, err
	}
	if o.b, err = takeOver(ctx, t, a, b); err != nil {
		return o, err
	}
	if _, err = writeAs(ctx, t, b, o.b, shipped); err != nil {
		return o, err
	}
	if err := a.resume(); err != nil {
		return o, err
	}
	t.line("A", "goes on (SIGCONT), sure of its lease", o.a)
	if o.zombie, err = writeAs(ctx, t, a, o.a, cancelled); err != nil {
		return o, err
	}
	a.endGently()
	b.endGently()
	o.row, err = s.order(ctx)
	if err == nil {
		t.row(o.row)
	}
	return o, err
}

// takeOver stops A and lets B wait until the lease of A has run out.
func takeOver(ctx context.Context, t *timeline, a, b *workerProcess) (fence.Token, error) {
	if err := a.stop(); err != nil {
		return 0, err
	}
	t.line("A", "stalls (SIGSTOP)", 0)
	t.line("B", "wants the lease, and waits", 0)
	return takeLease(ctx, t, b, "takes over: the lease of A ran out")
}

func takeLease(ctx context.Context, t *timeline, a *workerProcess, did string) (fence.Token, error) {
	if err := a.send(acquire); err != nil {
		return 0, err
	}
	e, err := a.expect(ctx, acquired)
	if err != nil {
		return 0, err
	}
	t.line(a.name, did, e.Token)
	return e.Token, nil
}

// writeAs lets a worker write. The database's refusal is an answer, too; other failures are
// errors.
func writeAs(ctx context.Context, t *timeline, a *workerProcess, token fence.Token, status string) (event, error) {
	if err := a.send(status); err != nil {
		return event{}, err
	}
	e, err := a.answer(ctx)
	if err != nil {
		return e, err
	}
	if e.Event != wrote && e.Code == "" {
		return e, a.withName(fmt.Errorf("the write got no answer: %s", e))
	}
	t.answered(a.name, "sets order 1 to "+status, token, e)
	return e, nil
}

// prepare resets the order and the token counter.
func (s *stage) prepare(ctx context.Context, redisURL string) error {
	if _, err := s.conn.Exec(ctx, "UPDATE orders SET status = 'new', written_by = NULL, token = NULL"); err != nil {
		return err
	}
	store, err := redis.Open(redisURL)
	if err != nil {
		return err
	}
	defer store.Close()
	return store.Raise(ctx, resource, firstToken-1)
}

// order reads the row.
func (s *stage) order(ctx context.Context) (o order, err error) {
	err = s.conn.QueryRow(ctx, "SELECT status, written_by, token FROM orders WHERE id = 1").Scan(&o.status, &o.by, &o.token)
	return o, err
}
