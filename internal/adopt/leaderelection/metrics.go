package leaderelection

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	grants, failedSeals prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		grants: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_leader_election_grants_total", Help: "Leases of Kubernetes that the application took and that were sealed."}),
		failedSeals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_leader_election_failed_seals_total", Help: "Tries to seal a Lease of Kubernetes that the application took, which failed."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.grants, m.failedSeals} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
