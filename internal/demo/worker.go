package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// The lines that a worker reads. The first one is its configuration, the others are
// commands.
type (
	workerConfig struct {
		Name     string        `json:"name"`
		Database string        `json:"database"`
		Redis    string        `json:"redis"`
		Issuer   string        `json:"issuer,omitempty"` // seals grants; without it nothing is fenced
		TTL      time.Duration `json:"ttl"`
	}
	command struct {
		Do     string `json:"do"` // acquire or write
		Status string `json:"status,omitempty"`
	}
)

const (
	acquire = "acquire"
	write   = "write"
)

// event is what a worker answers, one line for each line it was told.
type event struct {
	Event   string      `json:"event"`
	Token   fence.Token `json:"token,omitempty"`
	Tag     string      `json:"tag,omitempty"`
	Code    string      `json:"code,omitempty"` // SQLSTATE, if the database said it
	Message string      `json:"message,omitempty"`
	Detail  string      `json:"detail,omitempty"`
}

const (
	ready    = "ready"
	acquired = "acquired"
	wrote    = "wrote"
	failed   = "failed"
)

// String is what the database said, in one line.
func (e event) String() string {
	switch {
	case e.Event != failed:
		return e.Tag
	case e.Code != "":
		return "ERROR " + e.Code + ": " + e.Message
	}
	return e.Message
}

// worker takes the lease and writes under it, as an application would.
type worker struct {
	name   string
	client *lockclient.Client
	conn   *pgx.Conn
	fenced bool
	lease  *lockclient.Lease
}

// Work is a worker's whole life: it does what the lines of in say and answers
// on out, until in ends.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	var p workerConfig
	if !lines.Scan() {
		return errors.New("nothing came on standard input: this command is run by `wirefence demo`")
	}
	if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
		return fmt.Errorf("the first line on standard input is no configuration of a worker: %w", err)
	}
	w, closeAll, err := newWorker(ctx, p)
	if err != nil {
		return errors.Join(err, answers.Encode(failure(err)))
	}
	defer closeAll()
	if err := answers.Encode(event{Event: ready}); err != nil {
		return err
	}
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		if err := answers.Encode(w.do(ctx, c)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// newWorker connects to the database and to the lease store.
func newWorker(ctx context.Context, p workerConfig) (w *worker, done func(), err error) {
	var closers []func(context.Context)
	closeAll := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i](ctx)
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	conn, err := pgx.Connect(ctx, p.Database)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func(ctx context.Context) { _ = conn.Close(ctx) })
	options := lockclient.Options{TTL: p.TTL, Holder: "worker-" + p.Name, RetryMax: 100 * time.Millisecond, Unsealed: p.Issuer == ""}
	if p.Issuer != "" {
		issuer, err := pgx.Connect(ctx, p.Issuer)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, func(ctx context.Context) { _ = issuer.Close(ctx) })
		options.Sealer = lockclient.PostgresSealer{Querier: issuer}
	}
	store, err := redis.Open(p.Redis)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func(context.Context) { _ = store.Close() })
	client, err := lockclient.New(store, options)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func(ctx context.Context) { _ = client.Close(ctx) })
	return &worker{name: p.Name, client: client, conn: conn, fenced: p.Issuer != ""}, closeAll, nil
}

func (w *worker) do(ctx context.Context, c command) event {
	var e event
	var err error
	switch c.Do {
	case acquire:
		e, err = w.acquire(ctx)
	case write:
		e, err = w.write(ctx, c.Status)
	default:
		err = fmt.Errorf("unknown command %q", c.Do)
	}
	if err != nil {
		return failure(err)
	}
	return e
}

// acquire waits for the lease. Through the proxy, the session carries its fence
// from here on; that is all a fenced worker does differently.
func (w *worker) acquire(ctx context.Context) (event, error) {
	lease, err := w.client.Acquire(ctx, resource)
	if err != nil {
		return event{}, err
	}
	w.lease = lease
	if w.fenced {
		if err := lease.SetOn(ctx, w.conn); err != nil {
			return event{}, err
		}
	}
	return event{Event: acquired, Token: lease.Token()}, nil
}

// write does not look whether the lease is still held: this worker is the
// zombie of the story. A look wouldn't help, since a process can be stopped
// between the look and the write; the play only makes that moment long enough to
// see. For the same reason the context isn't the lease's.
func (w *worker) write(ctx context.Context, status string) (event, error) {
	tag, err := w.conn.Exec(ctx, "UPDATE orders SET status = $1, written_by = $2, token = $3 WHERE id = 1",
		status, w.name, int64(w.lease.Token()))
	return event{Event: wrote, Tag: tag.String()}, err
}

func failure(err error) event {
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return event{Event: failed, Code: pg.Code, Message: pg.Message, Detail: pg.Detail}
	}
	return event{Event: failed, Message: err.Error()}
}
