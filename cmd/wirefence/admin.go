package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/console"
	"github.com/wirefence/wirefence/internal/doctor"
	"github.com/wirefence/wirefence/internal/series"
	"github.com/wirefence/wirefence/internal/watched"
	"github.com/wirefence/wirefence/proxy"
)

// admin serves the proxy's HTTP: at WIREFENCE_ADMIN_LISTEN for operators, and at
// WIREFENCE_API_LISTEN for applications.
type admin struct {
	http   []*http.Server
	api    *api.Server
	leases *leases // nil where no store is named
	// effects checks fences for applications; nil without a database. It is a pool
	// of its own, so that open effects don't delay renewals.
	effects *pgxpool.Pool
	stop    func() bool
	// mostConnections is how many each listener serves at once.
	mostConnections int
	// drain drains the API at its first call, and returns the end of the time for that.
	drain func() time.Time
	// recorder keeps series of the metrics.
	recorder     *series.Recorder
	endRecording func()
	serving      sync.WaitGroup // the listeners
}

// serveAdmin serves the probes, the metrics and the API of leases until it is
// closed. The API's waits end with the context, which ends when the proxy begins
// to drain.
func serveAdmin(ctx context.Context, cfg proxySettings, leases *leases, adopted *adopted, files adminFiles, server *proxy.Server, registry *prometheus.Registry, log *slog.Logger) (*admin, error) {
	if cfg.AdminListen == "off" && len(cfg.apiListen()) == 0 {
		return &admin{}, nil
	}
	a := &admin{leases: leases, mostConnections: cfg.MaxHTTPConnections, recorder: series.New(registry)}
	if err := a.open(context.WithoutCancel(ctx), cfg, log); err != nil {
		a.close()
		return nil, err
	}
	listeners, err := listenHTTP(cfg, server)
	if err != nil {
		a.close()
		return nil, err
	}
	if a.api, err = api.New(a.options(cfg, files, server, adopted, listeners.admin, registry, log)); err == nil {
		err = a.serveAll(listeners, files, server, registry, log)
	}
	if err != nil {
		listeners.close()
		a.close()
		return nil, err
	}
	a.drain = drainOnce(a.api, cfg.DrainTimeout)
	a.stop = context.AfterFunc(ctx, func() { a.drain() })
	// Until close: the console also shows a proxy that drains.
	a.endRecording = inBackground(context.WithoutCancel(ctx), a.recorder.Run)
	return a, nil
}

// open opens the pool for effects, if there is a database. It doesn't connect yet.
func (a *admin) open(ctx context.Context, cfg proxySettings, log *slog.Logger) (err error) {
	if a.leases != nil {
		if err := cfg.sealing(cfg.DatabaseURL, log); err != nil {
			return err
		}
	}
	if cfg.DatabaseURL != "" {
		if a.effects, err = openPool(ctx, cfg.DatabaseURL, effectConnections); err != nil {
			return usageError{fmt.Errorf("WIREFENCE_DATABASE_URL: %w", err)}
		}
	}
	return nil
}

// httpListeners are the listeners for HTTP.
type httpListeners struct {
	admin net.Listener   // nil where WIREFENCE_ADMIN_LISTEN is off
	api   []net.Listener // for applications
}

func listenHTTP(cfg proxySettings, server *proxy.Server) (all httpListeners, err error) {
	if cfg.AdminListen != "off" {
		if all.admin, err = server.ListenAdmin(cfg.AdminListen); err != nil {
			return all, fmt.Errorf("WIREFENCE_ADMIN_LISTEN: %w", err)
		}
	}
	for _, at := range cfg.apiListen() {
		l, err := server.ListenAPI(at)
		if err != nil {
			all.close()
			return all, fmt.Errorf("WIREFENCE_API_LISTEN: %w", err)
		}
		all.api = append(all.api, l)
	}
	return all, nil
}

func (all httpListeners) close() {
	if all.admin != nil {
		_ = all.admin.Close()
	}
	for _, l := range all.api {
		_ = l.Close()
	}
}

