package metrics

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Build is a metric with the versions of the binary and of the schema that it needs.
func Build(version string, schema int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "wirefence_build_info", Help: "1, with the versions of the binary, of Go, and of the schema that the binary needs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "schema": strconv.Itoa(schema)},
	}, func() float64 { return 1 })
}
