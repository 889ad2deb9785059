// Package demo plays the story of a former lock holder that still writes: on a
// throwaway PostgreSQL and Redis, with workers that are processes of their own,
// once without Wirefence and once with it.
//
// The play (Run) starts everything, tells the workers what to do and prints a
// timeline; a worker (Work) takes a lease and writes. The two speak JSON lines
// over the worker's standard input and output.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// Options of a play.
type Options struct {
	// Executable is the binary whose commands `proxy` and `demo worker` are run.
	// Required.
	Executable string
	// Command is how a user calls the binary, for the lines that Keep prints.
	// Default: Executable.
	Command string
	// Output gets the timeline. Required.
	Output io.Writer
	// Colour makes the timeline coloured, by escape sequences of a terminal.
	Colour bool
	// Keep leaves the servers and the proxy running after the play, and prints
	// how to reach them, until the context ends.
	Keep bool
	// ProxyMode is the mode that the proxy runs in: enforce by default. Any other
	// makes the play fail, which is what it is for.
	ProxyMode string
	// TTL is how long a lease lasts that isn't renewed: default 2s.
	TTL time.Duration
}

// What the play is about. The tokens are those of the story: 33 and 34.
const (
	resource   fence.Resource = "orders"
	firstToken fence.Token    = 33
	database                  = "shop"
)

// Run plays both rounds. It returns nil if the zombie's write went through
// without Wirefence and was refused with it, else an error that says what went
// differently. When it returns, all that it started has ended and its folders
// are gone, also where the context ended it.
func Run(ctx context.Context, o Options) error {
	if o.Executable == "" || o.Output == nil {
		return errors.New("demo: Executable and Output are required")
	}
	if o.Command == "" {
		o.Command = o.Executable
	}
	if o.ProxyMode == "" {
		o.ProxyMode = "enforce"
	}
	if o.TTL == 0 {
		o.TTL = 2 * time.Second
	}
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
	without, err = round(ctx, s, t, addresses{database: s.direct("app"), redis: s.redisURL(1)})
	if err != nil {
		return without, with, fmt.Errorf("round 1: %w", err)
	}
	t.conclude(overwritten(without), "The zombie's write went through: B's work is lost, and nobody was told.")

	t.heading("Round 2, with Wirefence: the same workers, connected through the proxy")
	with, err = round(ctx, s, t, addresses{database: s.proxied("app"), redis: s.redisURL(0), issuer: s.direct("issuer")})
	if err != nil {
		return without, with, fmt.Errorf("round 2: %w", err)
	}
	t.conclude(refused(with), "PostgreSQL refused the zombie: B's work stays, and A knows that it must stop.")
	return without, with, nil
}