// serveAll serves all listeners, or none.
func (a *admin) serveAll(all httpListeners, files adminFiles, server *proxy.Server, registry *prometheus.Registry, log *slog.Logger) error {
	applications := make([]http.Handler, len(all.api))
	for i, l := range all.api {
		var err error
		if applications[i], err = a.api.Application(l.Addr()); err != nil {
			return usageError{fmt.Errorf("WIREFENCE_API_LISTEN: %w", err)}
		}
	}
	if all.admin != nil {
		if why := a.api.Refusal(); why != "" {
			log.Warn("requests to /v1 are refused: " + why)
		}
		mux := http.NewServeMux()
		mux.Handle("/", server.Handler())
		mux.Handle(console.Prefix, console.Handler())
		mux.Handle("GET /{$}", http.RedirectHandler(console.Prefix, http.StatusFound))
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, EnableOpenMetrics: true}))
		a.serve(all.admin, "admin listener", a.route(mux), files, log)
	}
	for i, l := range all.api {
		a.serve(l, "API listener", applications[i], files, log)
	}
	return nil
}

// serve serves a listener. A Unix socket has no TLS, as for PostgreSQL's clients.
func (a *admin) serve(l net.Listener, name string, handler http.Handler, files adminFiles, log *slog.Logger) {
	socket := l.Addr().Network() == "unix"
	if files.token != nil && files.pair == nil && !socket && !api.IsLoopback(l.Addr()) {
		log.Warn("tokens of /v1 are sent in clear: set WIREFENCE_ADMIN_TLS_CERT_FILE and WIREFENCE_ADMIN_TLS_KEY_FILE, or put a TLS terminator before the " + name)
	}
	s := &http.Server{
		Handler: handler, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	serve := s.Serve
	if s.TLSConfig = files.tls(); s.TLSConfig != nil && !socket {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	a.http = append(a.http, s)
	connections := limitHTTP(l, a.mostConnections)
	connections.serve(s)
	a.serving.Go(func() {
		if err := serve(connections); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			log.Error("the "+name+" failed", "error", err)
		}
	})
}

// apiListen are the addresses for applications, none where that is off.
func (cfg proxySettings) apiListen() []string {
	if len(cfg.APIListen) == 1 && strings.TrimSpace(cfg.APIListen[0]) == "off" {
		return nil
	}
	return cfg.APIListen
}

// route passes requests for /v1 on unchanged: a mux would redirect a path with an empty
// segment.
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

func (a *admin) options(cfg proxySettings, files adminFiles, server *proxy.Server, adopted *adopted, at net.Listener, registry *prometheus.Registry, log *slog.Logger) api.Options {
	o := api.Options{
		Token: files.token, Series: a.recorder, Loopback: at != nil && api.IsLoopback(at.Addr()),
		TTL: max(api.MinTTL, min(api.MaxTTL, cfg.TTL)), Logger: log, Registerer: registry,
	}
	began := time.Now()
	o.About = func() api.About { return cfg.about(server, adopted, began) }
	if cfg.DatabaseURL != "" {
		o.Doctor = func(ctx context.Context) (json.RawMessage, error) {
			results, err := cfg.examine(ctx)
			if err != nil {
				return nil, err
			}
			var report bytes.Buffer
			err = doctor.PrintJSON(&report, results)
			return report.Bytes(), err
		}
	}
	if a.effects != nil {
		o.Effects = a.effects
	}
	if a.leases != nil {
		o.Store, o.Sealers, o.Unsealed, o.Source = a.leases.store, a.leases.sealers(), cfg.Unsealed, a.leases.source
		o.Counts, o.StoreDown = a.leases.counts, a.leases.measured.Down
		if a.leases.database != nil {
			o.Database, o.Further = a.leases.database, a.leases.recorded()[1:]
		}
	}
	return o
}

// effectConnections leaves some connections for checks when all effects are open.
const effectConnections = api.StandardEffects + 8

// drainOnce returns a function whose first call drains the server. Each call returns when the
// time that this may take is over.
func drainOnce(server *api.Server, timeout time.Duration) func() time.Time {
	return sync.OnceValue(func() time.Time {
		server.Drain()
		return time.Now().Add(timeout)
	})
}

// awaitEffects returns when the open effects have ended, when the time to drain is
// over, or at another signal. It reports whether there was no such signal.
func (a *admin) awaitEffects(signals <-chan os.Signal) bool {
	if a.api == nil {
		return true
	}
	// Without sessions, the proxy may have drained before the API has begun to.
	ctx, cancel := context.WithDeadline(context.Background(), a.drain())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = a.api.AwaitEffects(ctx)
	}()
	select {
	case <-ended:
		return true
	case <-signals:
		cancel()
		<-ended
		return false
	}
}

