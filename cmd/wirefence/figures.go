package main

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/metrics"
	"github.com/wirefence/wirefence/migrations"
)

// newRegistry makes the registry of a proxy, with what tells of the process.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), metrics.Build(version, migrations.Version()))
	return r
}

// resourceNames are the values of the label resource. The proxy's own come first.
func resourceNames(cfg proxySettings) (*metrics.Names, error) {
	if cfg.MetricsResources < 0 {
		return nil, errors.New("WIREFENCE_METRICS_RESOURCES is negative")
	}
	return metrics.NewNames(cfg.MetricsResources, fence.Resource(cfg.Lease), fence.Resource(cfg.Resource)), nil
}
