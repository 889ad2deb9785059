package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/journal"
	"github.com/wirefence/wirefence/internal/metrics"
	"github.com/wirefence/wirefence/internal/witness"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
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

// background is work in a goroutine of its own.
type background struct {
	stop context.CancelFunc
	over chan struct{} // closed when the work has returned; nil before start
}

// start runs work until the context ends or end is called.
func (b *background) start(ctx context.Context, work func(context.Context)) {
	ctx, b.stop = context.WithCancel(ctx)
	over := make(chan struct{})
	b.over = over
	go func() {
		defer close(over)
		work(ctx)
	}()
}

// end stops the work and waits for its return. Without a start it does nothing.
func (b *background) end() {
	if b.over == nil {
		return
	}
	b.stop()
	<-b.over
}

// newRegistry makes the registry of a proxy, with the metrics of the process.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), metrics.Build(thisBuild().Version, migrations.Version()))
	return r
}

// resourceNames are the values of the label resource. The proxy's own come first.
func resourceNames(cfg proxySettings) *metrics.Names {
	return metrics.NewNames(cfg.MetricsResources, fence.Resource(cfg.Lease), fence.Resource(cfg.Resource))
}

// figures are the metrics that the proxy reads from its database and lease store; a nil
// one reads nothing.
type figures struct {
	resources *metrics.Resources
	work      background
}

// newFigures prepares the metrics of what the settings name. It doesn't connect yet.
func newFigures(cfg proxySettings, leases *leases, names *metrics.Names, registry prometheus.Registerer, log *slog.Logger) (*figures, error) {
	if leases == nil || cfg.DatabaseURL == "" || cfg.Mode == string(proxy.Off) {
		return nil, nil
	}
	o := metrics.Options{Pool: leases.database, Names: names, Logger: log}
	o.Looker, _ = leases.store.(lockclient.Looker)
	for _, store := range cfg.namedStores() {
		o.Source = store.Source()
	}
	resources, err := metrics.NewResources(o)
	if err == nil {
		err = registry.Register(resources)
	}
	if err != nil {
		return nil, err
	}
	return &figures{resources: resources}, nil
}

// run reads until end is called.
func (f *figures) run() {
	if f != nil {
		f.work.start(context.Background(), f.resources.Run)
	}
}

// end may be called without run.
func (f *figures) end() {
	if f != nil {
		f.work.end()
	}
}

// recording writes the proxy's refusals to the history; a nil one writes nothing.
type recording struct {
	journal *journal.Journal
	work    background
}

// recordingTime bounds the recording of the last refusals when the proxy ends.
const recordingTime = 2 * time.Second

func newRecording(cfg proxySettings, registry prometheus.Registerer, log *slog.Logger) (*recording, error) {
	switch {
	case !cfg.History || cfg.Mode == string(proxy.Off):
		return nil, nil
	case cfg.DatabaseURL == "":
		log.Warn("refusals are not recorded in the history, since WIREFENCE_DATABASE_URL is not set")
		return nil, nil
	}
	j, err := journal.New(journal.Options{
		Connect:    func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, cfg.DatabaseURL) },
		Proxy:      cfg.processName(),
		Logger:     log,
		Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	return &recording{journal: j}, nil
}

// processName is the name of this process in the history.
func (cfg proxySettings) processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(cfg.Holder, fmt.Sprintf("%s:%d", host, os.Getpid()))
}

// refusals returns the proxy's option of that name.
func (r *recording) refusals() proxy.Refusals {
	if r == nil {
		return nil
	}
	return r.journal
}

// run records until end is called.
func (r *recording) run() {
	if r != nil {
		r.work.start(context.Background(), func(ctx context.Context) { r.journal.Run(ctx, recordingTime) })
	}
}

// end waits until the last refusals are recorded, or their time is over.
func (r *recording) end() {
	if r != nil {
		r.work.end()
	}
}

// openWitness makes the witness of WIREFENCE_WITNESS, and tells the servers that it is asked about.
// Without the setting it returns nil. It doesn't connect yet.
func openWitness(url, upstream string) (w *witness.Witness, servers []string, err error) {
	if url == "" {
		return nil, nil, nil
	}
	servers, err = proxy.UpstreamHosts(upstream)
	if err == nil {
		w, err = witness.Open(url, servers)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("WIREFENCE_WITNESS: %w", err)
	}
	return w, servers, nil
}