// adminCloseTime bounds the end of requests when the proxy ends.
const adminCloseTime = 2 * time.Second

// shutDown ends the listeners when their requests are over, or the context is.
func (a *admin) shutDown(ctx context.Context) {
	var ending sync.WaitGroup
	for _, s := range a.http {
		ending.Go(func() {
			if s.Shutdown(ctx) != nil {
				_ = s.Close()
			}
		})
	}
	ending.Wait()
}

func (a *admin) close() {
	ctx, cancel := context.WithTimeout(context.Background(), adminCloseTime)
	defer cancel()
	if len(a.http) > 0 {
		a.stop()
		a.api.Drain()
		a.api.EndStreams()
		a.shutDown(ctx)
		a.serving.Wait()
		_ = a.api.Close(ctx)
		a.endRecording()
	}
	if a.effects != nil {
		awaitClose(ctx, a.effects.Close)
	}
}

// adminFiles are the admin listener's token file and certificate, which are read again when
// they change.
type adminFiles struct {
	token *api.Token                       // nil where no file is named
	pair  *watched.Value[*tls.Certificate] // nil: no TLS
}

func readAdminFiles(cfg proxySettings, log *slog.Logger) (f adminFiles, err error) {
	if cfg.AdminTokenFile != "" {
		if f.token, err = api.ReadToken(cfg.AdminTokenFile, log); err != nil {
			return f, fmt.Errorf("WIREFENCE_ADMIN_TOKEN_FILE: %w", err)
		}
	}
	switch {
	case cfg.AdminTLSCert == "" && cfg.AdminTLSKey == "":
		return f, nil
	case cfg.AdminTLSCert == "" || cfg.AdminTLSKey == "":
		return f, errors.New("TLS on the admin listener takes both WIREFENCE_ADMIN_TLS_CERT_FILE and WIREFENCE_ADMIN_TLS_KEY_FILE")
	}
	f.pair, err = watched.KeyPair(cfg.AdminTLSCert, cfg.AdminTLSKey, func(err error) {
		log.Error("cannot use the admin listener's certificate; the last good one stays in use", "error", err)
	})
	if err != nil {
		return f, fmt.Errorf("WIREFENCE_ADMIN_TLS_CERT_FILE, WIREFENCE_ADMIN_TLS_KEY_FILE: %w", err)
	}
	return f, nil
}

// tls returns nil where no certificate is named.
func (f adminFiles) tls() *tls.Config {
	if f.pair == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair.Get(), nil },
	}
}

func (f adminFiles) reload(log *slog.Logger) error {
	var done []string
	var failures []error
	for _, each := range []struct {
		what   string
		named  bool
		reload func() error
	}{
		{"admin token", f.token != nil, func() error { return f.token.Reload() }},
		{"admin TLS certificate", f.pair != nil, func() error { return f.pair.Reload() }},
	} {
		if !each.named {
			continue
		}
		if err := each.reload(); err != nil {
			failures = append(failures, fmt.Errorf("reloading the %s: %w", each.what, err))
			continue
		}
		done = append(done, each.what)
	}
	if len(done) > 0 {
		log.Info("reloaded", "what", done)
	}
	return errors.Join(failures...)
}
