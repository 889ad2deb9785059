package proxy

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/session"
)

type metrics struct {
	sessions         prometheus.Gauge
	waiting          prometheus.Gauge
	logins           prometheus.Counter
	rejected         *prometheus.CounterVec
	checks           prometheus.Counter
	refusals         *prometheus.CounterVec
	resourceRefusals *prometheus.CounterVec // nil without Options.ResourceLabel
	cancels          prometheus.Counter
	protocolErrors   prometheus.Counter
	loginSeconds     prometheus.Histogram
	waitSeconds      [2]prometheus.Observer // by session.Wait
	groupSeconds     prometheus.Histogram
	timeouts         *prometheus.CounterVec
}

func newMetrics(o *Options) (*metrics, error) {
	m := &metrics{
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_sessions", Help: "Clients that are being served."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "wirefence_standby_waiting", Help: "Clients that wait for the proxy's lease before their login."}),
		logins: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_logins_total", Help: "Clients that have logged in."}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_rejected_connections_total", Help: "Connections that did not become a session, by reason."}, []string{"reason"}),
		checks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_checks_total", Help: "Checks and holds that the proxy asked for."}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_refusals_total", Help: "Statements that were refused, or in shadow mode would have been, by SQLSTATE."}, []string{"sqlstate", "condition", "shadow"}),
		cancels: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_cancel_requests_total", Help: "Cancel requests that were forwarded."}),
		protocolErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "wirefence_protocol_errors_total", Help: "Messages that broke the protocol, or answers that did not match."}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_timeouts_total", Help: "Sessions that were ended by a timeout, by timeout."}, []string{"timeout"}),
		loginSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wirefence_login_seconds", Help: "Time from accepting a client to the end of its login.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		groupSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wirefence_fenced_group_seconds", Help: "Time that a group of messages under a fence took at the server, of one in 16 of a session.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9)}),
	}
	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "wirefence_fence_wait_seconds", Help: "Time that a client's message waited for a check, of one in 16 of a session, or for an exchange of the proxy's own.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10)}, []string{"kind"})
	m.waitSeconds = [...]prometheus.Observer{
		session.WaitCheck: waits.WithLabelValues("check"), session.WaitExchange: waits.WithLabelValues("exchange")}
	// Series must exist before their first event, or rate() misses it.
	for _, reason := range []string{"startup", "arriving", "address_limit", "limit", "user_limit", "upstream", "login", "standby"} {
		m.rejected.WithLabelValues(reason)
	}
	for _, t := range []timeout{idleTimeout, inTransactionTimeout, transactionTimeout} {
		m.timeouts.WithLabelValues(t.name)
	}
	for state, condition := range fence.States() {
		for _, shadow := range []string{"false", "true"} {
			m.refusals.WithLabelValues(string(state), condition, shadow)
		}
	}
	all := []prometheus.Collector{m.sessions, m.waiting, m.logins, m.rejected, m.checks, m.refusals, m.cancels, m.protocolErrors, m.loginSeconds, waits, m.groupSeconds, m.timeouts}
	if o.ResourceLabel != nil {
		m.resourceRefusals = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wirefence_resource_refusals_total", Help: "Refusals that name a resource, by resource and SQLSTATE."}, []string{"resource", "sqlstate", "shadow"})
		all = append(all, m.resourceRefusals)
	}
	return m, register(o.Registerer, all...)
}

func register(r prometheus.Registerer, all ...prometheus.Collector) error {
	if r == nil {
		return nil
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// countRefusal counts a refusal; v is its verdict. The statement's trace is the exemplar.
func (s *Server) countRefusal(r session.Refusal, v Verdict) {
	traceID, _ := Refusal{TraceParent: r.TraceParent}.Trace()
	state, shadow := string(r.State), strconv.FormatBool(r.Shadow)
	count(s.metrics.refusals.WithLabelValues(state, r.State.Condition(), shadow), traceID)
	if s.metrics.resourceRefusals == nil || v.Resource == "" {
		return
	}
	label := s.options.ResourceLabel("") // an unknown resource must not take one of the bounded labels
	if r.State != fence.ResourceUnknown {
		label = s.options.ResourceLabel(v.Resource)
	}
	count(s.metrics.resourceRefusals.WithLabelValues(label, state, shadow), traceID)
}

func count(c prometheus.Counter, traceID string) {
	if with, ok := c.(prometheus.ExemplarAdder); ok && traceID != "" {
		with.AddWithExemplar(1, prometheus.Labels{"trace_id": traceID})
		return
	}
	c.Inc()
}
