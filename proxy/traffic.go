package proxy

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// traffic counts the bytes that were read from either side after the login, without TLS,
// and the groups of messages.
type traffic struct {
	fromClient, fromServer uint64
	groups                 session.Tally
}

func (t *traffic) add(other traffic) {
	t.fromClient += other.fromClient
	t.fromServer += other.fromServer
	t.groups.Add(other.groups)
}

// countTraffic returns the session's counts, also after the core has failed. It takes the
// session's lock.
func (c *conn) countTraffic() traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.traffic.groups = c.core.Tally()
	return c.traffic
}

// traffic sums up the counts of all sessions. Sessions share no counter, since that would
// cost each message; they are summed up at each scrape.
func (s *Server) traffic() traffic {
	s.mu.Lock()
	sum := s.endedTraffic
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		sum.add(c.countTraffic())
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
