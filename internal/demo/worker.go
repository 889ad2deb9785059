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

// workerConfig is the first line that a worker reads. Each further line is a command: acquire,
// or a status to write.
type workerConfig struct {
	Name     string        `json:"name"`
	Database string        `json:"database"`
	Redis    string        `json:"redis"`
	Issuer   string        `json:"issuer,omitempty"` // seals grants; without it nothing is fenced
	TTL      time.Duration `json:"ttl"`
}

const acquire = "acquire"

// event is a worker's answer to a line.
type event struct {
	Event   string      `json:"event"`
	Token   fence.Token `json:"token,omitempty"`
	Tag     string      `json:"tag,omitempty"`
	Code    string      `json:"code,omitempty"` // the SQLSTATE of an error of the database
	Message string      `json:"message,omitempty"`
	Detail  string      `json:"detail,omitempty"`
}

const (
	ready    = "ready"
	acquired = "acquired"
	wrote    = "wrote"
	failed   = "failed"
)

// String is the database's answer, in one line.
func (e event) String() string {
	switch {
	case e.Event != failed:
		return e.Tag
	case e.Code != "":
		return "ERROR " + e.Code + ": " + e.Message
	}
	return e.Message
}

// worker acquires the lease and writes under it, as an application would.
type worker struct {
	config workerConfig
	client *lockclient.Client
	conn   *pgx.Conn
	lease  *lockclient.Lease
}

// Work runs a worker: it does what the lines of in say, and answers on out, until in ends.
func Work(ctx context.Context, in io.Reader, out io.Writer) error {
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	var w worker
	if !lines.Scan() {
		return errors.New("nothing came on standard input: this command is run by `wirefence demo`")
	}
	if err := json.Unmarshal(lines.Bytes(), &w.config); err != nil {
		return fmt.Errorf("the first line on standard input is no configuration of a worker: %w", err)
	}
	err := w.connect(ctx, func() error {
		if err := answers.Encode(event{Event: ready}); err != nil {
			return err
		}
		for lines.Scan() {
			if err := answers.Encode(w.do(ctx, lines.Text())); err != nil {
				return err
			}
		}
		return lines.Err()
	})
	if w.client == nil { // it is not connected
		return errors.Join(err, answers.Encode(failure(err)))
	}
	return err
}

// connect runs work with connections to the database and the lease store.
func (w *worker) connect(ctx context.Context, work func() error) (err error) {
	if w.conn, err = pgx.Connect(ctx, w.config.Database); err != nil {
		return err
	}
	defer w.conn.Close(ctx)
	options := lockclient.Options{TTL: w.config.TTL, Holder: "worker-" + w.config.Name, RetryMax: 100 * time.Millisecond, Unsealed: w.config.Issuer == ""}
	if w.config.Issuer != "" {
		issuer, err := pgx.Connect(ctx, w.config.Issuer)
		if err != nil {
			return err
		}
		defer issuer.Close(ctx)
		options.Sealers = []lockclient.Sealer{lockclient.PostgresSealer{Querier: issuer}}
	}
	store, err := redis.Open(w.config.Redis)
	if err != nil {
		return err
	}
	defer store.Close()
	if w.client, err = lockclient.New(store, options); err != nil {
		return err
	}
	defer w.client.Close(ctx)
	return work()
}

func (w *worker) do(ctx context.Context, command string) (e event) {
	var err error
	if command == acquire {
		e, err = w.acquire(ctx)
	} else {
		e, err = w.write(ctx, command)
	}
	if err != nil {
		return failure(err)
	}
	return e
}

// acquire waits for the lease. Through the proxy, the session carries its fence from then on:
// a fenced worker does nothing else differently.
func (w *worker) acquire(ctx context.Context) (e event, err error) {
	if w.lease, err = w.client.Acquire(ctx, resource); err != nil {
		return e, err
	}
	if w.config.Issuer != "" {
		if _, err := w.conn.Exec(ctx, w.lease.Fence().Session()); err != nil {
			return e, err
		}
	}
	return event{Event: acquired, Token: w.lease.Token()}, nil
}

// write doesn't check whether the lease is still held: this worker becomes the zombie. A check
// wouldn't help, since a process can be stopped between the check and the write. For the same
// reason the context isn't the lease's.
func (w *worker) write(ctx context.Context, status string) (event, error) {
	tag, err := w.conn.Exec(ctx, "UPDATE orders SET status = $1, written_by = $2, token = $3 WHERE id = 1",
		status, w.config.Name, int64(w.lease.Token()))
	return event{Event: wrote, Tag: tag.String()}, err
}

func failure(err error) event {
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return event{Event: failed, Code: pg.Code, Message: pg.Message, Detail: pg.Detail}
	}
	return event{Event: failed, Message: err.Error()}
}
