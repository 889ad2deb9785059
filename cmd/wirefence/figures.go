package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/metrics"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

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
