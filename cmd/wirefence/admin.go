package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/console"
	"github.com/wirefence/wirefence/internal/series"
	"github.com/wirefence/wirefence/proxy"
)

// admin is what the proxy serves at WIREFENCE_ADMIN_LISTEN.
type admin struct {
	http   *http.Server
	api    *api.Server
	leases *leases // nil where no store is named
	stop   func() bool
	// What keeps series of the metrics.
	recorder *series.Recorder
	recorded func() // ends it, and returns when it has ended
}

// serveAdmin serves the probes, the metrics and the API of leases until it is
// closed. The API's waits end with the context, which ends when the proxy begins
// to drain.
func serveAdmin(ctx context.Context, cfg proxySettings, files adminFiles, server *proxy.Server, registry *prometheus.Registry, log *slog.Logger) (*admin, error) {
	if cfg.AdminListen == "off" {
		return &admin{}, nil
	}
	a := &admin{}
	if cfg.storeNamed(cfg.DatabaseURL) {
		leases, err := openMeasuredLeases(context.WithoutCancel(ctx), cfg.StoreSettings, cfg.DatabaseURL, registry)
		if err != nil {
			return nil, usageError{err}
		}
		goredis.SetLogger(redisLog{log}) // go-redis has one for all clients
		a.leases = leases
	}
	a.recorder = series.New(registry)
	l, err := server.ListenAdmin(cfg.AdminListen)
	if err != nil {
		a.close()
		return nil, fmt.Errorf("admin listener: %w", err)
	}
	if a.api, err = api.New(a.options(cfg, files, server, l.Addr(), registry, log)); err != nil {
		_ = l.Close()
		a.close()
		return nil, err
	}
	if why := a.api.Refusal(); why != "" {
		log.Warn("requests to /v1 are refused: " + why)
	}
	if files.token != nil && files.pair == nil && !isLoopback(l.Addr()) {
		log.Warn("tokens of /v1 travel in clear: set WIREFENCE_ADMIN_TLS_CERT_FILE and WIREFENCE_ADMIN_TLS_KEY_FILE, or have something before the admin listener that has TLS")
	}
	mux := http.NewServeMux()
	mux.Handle("/", server.Handler())
	mux.Handle(console.Prefix, console.Handler())
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, EnableOpenMetrics: true}))
	a.http = &http.Server{
		Handler: a.route(mux), TLSConfig: files.tls(), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
	}
	a.stop = context.AfterFunc(ctx, a.api.Drain)
	a.record(ctx)
	go func() {
		if err := a.serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			log.Error("the admin listener failed", "error", err)
		}
	}()
	return a, nil
}

// record keeps series until close, for a proxy that drains is looked at, too.
func (a *admin) record(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var recording sync.WaitGroup
	recording.Go(func() { a.recorder.Run(ctx) })
	a.recorded = func() {
		cancel()
		recording.Wait()
	}
}

func (a *admin) serve(l net.Listener) error {
	if a.http.TLSConfig != nil {
		return a.http.ServeTLS(l, "", "")
	}
	return a.http.Serve(l)
}

func isLoopback(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// route hands the API its requests as they came: a mux before it would redirect
// what has an empty segment.
func (a *admin) route(others http.Handler) http.Handler {
	others = a.api.Guard(others)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			a.api.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

func (a *admin) options(cfg proxySettings, files adminFiles, server *proxy.Server, at net.Addr, registry *prometheus.Registry, log *slog.Logger) api.Options {
	o := api.Options{
		Token: files.token, Series: a.recorder, Loopback: isLoopback(at),
		TTL: max(api.MinTTL, min(api.MaxTTL, cfg.TTL)), Logger: log, Registerer: registry,
	}
	began := time.Now()
	o.About = func() api.About { return cfg.about(server, began) }
	if cfg.DatabaseURL != "" {
		o.Doctor = cfg.examine
	}
	if a.leases != nil {
		o.Store, o.Sealer, o.Source = a.leases.store, a.leases.sealer, a.leases.source
		if a.leases.database != nil {
			o.Database = a.leases.database
		}
	}
	return o
}

// adminCloseTime is what requests have to end in when the proxy ends.
const adminCloseTime = 2 * time.Second

func (a *admin) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminCloseTime)
	defer cancel()
	if a.http != nil {
		a.stop()
		a.api.Drain()
		a.api.EndStreams()
		if a.http.Shutdown(ctx) != nil {
			_ = a.http.Close()
		}
		_ = a.api.Close(ctx)
		a.recorded()
	}
	if a.leases == nil {
		return
	}
	closed := make(chan struct{})
	go func() { // which waits for calls that are under way
		a.leases.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
