package proxy

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// abortTimeout bounds the cancel requests to a server that was left behind.
const abortTimeout = 2 * time.Second

// startTimelineWatch watches the timelines of several servers, and ends the sessions of a
// primary that a promotion left behind: it may still accept writes that no other server
// will ever have. It returns the function that stops that.
func (s *Server) startTimelineWatch() (stop func()) {
	if !s.upstream.Watches() {
		if len(s.upstream.Hosts) > 1 {
			s.options.Logger.Warn("cannot detect an old primary that still runs beside a new one; set WIREFENCE_DATABASE_URL, so that servers can be asked for their timelines")
		}
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { s.upstream.Watch(ctx, s.handleStanding) })
	return func() {
		cancel()
		watching.Wait()
	}
}

// handleStanding logs a change of a host's standing, and ends the sessions of hosts that
// were left behind. It is called by one goroutine at a time.
func (s *Server) handleStanding(h *upstream.Host, was, is upstream.Standing) {
	log := s.options.Logger.With("host", h.String(), "standing", is.String())
	switch {
	case is.Err != nil && was.Err == nil:
		log.Warn("cannot ask an upstream server for its timeline", "error", is.Err)
	case is.Err == nil && (was.String() != is.String() || !was.Known):
		log.Info("the timeline of an upstream server is known")
	}
	if is.Primary && is.Err == nil && s.options.Timelines != nil {
		s.options.Timelines(is.System, is.Timeline)
	}
	for _, each := range s.upstream.Hosts {
		behind := s.upstream.Behind(each)
		if behind != nil && !s.leftBehind[each] {
			s.options.Logger.Warn("an upstream server was left behind by a promotion: its sessions are ended, and no new ones are opened there", "error", behind)
		}
		s.leftBehind[each] = behind != nil
		if behind == nil {
			continue
		}
		if n := s.abortSessionsAt(each, behind); n > 0 {
			s.options.Logger.Info("sessions were ended on a server that was left behind", "host", each.String(), "sessions", n)
		}
	}
}

// abortSessionsAt aborts all sessions at a host, and returns how many there were.
func (s *Server) abortSessionsAt(h *upstream.Host, behind error) (n int) {
	why := wire.Error{Code: "57P01", Message: "terminating connection: another server was promoted",
		Detail: behind.Error() + ".", Hint: "Connect again. If a commit was under way, look on the new primary whether it was kept."}
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	var aborting sync.WaitGroup
	s.eachConn(func(c *conn) {
		if c.route.Host == h {
			n++
			aborting.Go(func() { c.guard(func() { c.abort(ctx, why) }) })
		}
	})
	aborting.Wait()
	return n
}

// writeStandings writes the standing of each server, if there are several or a witness.
func (s *Server) writeStandings(w io.Writer) {
	if !s.upstream.Watches() && s.options.Witness == nil {
		return
	}
	for _, h := range s.upstream.Hosts {
		text := h.Standing().String() + s.confirmation(h)
		if s.upstream.Behind(h) != nil {
			text += ", left behind by a promotion"
		}
		fmt.Fprintf(w, "%s: %s\n", h, text)
	}
}

// HostStanding is the role and timeline of an upstream server, as it was seen last.
type HostStanding struct {
	Host string
	// Known says that the server has reported its role. The proxy asks for it only with
	// several servers and DatabaseURL.
	Known, Primary bool
	Timeline       uint32 // of a primary
	Behind         bool   // a promotion has left it behind
	Err            error  // why it can't be asked now
}

// Hosts returns the upstream servers, in order.
func (s *Server) Hosts() []HostStanding {
	all := make([]HostStanding, len(s.upstream.Hosts))
	for i, h := range s.upstream.Hosts {
		is := h.Standing()
		all[i] = HostStanding{
			Host: h.String(), Known: is.Known, Primary: is.Primary, Timeline: is.Timeline, Behind: s.upstream.Behind(h) != nil, Err: is.Err,
		}
	}
	return all
}

// standingMetrics are the metrics of several servers. It implements
// prometheus.Collector.
type standingMetrics struct {
	upstream                  *upstream.Upstream
	timeline, primary, behind *prometheus.Desc
}

func newStandingMetrics(u *upstream.Upstream) *standingMetrics {
	host := []string{"host"}
	return &standingMetrics{upstream: u,
		timeline: prometheus.NewDesc("wirefence_upstream_timeline", "The timeline of a primary, as it was seen last.", host, nil),
		primary:  prometheus.NewDesc("wirefence_upstream_primary", "1 for a primary, 0 for a standby, as it was seen last.", host, nil),
		behind:   prometheus.NewDesc("wirefence_upstream_behind", "1 for a primary that was left behind by a promotion: no session is opened there.", host, nil),
	}
}

// Describe implements prometheus.Collector.
func (s *standingMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- s.timeline
	out <- s.primary
	out <- s.behind
}

// Collect implements prometheus.Collector.
func (s *standingMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, host string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, host)
	}
	truth := map[bool]float64{true: 1}
	for _, h := range s.upstream.Hosts {
		is := h.Standing()
		if !is.Known {
			continue
		}
		gauge(s.primary, truth[is.Primary], h.String())
		gauge(s.behind, truth[s.upstream.Behind(h) != nil], h.String())
		if is.Primary {
			gauge(s.timeline, float64(is.Timeline), h.String())
		}
	}
}
