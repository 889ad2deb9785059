package demo

import (
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

// workerConfig is a worker's argument.
type workerConfig struct {
	Database string        `json:"database"`
	Redis    string        `json:"redis"`
	Issuer   string        `json:"issuer,omitempty"` // seals grants; without it nothing is fenced
	TTL      time.Duration `json:"ttl"`
}

// event is a line that a worker prints.
type event struct {
	Event   string      `json:"event"`
	At      time.Time   `json:"at"`
	Worker  string      `json:"worker"`
	Token   fence.Token `json:"token"`
	Status  string      `json:"status,omitempty"` // that was written, or was to be
	Tag     string      `json:"tag,omitempty"`
	Code    string      `json:"code,omitempty"` // the SQLSTATE of an error of the database
	Message string      `json:"message,omitempty"`
	Detail  string      `json:"detail,omitempty"`
}

const (
	acquired = "acquired"
	wrote    = "wrote"
	failed   = "failed"
)

// atWork is the application_name of a worker that has begun, and has more to write.
const atWork = "wirefence demo at work"

// String is the database's answer, in one line.
func (e event) String() string {
	if e.Event == failed {
		return "ERROR " + e.Code + ": " + e.Message
	}
	return e.Tag
}

// worker acquires the lease and writes under it, as an application would.
type worker struct {
	config workerConfig
	name   string
	events *json.Encoder
	client *lockclient.Client
	conn   *pgx.Conn
	lease  *lockclient.Lease
}

// Work runs a worker whose configuration is JSON, and prints its events. Where the order is new,
// it is worker A and has more to do after a while, otherwise B.
func Work(ctx context.Context, config string, out io.Writer) error {
	w := worker{events: json.NewEncoder(out)}
	if err := json.Unmarshal([]byte(config), &w.config); err != nil {
		return fmt.Errorf("this command is run by `wirefence demo`; its argument is no configuration of a worker: %w", err)
	}
	return w.connect(ctx, func() error {
		if err := w.acquire(ctx); err != nil {
			return err
		}
		if w.name == "B" {
			return w.write(ctx, shipped)
		}
		if err := w.write(ctx, packed); err != nil {
			return err
		}
		if _, err := w.conn.Exec(ctx, "SET application_name = '"+atWork+"'"); err != nil {
			return err
		}
		time.Sleep(w.config.TTL)
		return w.write(ctx, cancelled)
	})
}

// connect runs work with connections to the database and the lease store.
func (w *worker) connect(ctx context.Context, work func() error) (err error) {
	if w.conn, err = pgx.Connect(ctx, w.config.Database); err != nil {
		return err
	}
	defer w.conn.Close(ctx)
	if err := w.conn.QueryRow(ctx, "SELECT CASE status WHEN 'new' THEN 'A' ELSE 'B' END FROM orders WHERE id = 1").Scan(&w.name); err != nil {
		return err
	}
	options := lockclient.Options{TTL: w.config.TTL, Holder: "worker-" + w.name, RetryMax: 100 * time.Millisecond, Unsealed: w.config.Issuer == ""}
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

// acquire waits for the lease. Through the proxy, the session carries its fence from then on:
// a fenced worker does nothing else differently.
func (w *worker) acquire(ctx context.Context) (err error) {
	if w.lease, err = w.client.Acquire(ctx, resource); err != nil {
		return err
	}
	if w.config.Issuer != "" {
		if _, err := w.conn.Exec(ctx, w.lease.Fence().Session()); err != nil {
			return err
		}
	}
	return w.print(event{Event: acquired})
}

// write doesn't check whether the lease is still held: this worker becomes the zombie. A check
// wouldn't help, since a process can be stopped between the check and the write. For the same
// reason the context isn't the lease's. The database's refusal is printed, too.
func (w *worker) write(ctx context.Context, status string) error {
	tag, err := w.conn.Exec(ctx, "UPDATE orders SET status = $1, written_by = $2, token = $3 WHERE id = 1",
		status, w.name, int64(w.lease.Token()))
	e := event{Event: wrote, Status: status, Tag: tag.String()}
	if refusal := new(pgconn.PgError); errors.As(err, &refusal) {
		e.Event, e.Code, e.Message, e.Detail = failed, refusal.Code, refusal.Message, refusal.Detail
	} else if err != nil {
		return err
	}
	return w.print(e)
}

func (w *worker) print(e event) error {
	e.At, e.Worker, e.Token = time.Now(), w.name, w.lease.Token()
	return w.events.Encode(e)
}
