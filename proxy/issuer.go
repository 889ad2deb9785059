package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/quietlog"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

// poll is a question that the proxy asks again and again, on a connection of the issuer's
// that does nothing else: it is never behind a seal, which may wait.
type poll struct {
	ask     func(context.Context, *pgx.Conn) error
	timeout time.Duration        // of the question
	next    func() time.Duration // how long to wait before the next one; negative: until wake
	failed  func()               // nil if nothing is to be done
	wake    <-chan struct{}
	failing string // the log's messages: it fails, and it works again
	working string
}

// startPoll asks until the returned function is called. Without an issuer's connection it
// asks nothing.
func (s *Server) startPoll(p poll) (stop func()) {
	if s.options.DatabaseURL == "" || s.config.Mode == session.Off {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var polling sync.WaitGroup
	polling.Go(func() { p.run(ctx, &s.options) })
	return func() {
		cancel()
		polling.Wait()
	}
}

// retryAfter is how long a poll waits at least after a failure.
const retryAfter = time.Second

// keepIdle is the longest pause over which a poll keeps its connection.
const keepIdle = time.Second

func (p *poll) run(ctx context.Context, o *Options) {
	var db *pgx.Conn
	closeIdle := func() { // the next question may have to go to another server
		if db != nil {
			_ = db.Close(context.Background())
			db = nil
		}
	}
	defer closeIdle()
	outage := quietlog.Outage(o.Logger)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for wake, idle := p.wake, false; ; {
		select {
		case <-timer.C:
			if idle {
				closeIdle()
				continue
			}
		case <-wake:
		case <-ctx.Done():
			return
		}
		var err error
		if db, err = p.once(ctx, db, o); ctx.Err() != nil {
			return
		}
		wait := p.next()
		if err != nil {
			wait = max(wait, retryAfter)
			if p.failed != nil {
				p.failed()
			}
		}
		p.report(outage, wait, err)
		timer.Stop()
		if idle = wait < 0; idle {
			wake, wait = p.wake, keepIdle
		} else {
			wake = nil
		}
		timer.Reset(wait)
		if wait > keepIdle {
			closeIdle()
		}
	}
}

// once asks once on db, or on a new connection if db is nil. It returns the connection for
// the next time, nil if that is broken.
func (p *poll) once(ctx context.Context, db *pgx.Conn, o *Options) (*pgx.Conn, error) {
	if db == nil {
		ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
		defer cancel()
		cfg, err := connstring.Conn(o.DatabaseURL)
		if err != nil {
			return nil, err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared by name
		if cfg.RuntimeParams["application_name"] == "" {
			cfg.RuntimeParams["application_name"] = "wirefence"
		}
		if db, err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.ask(ctx, db); err != nil {
		_ = db.Close(context.Background())
		return nil, err
	}
	return db, nil
}

// report logs how a question ended. wait is the time until the next one.
func (p *poll) report(outage *slog.Logger, wait time.Duration, err error) {
	if err != nil {
		outage.Warn(p.failing, "retry", wait, "error", err)
	} else {
		outage.Info(p.working)
	}
}
