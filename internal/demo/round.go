package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/zombie"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// act is a round as it goes on: a play of package zombie whose command is a worker.
type act struct {
	*timeline
	read    *bufio.Reader // what both workers print
	half    string        // of a line
	outcome outcome
	failure []string // lines that are no events
}

// round plays the story once. c names the servers of the workers. Each round has its own Redis
// database, so that both count from the same token.
func round(ctx context.Context, s *stage, t *timeline, c workerConfig) (o outcome, err error) {
	if err := s.prepare(ctx, c.Redis); err != nil {
		return o, err
	}
	c.TTL = s.ttl
	config, err := json.Marshal(c)
	if err != nil {
		return o, err
	}
	output, err := os.CreateTemp(s.dir, "workers-")
	if err != nil {
		return o, err
	}
	defer output.Close()
	told, err := os.Open(output.Name())
	if err != nil {
		return o, err
	}
	defer told.Close()
	a := &act{timeline: t, read: bufio.NewReader(told)}
	t.columns()
	report, err := zombie.Play(ctx, s.conn, zombie.Options{
		Tables: []string{"orders"}, Command: []string{s.executable, "demo", "worker", string(config)},
		FreezeWhen: "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE application_name = '" + atWork + "')",
		// B is started at once: it waits itself until the lease of A has run out.
		LockEndsAfter: 100 * time.Millisecond, Within: 30 * time.Second, Control: 50 * time.Millisecond, TermGrace: time.Second,
		Output: output, Tell: a.tell,
	})
	if err != nil {
		return o, err
	}
	a.catchUp()
	if report.Verdict == zombie.Unknown {
		return o, fmt.Errorf("%s\n%s", report.Reason, strings.Join(a.failure, "\n"))
	}
	a.outcome.row, err = s.order(ctx)
	if err == nil {
		t.row(a.outcome.row)
	}
	return a.outcome, err
}

// tell prints a step of the play, behind what the workers have done before.
func (a *act) tell(step zombie.Step, _ string) {
	a.catchUp()
	switch step {
	case zombie.FirstFrozen:
		a.line("A", "stalls (SIGSTOP)", 0)
	case zombie.SecondStarted:
		a.line("B", "wants the lease, and waits", 0)
	case zombie.FirstThawed:
		a.line("A", "goes on (SIGCONT), sure of its lease", a.outcome.a)
	}
}

// catchUp prints what the workers have done since.
func (a *act) catchUp() {
	for {
		line, err := a.read.ReadString('\n')
		if err != nil {
			a.half += line
			return
		}
		line, a.half = a.half+line, ""
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			a.failure = append(a.failure, strings.TrimSpace(line))
			continue
		}
		a.show(e)
	}
}

func (a *act) show(e event) {
	o := &a.outcome
	switch {
	case e.Event == acquired && e.Worker == "A":
		o.a = e.Token
		a.at(e.At).line(e.Worker, "takes the lease of orders", e.Token)
	case e.Event == acquired:
		o.b = e.Token
		a.at(e.At).line(e.Worker, "takes over: the lease of A ran out", e.Token)
	default:
		if e.Status == cancelled {
			o.zombie = e
		}
		a.at(e.At).answered(e.Worker, "sets order 1 to "+e.Status, e.Token, e)
	}
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
