package proxy

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// newProbes makes the counter of what wirefence doctor sends to be refused. Nothing else
// of the proxy counts, logs or records that: an alert on refusals would be about the
// doctor.
func newProbes(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	probes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wirefence_doctor_probes_total", Help: "Probes of wirefence doctor that were refused, or in shadow mode would have been."}, []string{"shadow"})
	for _, shadow := range []bool{false, true} {
		probes.WithLabelValues(strconv.FormatBool(shadow))
	}
	if reg == nil {
		return probes, nil
	}
	return probes, reg.Register(probes)
}
