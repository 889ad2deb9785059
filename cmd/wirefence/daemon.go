package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/witness"
	"github.com/wirefence/wirefence/proxy"
)

// daemon is the proxy's process: the server, and what runs beside it.
type daemon struct {
	cfg       proxySettings
	log       *slog.Logger
	registry  *prometheus.Registry
	leases    *leases // the process has one store and one pool; nil where none is named
	sidecar   *sidecar
	recording *recording
	telemetry *telemetry
	figures   *figures
	checkup   *checkup
	forget    *forgetting
	schema    *schemaWatch
	witness   *witness.Witness // nil where none is named
	watching  background       // of the lease store
	server    *proxy.Server
	files     adminFiles
}

// newDaemon makes ready all that the settings name. It reads the files, but neither
// listens nor connects. The error joins all that can't be used. The daemon must be ended, also
// if there is an error.
func newDaemon(ctx context.Context, cfg proxySettings, sockets map[string][]net.Listener, log *slog.Logger) (*daemon, error) {
	d := &daemon{cfg: cfg, log: log, registry: newRegistry(), schema: &schemaWatch{cfg: cfg, log: log}}
	names, errs := resourceNames(cfg), make([]error, 10)
	if cfg.storeNamed(cfg.DatabaseURL) || len(cfg.SealURLs) > 0 {
		d.leases, errs[7] = openMeasuredLeases(context.WithoutCancel(ctx), cfg.LeaseSettings, cfg.DatabaseURL, d.registry)
	}
	d.sidecar, errs[0] = newSidecar(cfg, d.leases, d.registry, log)
	d.recording, errs[1] = newRecording(cfg, d.registry, log)
	d.telemetry, errs[2] = cfg.telemetry(ctx, d.registry, log)
	d.figures, errs[3] = newFigures(cfg, d.leases, names, d.registry, log)
	d.checkup, errs[4] = newCheckup(cfg, d.registry, log)
	d.forget, errs[9] = newForgetting(cfg, d.leases, log)
	o := cfg.serverOptions()
	o.Sockets = sockets
	if d.witness, _, errs[8] = openWitness(cfg.Witness, cfg.Upstream); d.witness != nil {
		o.Witness, o.WitnessBound = d.witness, d.witness.Bound
	}
	o.Lease, o.Refusals, o.Ready = d.sidecar.lease(), d.recording.refusals(), d.schema.ready
	o.Logger, o.Registerer, o.ResourceLabel, o.Tracer = log, d.registry, names.Label, d.telemetry.tracer()
	d.server, errs[5] = proxy.New(o)
	d.files, errs[6] = readAdminFiles(cfg, log)
	return d, errors.Join(errs...)
}

// end ends what newDaemon began.
func (d *daemon) end() {
	d.schema.end()
	d.checkup.end()
	d.figures.end()
	d.telemetry.end()
	if d.witness != nil {
		_ = d.witness.Close()
	}
	if d.leases != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		awaitClose(ctx, d.leases.close)
	}
}

// closeTime bounds the end of calls of the database and the lease store.
const closeTime = time.Second

// awaitClose returns when close has, which waits for calls that are under way, or when the
// context has ended.
func awaitClose(ctx context.Context, close func()) {
	var closing background
	closing.start(context.Background(), func(context.Context) { close() })
	select {
	case <-closing.over:
	case <-ctx.Done():
	}
}

// watch watches the lease store, if one is named, until ctx ends.
func (d *daemon) watch(ctx context.Context) {
	if d.leases != nil {
		d.watching.start(ctx, func(ctx context.Context) { d.leases.watch(ctx, d.log) })
	}
}

// serve serves clients until a signal has drained the server.
func (d *daemon) serve(ctx context.Context, signals *signals) error {
	manager := newServiceManager(d.log)
	signals.reload(d.log, manager.reloading, d.server.Reload, func() error { return d.files.reload(d.log) }, manager.reloaded)
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := d.schema.begin(ctx, end); err != nil {
		if ctx.Err() != nil {
			d.log.Info("ended by a signal before it served")
			return nil
		}
		return err
	}
	if err := d.server.Listen(); err != nil {
		return fmt.Errorf("WIREFENCE_LISTEN: %w", err)
	}
	admin, err := serveAdmin(ctx, d.cfg, d.leases, d.files, d.server, d.registry, d.log)
	if err != nil {
		return err
	}
	defer admin.close()
	d.log.Info("serving", "version", thisBuild().Version, "listen", addrs(d.server.Addrs()), "upstream", d.cfg.Upstream, "mode", d.cfg.Mode,
		"unfenced_writes", d.cfg.UnfencedWrites, "admin", d.cfg.AdminListen, "api", d.cfg.apiListen())
	d.recording.run()
	defer d.recording.end()
	d.figures.run()
	d.watch(ctx)
	defer d.watching.end()
	d.checkup.run()
	d.forget.run()
	defer d.forget.end()
	d.sidecar.run(ctx)
	manager.ready(addrs(d.server.Addrs()))
	defer context.AfterFunc(ctx, func() { manager.stopping(d.cfg) })()
	if err := signals.serve(ctx, d.server, d.log); err != nil {
		d.sidecar.release(releaseAtOnce, d.log)
		return err
	}
	admin.awaitEffects(signals.ends)
	d.log.Info("drained")
	d.sidecar.release(releaseTime, d.log)
	return d.schema.failed()
}
