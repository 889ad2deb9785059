package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
)

type metrics struct {
	sessions     prometheus.Gauge
	waiting      prometheus.Gauge
	accepted     prometheus.Counter
	rejected     *prometheus.CounterVec
	checks       prometheus.Counter
	refusals     *prometheus.CounterVec
	cancels      prometheus.Counter
	trouble      prometheus.Counter
	loginSeconds prometheus.Histogram
	timeouts     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_sessions", Help: "Clients that are being served."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_standby_waiting", Help: "Clients that wait for the proxy's lease before their login."}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_sessions_total", Help: "Clients that have logged in."}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_rejected_connections_total", Help: "Connections that did not become a session, by reason."}, []string{"reason"}),
		checks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_checks_total", Help: "Checks that were put before a client's statements."}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_refusals_total", Help: "Statements that were refused, or in shadow mode would have been, by SQLSTATE."}, []string{"sqlstate", "condition", "shadow"}),
		cancels: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_cancel_requests_total", Help: "Cancel requests that were forwarded."}),
		trouble: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_protocol_errors_total", Help: "Messages that broke the protocol, or answers that did not match."}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_timeouts_total", Help: "Sessions that were ended by a timeout, by timeout."}, []string{"timeout"}),
		loginSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wirefence_login_seconds", Help: "Time from accepting a client to the end of its login.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
	}
	for state, condition := range fence.States() {
		for _, shadow := range []string{"false", "true"} {
			m.refusals.WithLabelValues(string(state), condition, shadow)
		}
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.sessions, m.waiting, m.accepted, m.rejected, m.checks, m.refusals, m.cancels, m.trouble, m.loginSeconds, m.timeouts} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
