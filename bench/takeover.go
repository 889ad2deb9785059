package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// preemptAfter is the policy of the resources that are taken over.
	preemptAfter = time.Second
	// busyFor is how long all sessions have inserted before the seal: several times what a hold lasts.
	busyFor = 150 * time.Millisecond
)

// Conditions under which a takeover begins.
const (
	allInserted = `SELECT count(DISTINCT worker) = $1 FROM entries`
	allOpen     = `SELECT count(*) = $1 FROM pg_catalog.pg_stat_activity WHERE usename = 'worker' AND state = 'idle in transaction'`
	anyOpen     = `SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE usename = 'worker' AND state = 'idle in transaction')`
	idleHolder  = `SELECT EXISTS (SELECT FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND granted AND usename = 'worker' AND state = 'idle')`
)

// crowd is sessions that have a token until it is sealed away. They aren't a superuser's,
// whose sessions a takeover may not end.
type crowd struct {
	name    string
	script  string
	clients int
	ready   string // true when all work
	frozen  string // true when the proxy, which is stopped, leaves behind what is to be taken over; "" stops none
	times   func(f flags) int
}

func often(f flags) int  { return 5 * f.rounds * f.seconds }
func seldom(f flags) int { return 2 * f.rounds }

var crowds = []crowd{
	{"16 busy sessions", "busy.sql", 16, allInserted, "", often},
	{"64 busy sessions", "busy.sql", 64, allInserted, "", often},
	{"a frozen proxy, idle sessions", "idle.sql", 8, allInserted, idleHolder, seldom},
	{"a frozen proxy, an open transaction", "open.sql", 1, allOpen, anyOpen, seldom},
}

func (b *book) measureTakeovers(ctx context.Context, w *world) error {
	issuer, err := pgx.Connect(ctx, w.postgres.URL(database))
	if err != nil {
		return err
	}
	defer issuer.Close(ctx)
	number := 0
	for _, c := range crowds {
		var times []time.Duration
		for range c.times(b.flags) {
			number++
			took, err := w.takeOver(ctx, issuer, c, fmt.Sprint("takeover", number), number%2 == 0)
			if err != nil {
				return fmt.Errorf("takeover, %s: %w", c.name, err)
			}
			times = append(times, took)
		}
		s := latency(times)
		s[takeovers] = float64(len(times))
		if c.script == "open.sql" {
			s[beyond] = s[worst] - ms(preemptAfter)
		}
		log.Printf("takeover: %s", c.name)
		b.add(row{work: "takeover", way: c.name}, s)
	}
	return nil
}

// takeOver seals token 2 while the sessions of a crowd work with token 1, which is in a
// comment or in the session variable, and returns how long that takes.
func (w *world) takeOver(ctx context.Context, issuer *pgx.Conn, c crowd, resource string, comment bool) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := w.level(ctx); err != nil {
		return 0, err
	}
	if _, err := seal(ctx, issuer, resource, 1); err != nil {
		return 0, err
	}
	if _, err := issuer.Exec(ctx, "UPDATE wirefence.resource_locks SET preempt_after = $2 WHERE resource_id = $1", resource, preemptAfter); err != nil {
		return 0, err
	}
	through := w.running[wirefence]
	if c.frozen != "" {
		if through, err = w.start(ctx, wirefence, rivals[wirefence], w.postgres.Addr(), nil); err != nil {
			return 0, err
		}
		defer through.close()
	}
	l := load{port: through.port, database: database, user: "worker", script: w.script(c.script, comment), protocol: "simple", clients: c.clients, seconds: 60,
		more: []string{"-D", "resource=" + resource}}
	if !comment {
		l.fence = resource + "=1"
	}
	sessions, err := l.command(ctx)
	if err != nil {
		return 0, err
	}
	var complaints bytes.Buffer
	sessions.Stderr = &complaints
	if err := sessions.Start(); err != nil {
		return 0, err
	}
	took, err = w.sealAgainst(ctx, issuer, c, through, resource)
	if c.frozen != "" || err != nil {
		_ = sessions.Process.Kill()
		_ = sessions.Wait()
		return took, err
	}
	if err := sessions.Wait(); err == nil || strings.Count(complaints.String(), "aborted") < c.clients {
		return 0, fmt.Errorf("not every session was refused: %w\n%s", err, complaints.String())
	}
	return took, nil
}

// sealAgainst waits until all sessions work, stops their proxy if it is to be frozen, and seals.
func (w *world) sealAgainst(ctx context.Context, issuer *pgx.Conn, c crowd, through *process, resource string) (time.Duration, error) {
	for ready := false; !ready; {
		if err := issuer.QueryRow(ctx, c.ready, c.clients).Scan(&ready); err != nil {
			return 0, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(busyFor)
	for frozen := false; c.frozen != "" && !frozen; {
		if err := through.pause(); err != nil {
			return 0, err
		}
		time.Sleep(10 * time.Millisecond) // what is on its way arrives
		if err := issuer.QueryRow(ctx, c.frozen).Scan(&frozen); err != nil {
			return 0, err
		}
		if !frozen {
			if err := through.resume(); err != nil {
				return 0, err
			}
			time.Sleep(busyFor)
		}
	}
	return seal(ctx, issuer, resource, 2)
}

// seal records a grant and returns how long that took.
func seal(ctx context.Context, issuer *pgx.Conn, resource string, token int64) (time.Duration, error) {
	began := time.Now()
	var granted bool
	err := issuer.QueryRow(ctx, "SELECT wirefence.seal($1, $2, 'bench')", resource, token).Scan(&granted)
	if err == nil && !granted {
		err = errors.New("the token was not granted")
	}
	return time.Since(began), err
}
