package proxy

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// newProbes returns the counter of wirefence doctor's probes, statements that must be
// refused. The proxy doesn't log, record or count them otherwise, so that they trigger no
// alert on refusals.
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
