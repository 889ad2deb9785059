package relay

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connections         prometheus.Gauge
	grants, failedSeals prometheus.Counter
	refused             prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_redis_relay_connections", Help: "Connections of clients that the relay of Redis serves."}),
		grants: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_redis_relay_grants_total", Help: "Locks that the application took in Redis and that were sealed."}),
		failedSeals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_redis_relay_failed_seals_total", Help: "Locks that the application took in Redis and that were given back, since the seal failed."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_redis_relay_refused_commands_total", Help: "Commands of locks that the relay refused: under WATCH, without rights, or on a connection that it can't follow."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.connections, m.grants, m.failedSeals, m.refused} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
