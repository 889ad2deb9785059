package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Witness knows which server of the upstream was elected as the primary. It must be safe
// for concurrent use.
type Witness interface {
	// Leads asks whether the server at an index of the upstream leads. An error says that it isn't
	// known. Where several servers share the upstream's address, as behind a Service of Kubernetes,
	// address is the leader's own: a session is at the leader if its server has that address at its
	// end of the connection. There a no counts at once, and elsewhere when the bound has passed.
	Leads(ctx context.Context, server int) (leads bool, address netip.Addr, err error)
}

// UpstreamHosts returns the addresses of the servers of Options.Upstream, in order: host:port, or
// the path of a socket.
func UpstreamHosts(text string) (hosts []string, err error) {
	o := Options{Upstream: text}
	u, err := o.newUpstream(func(error) {})
	if err != nil {
		return nil, err
	}
	for _, h := range u.Hosts {
		hosts = append(hosts, h.String())
	}
	return hosts, nil
}

func (o *Options) checkWitness() error {
	if o.Witness != nil && o.WitnessBound <= 0 {
		return errors.New("the witness has no bound")
	}
	return nil
}

// The witness is asked four times within the bound, or once a second. Sessions that are silent are
// looked at each endInterval; others end by themselves when the confirmation no longer counts.
const (
	mostWitnessInterval = time.Second
	endInterval         = 100 * time.Millisecond
)

// startWitness asks the witness about each server, and ends sessions under a fence on servers that
// it doesn't confirm. It returns the function that stops that.
func (s *Server) startWitness() (stop func()) {
	if s.options.Witness == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, h := range s.upstream.Hosts {
		running.Go(func() { s.askWitness(ctx, i, h) })
	}
	running.Go(func() { s.endUnconfirmed(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// askWitness asks about one server until ctx ends.
func (s *Server) askWitness(ctx context.Context, i int, h *upstream.Host) {
	log := s.options.Logger.With("host", h.String())
	var failed bool
	pause := time.NewTicker(min(s.options.WitnessBound/4, mostWitnessInterval))
	defer pause.Stop()
	for {
		sent := time.Now()
		within, cancel := context.WithTimeout(ctx, s.options.WitnessBound)
		leads, address, err := s.options.Witness.Leads(within, i)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil && leads:
			h.Confirm(sent, address)
		case err == nil:
			h.Withdraw()
		case !failed:
			log.Warn("cannot ask the witness whether an upstream server leads", "error", err)
		}
		failed = err != nil
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// endUnconfirmed ends sessions until ctx ends, and logs which server is confirmed.
func (s *Server) endUnconfirmed(ctx context.Context) {
	was := map[*upstream.Host]bool{}
	ticks := time.NewTicker(endInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		for _, h := range s.upstream.Hosts {
			is := s.upstream.Confirmed(h, time.Now())
			switch {
			case is && !was[h]:
				s.options.Logger.Info("the witness confirms an upstream server as the leader", "host", h.String())
			case !is && was[h]:
				s.options.Logger.Warn("the witness no longer confirms an upstream server as the leader: sessions with a fence end there", "host", h.String(), "bound", s.options.WitnessBound)
			}
			was[h] = is
		}
		if n := s.abortUnconfirmed(); n > 0 {
			s.options.Logger.Info("sessions with a fence were ended on servers that are not confirmed", "sessions", n)
		}
	}
}

// abortUnconfirmed aborts the sessions whose server must be confirmed and isn't, and returns how
// many there were.
func (s *Server) abortUnconfirmed() (n int) {
	ctx, cancel := context.WithTimeout(context.Background(), abortTimeout)
	defer cancel()
	var aborting sync.WaitGroup
	s.eachConn(func(c *conn) {
		var why *wire.Error
		c.withCore(func(core *session.Session) {
			if core.EndUnconfirmed() {
				why = core.Fatal()
			}
		})
		if why != nil {
			n++
			aborting.Go(func() { c.guard(func() { c.abort(ctx, *why) }) })
		}
	})
	aborting.Wait()
	return n
}

// requireLeader has a session's server confirmed by the witness, if there is one.
func (s *Server) requireLeader(core *session.Session, h *upstream.Host) {
	if s.options.Witness != nil {
		core.RequireLeader(func(at time.Time, address netip.Addr) bool { return s.upstream.ConfirmedAt(h, at, address) })
	}
}

// confirmedMetric tells which servers the witness confirms. It implements prometheus.Collector.
type confirmedMetric struct {
	upstream  *upstream.Upstream
	confirmed *prometheus.Desc
}

func newConfirmedMetric(u *upstream.Upstream) *confirmedMetric {
	return &confirmedMetric{u, prometheus.NewDesc("wirefence_upstream_confirmed",
		"1 for a server that the witness has confirmed as the leader within its bound, of several behind one address for one of them: sessions with a fence need that.", []string{"host"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *confirmedMetric) Describe(out chan<- *prometheus.Desc) { out <- c.confirmed }

// Collect implements prometheus.Collector.
func (c *confirmedMetric) Collect(out chan<- prometheus.Metric) {
	for _, h := range c.upstream.Hosts {
		value := 0.0
		if c.upstream.Confirmed(h, time.Now()) {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(c.confirmed, prometheus.GaugeValue, value, h.String())
	}
}

// confirmation words for a probe whether a server is confirmed; "" without a witness.
func (s *Server) confirmation(h *upstream.Host) string {
	if s.options.Witness == nil {
		return ""
	}
	leader, confirmed := s.upstream.Leader(h, time.Now())
	switch {
	case !confirmed:
		return fmt.Sprintf(", not confirmed as the leader within %v", s.options.WitnessBound)
	case leader.IsValid():
		return fmt.Sprintf(", confirmed as the leader if its own address is %v", leader)
	}
	return ", confirmed as the leader"
}
