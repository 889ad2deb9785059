package campaign

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	won, lost, errors prometheus.Counter
}

func newMetrics(c *Campaign, reg prometheus.Registerer) (*metrics, error) {
	labels := prometheus.Labels{"resource": string(c.options.Resource)}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "wirefence_lease_held", Help: "1 while this process holds its lease.", ConstLabels: labels},
		func() float64 {
			if c.Fence() == "" {
				return 0
			}
			return 1
		})
	transitions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wirefence_lease_transitions_total", Help: "Times that the lease was won, and lost or released.", ConstLabels: labels}, []string{"to"})
	m := &metrics{won: transitions.WithLabelValues("leader"), lost: transitions.WithLabelValues("standby"),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_lease_errors_total", Help: "Tries to win the lease that failed for another reason than that it is held.", ConstLabels: labels})}
	if reg == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{held, transitions, m.errors} {
		if err := reg.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) count(won bool) {
	if won {
		m.won.Inc()
	} else {
		m.lost.Inc()
	}
}
