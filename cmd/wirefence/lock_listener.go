package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/pgenv"
	"github.com/wirefence/wirefence/internal/runner"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// carrier has the sessions of a command carry the fence of its lease: by a listener, a proxy in
// this process to which libpq's variables lead the command. A nil one has none.
//
// The listener is a Unix socket in a folder of this user's alone: it logs in to servers as this
// user where they ask the system, and with this user's certificate.
type carrier struct {
	*lockclient.Lease
	to       *pgenv.Server // to which the variables led before
	options  proxy.Options
	registry *prometheus.Registry
	folder   string
	server   *proxy.Server
	end      func() // waits for the server; nil before it serves
}

// newCarrier reads where the environment leads.
func newCarrier(cfg lockSettings, env []string) (*carrier, error) {
	if cfg.Carry != "listener" {
		return nil, nil
	}
	to, err := pgenv.Read(env)
	registry := prometheus.NewRegistry()
	if err == nil {
		c := &carrier{to: to, options: proxy.Options{Upstream: to.Upstream(), Registerer: registry}, registry: registry}
		if err = c.options.Validate(); err == nil {
			c.options.Logger, err = listenerLog(cfg)
			return c, err
		}
	}
	return nil, usageError{fmt.Errorf("libpq's variables lead to no server for the command's listener: %w; set PGHOST and PGPORT, or do without it by --carry options", err)}
}

// listenerLog omits warnings, which tell no more than the client's own errors, unless the settings
// ask for more than these.
func listenerLog(cfg lockSettings) (*slog.Logger, error) {
	if cfg.LogLevel == "warn" {
		cfg.LogLevel = "error"
	}
	return newLogger(cfg.LogLevel, cfg.LogFormat)
}

// start returns the lease under which the command runs, whose end closes the listener first.
func (c *carrier) start(lease *lockclient.Lease, options *runner.Options) (runner.Lease, error) {
	if c == nil {
		return lease, nil
	}
	c.Lease = lease
	if err := c.listen(options); err != nil {
		return nil, errors.Join(fmt.Errorf("command not started: %w", err), c.close())
	}
	return c, nil
}

// listen opens the listener, and leads the command to it.
func (c *carrier) listen(options *runner.Options) error {
	f, err := runner.FenceIn(options.Env, c.Lease)
	if err != nil {
		return err
	}
	if c.folder, err = c.to.Folder(); err != nil {
		return fmt.Errorf("no folder for the listener, which --carry options does without: %w", err)
	}
	if options.Env, err = c.to.Lead(c.folder); err != nil {
		return err
	}
	c.options.Listen, c.options.Lease = []string{"unix:" + c.to.Socket(c.folder)}, stamp{c.Lease, f.String()}
	if c.server, err = proxy.New(c.options); err != nil {
		return err
	}
	if err := c.server.Listen(); err != nil {
		return err
	}
	c.end = inBackground(context.Background(), func(context.Context) {
		if err := c.server.Serve(); err != nil {
			c.options.Logger.Error("the command's listener has failed", "error", err)
		}
	})
	context.AfterFunc(c.Context(), c.server.Abort)
	return nil
}

// Keep ends all sessions, and then keeps the lease.
func (c *carrier) Keep(ctx context.Context) error {
	return errors.Join(c.close(), c.Lease.Keep(ctx))
}

// Release ends all sessions, and then releases the lease.
func (c *carrier) Release(ctx context.Context) error {
	return errors.Join(c.close(), c.Lease.Release(ctx))
}

// close ends all sessions, and removes the folder.
func (c *carrier) close() error {
	if c.server != nil {
		c.server.Abort()
	}
	if c.end != nil {
		c.end()
	}
	if c.folder == "" {
		return nil
	}
	return os.RemoveAll(c.folder)
}

// stamp is the lease of a run as the listener's sessions carry it: with the fence of outer runs.
type stamp struct {
	*lockclient.Lease
	fence string
}

func (s stamp) Fence() string {
	if s.Err() != nil {
		return ""
	}
	return s.fence
}

func (stamp) Holder() string { return "" }

// Changed never tells of a lease that is won again.
func (s stamp) Changed() <-chan struct{} { return s.Context().Done() }

// warnOfNone warns, behind a run, if no statement came through the listener: whatever the command
// has written, nothing has checked it, unless the fence took another way.
func (c *carrier) warnOfNone(log *slog.Logger) {
	if c == nil || c.checked() {
		return
	}
	log.Warn("no session of the command was seen with its fence", "resource", c.Resource(),
		"hint", "If it writes to PostgreSQL, let it connect by the PGHOST that wirefence lock sets, as the same user: -h, a host in a connection string, env -i and su lead past it. If it doesn't, --carry options omits this warning.")
}

// checked reports whether a statement has run under the fence.
func (c *carrier) checked() bool {
	families, _ := c.registry.Gather()
	for _, family := range families {
		if family.GetName() == "wirefence_checks_total" {
			return family.GetMetric()[0].GetCounter().GetValue() > 0
		}
	}
	return false
}
