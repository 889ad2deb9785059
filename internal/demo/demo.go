// Package demo shows a former lock holder that still writes, once without Wirefence and once
// with it, on a throwaway PostgreSQL and Redis.
//
// Run starts the servers and prints a timeline. Each round is a play of package zombie, which
// freezes a worker, lets another have the turn, and lets the first go on. A worker (Work) is a
// process that acquires a lease, writes, and prints a line of JSON for each.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Options of a play.
type Options struct {
	// Executable is the binary whose commands `proxy` and `demo worker` are run. Required.
	Executable string
	// Command is the user's name for the binary, in the commands that Keep prints.
	Command string
	// Output gets the timeline. Required.
	Output io.Writer
	// Colour adds colours to the timeline, by escape sequences of a terminal.
	Colour bool
	// Keep leaves the servers and the proxy running after the play until the context ends, and
	// prints their addresses.
	Keep bool
	// ProxyMode is the proxy's mode, by default enforce. With any other, the play fails, as
	// a test expects.
	ProxyMode string
	// TTL is the time to live of the leases: default 2s.
	TTL time.Duration
}

// The tokens of the play are 33 and 34.
const (
	resource   fence.Resource = "orders"
	firstToken fence.Token    = 33
	database                  = "shop"
)

// Run plays both rounds. It returns nil if the zombie's write went through without Wirefence
// and was refused with it. When it returns, also because the context has ended, all that it
// started has ended and its folders are deleted.
func Run(ctx context.Context, o Options) error {
	o.ProxyMode, o.TTL = cmp.Or(o.ProxyMode, "enforce"), cmp.Or(o.TTL, 2*time.Second)
	t := newTimeline(o.Output, o.Colour)
	t.heading("Setting the stage")
	s, err := build(ctx, o, t)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	defer s.close()
	if o.Keep {
		t.line("", "watch it at "+s.console(), 0)
	}
	without, with, err := play(ctx, s, t)
	if err != nil {
		return unlessInterrupted(ctx, err)
	}
	if o.Keep {
		s.printAddresses(t, o)
		<-ctx.Done()
	}
	return judge(without, with)
}

func unlessInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; all that was started has been ended")
	}
	return err
}

func play(ctx context.Context, s *stage, t *timeline) (without, with outcome, err error) {
	t.heading("Round 1, without Wirefence: the workers write straight to PostgreSQL")
	without, err = round(ctx, s, t, workerConfig{Database: s.direct("app"), Redis: s.redisURL(1)})
	if err != nil {
		return without, with, fmt.Errorf("round 1: %w", err)
	}
	t.conclude(overwritten(without), "The zombie's write went through: B's work is lost, and nobody was told.")

	t.heading("Round 2, with Wirefence: the same workers, connected through the proxy")
	with, err = round(ctx, s, t, workerConfig{Database: s.proxied("app"), Redis: s.redisURL(0), Issuer: s.direct("issuer")})
	if err != nil {
		return without, with, fmt.Errorf("round 2: %w", err)
	}
	t.conclude(refused(with), "PostgreSQL refused the zombie: B's work stays, and A knows that it must stop.")
	return without, with, nil
}
