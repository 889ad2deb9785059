package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
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
	adopted   *adopted
	telemetry *telemetry // nil where settings are only checked
	awaits    []*awaited
	witness   *witness.Witness // nil where none is named
	server    *proxy.Server
	files     adminFiles
	work      []func(context.Context) // runs while the server serves, a drain included
}

// newDaemon makes ready all that the settings name. It reads the files, but neither
// listens nor connects. The error joins all that can't be used. The daemon must be ended, also
// if there is an error.
func newDaemon(ctx context.Context, cfg proxySettings, sockets map[string][]net.Listener, log *slog.Logger) (*daemon, error) {
	d := &daemon{cfg: cfg, log: log, registry: newRegistry(), awaits: []*awaited{awaitedSchema(cfg, log)}}
	logRedisTo(log)
	names, errs := resourceNames(cfg), make([]error, 11)
	if cfg.storeNamed(cfg.DatabaseURL) || len(cfg.SealURLs) > 0 {
		d.leases, errs[7] = openMeasuredLeases(context.WithoutCancel(ctx), cfg.LeaseSettings, cfg.DatabaseURL, d.registry)
	}
	o := cfg.serverOptions()
	o.Sockets = sockets
	d.sidecar, errs[0] = newSidecar(cfg, d.leases, d.registry, log)
	d.adopted, errs[10] = newAdopted(cfg, d.leases, d.registry, log)
	d.awaits = append(d.awaits, d.adopted.awaits()...)
	errs[1] = d.add(recordRefusals(&o, cfg, d.registry, log))
	if !cfg.CheckConfig {
		d.telemetry, errs[2] = pushTelemetry(ctx, d.registry, log)
	}
	errs[3] = d.add(readFigures(cfg, d.leases, names, d.registry, log))
	errs[4] = d.add(checkUp(cfg, d.registry, log))
	errs[9] = d.add(forgetDaily(cfg, d.leases, log))
	_ = d.add(d.leases.watch(log), nil)
	d.work = append(d.work, d.adopted.works()...)
	if d.witness, _, errs[8] = openWitness(cfg.WitnessURL, cfg.Upstream); d.witness != nil {
		o.Witness, o.WitnessBound = d.witness, d.witness.Bound
	}
	o.Lease, o.Ready = d.sidecar.lease(), func() error { return cmp.Or(d.first((*awaited).ready), d.adopted.ready()) }
	d.adopted.options(&o, cfg.LeaseScope)
	o.Logger, o.Registerer, o.ResourceLabel, o.Tracer = log, d.registry, names.Label, d.telemetry.tracer()
	d.server, errs[5] = proxy.New(o)
	d.files, errs[6] = readAdminFiles(cfg, log)
	return d, errors.Join(errs...)
}

// add adds work, unless it is nil, and passes the error on.
func (d *daemon) add(work func(context.Context), err error) error {
	if work != nil {
		d.work = append(d.work, work)
	}
	return err
}

// end ends what newDaemon began.
func (d *daemon) end() {
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
	closed, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		close()
	}()
	<-closed.Done()
}

// inBackground runs each work in a goroutine of its own until the context ends or end is
// called, which waits for their return.
func inBackground(ctx context.Context, all ...func(context.Context)) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, work := range all {
		running.Go(func() { work(ctx) })
	}
	return func() {
		stop()
		running.Wait()
	}
}

// serve serves clients until a signal has drained the server.
func (d *daemon) serve(ctx context.Context, signals *signals) error {
	manager := newServiceManager(d.log)
	signals.reload(d.log, manager.reloading, d.server.Reload, func() error { return d.files.reload(d.log) }, manager.reloaded)
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer d.adopted.end()
	for _, w := range d.awaits {
		endLooking, err := w.begin(ctx, end)
		if err != nil {
			if ctx.Err() != nil {
				d.log.Info("ended by a signal before it served")
				return nil
			}
			return err
		}
		defer endLooking()
	}
	if err := d.server.Listen(); err != nil {
		return fmt.Errorf("WIREFENCE_LISTEN: %w", err)
	}
	admin, err := serveAdmin(ctx, d.cfg, d.leases, d.adopted, d.files, d.server, d.registry, d.log)
	if err != nil {
		return err
	}
	defer admin.close()
	d.log.Info("serving", "version", thisBuild().Version, "listen", addrs(d.server.Addrs()), "upstream", d.cfg.Upstream, "mode", d.cfg.Mode,
		"unfenced_writes", d.cfg.UnfencedWrites, "admin", d.cfg.AdminListen, "api", d.cfg.apiListen())
	defer inBackground(context.WithoutCancel(ctx), d.work...)()
	d.sidecar.run(ctx)
	manager.ready(addrs(d.server.Addrs()))
	defer context.AfterFunc(ctx, func() { manager.stopping(d.cfg) })()
	if err := signals.serve(ctx, d.server, d.log); err != nil {
		d.sidecar.release(releaseAtOnce, d.log)
		return err
	}
	quietly, failure := admin.awaitEffects(signals.ends), d.first((*awaited).failed)
	d.log.Info("drained")
	if quietly && failure == nil {
		d.sidecar.keep(d.log)
	} else {
		d.sidecar.release(releaseTime, d.log)
	}
	return failure
}

// first returns the first error about what the proxy waits for.
func (d *daemon) first(of func(*awaited) error) (err error) {
	for _, w := range d.awaits {
		err = cmp.Or(err, of(w))
	}
	return err
}

// newRegistry makes the registry of a proxy, with the metrics of the process.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), metrics.Build(thisBuild().Version, migrations.Version()))
	return r
}

// resourceNames are the values of the label resource. The proxy's own come first.
func resourceNames(cfg proxySettings) *metrics.Names {
	return metrics.NewNames(cfg.MetricsResources, fence.Resource(cfg.LeaseOf), fence.Resource(cfg.Resource))
}

// readFigures returns the work that reads metrics from what the settings name, the database and the
// lease store. It doesn't connect yet.
func readFigures(cfg proxySettings, leases *leases, names *metrics.Names, registry prometheus.Registerer, log *slog.Logger) (func(context.Context), error) {
	if leases == nil || cfg.DatabaseURL == "" || cfg.Mode == proxy.Off {
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
	return resources.Run, nil
}

// recordingTime bounds the recording of the last refusals when the proxy ends.
const recordingTime = 2 * time.Second

// recordRefusals returns the work that writes the proxy's refusals to the history.
func recordRefusals(o *proxy.Options, cfg proxySettings, registry prometheus.Registerer, log *slog.Logger) (func(context.Context), error) {
	switch {
	case !cfg.History || cfg.Mode == proxy.Off:
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
	o.Refusals = j
	return func(ctx context.Context) { j.Run(ctx, recordingTime) }, nil
}

// processName is the name of this process in the history.
func (cfg proxySettings) processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(cfg.Holder, fmt.Sprintf("%s:%d", host, os.Getpid()))
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
