package proxy

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// traffic is what was counted of sessions: the bytes that were read of either side behind
// the login, without TLS, and the groups of messages.
type traffic struct {
	fromClient, fromServer uint64
	groups                 session.Tally
}

func (t *traffic) add(other traffic) {
	t.fromClient += other.fromClient
	t.fromServer += other.fromServer
	t.groups.Add(other.groups)
}

// counted is what the session has counted. It doesn't call the core, which may have
// failed. It takes the session's lock.
func (c *conn) counted() traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.traffic.groups = c.core.Tally()
	return c.traffic
}

// traffic adds up what all sessions have counted. They count by themselves, so that it
// costs them nothing, and are asked when the metrics are.
func (s *Server) traffic() traffic {
	s.mu.Lock()
	sum := s.past
	now := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range now {
		sum.add(c.counted())
	}
	return sum
}

// trafficMetrics implements prometheus.Collector.
type trafficMetrics struct {
	server        *Server
	bytes, groups *prometheus.Desc
}

func newTrafficMetrics(s *Server) *trafficMetrics {
	return &trafficMetrics{server: s,
		bytes:  prometheus.NewDesc("wirefence_read_bytes_total", "Bytes of the protocol, without TLS, that were read of clients and of servers behind their logins.", []string{"from"}, nil),
		groups: prometheus.NewDesc("wirefence_groups_total", "Groups of messages by what they ran under: hold, check, or nothing.", []string{"under"}, nil),
	}
}

func (m *trafficMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.bytes
	out <- m.groups
}

func (m *trafficMetrics) Collect(out chan<- prometheus.Metric) {
	t := m.server.traffic()
	count := func(d *prometheus.Desc, n uint64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	count(m.bytes, t.fromClient, "client")
	count(m.bytes, t.fromServer, "server")
	count(m.groups, t.groups.Held(), "hold")
	count(m.groups, t.groups.Checked(), "check")
	count(m.groups, t.groups.Unfenced(), "nothing")
}
