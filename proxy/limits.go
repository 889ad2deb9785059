package proxy

import (
	"container/list"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// limits count connections whose clients have not logged in (pending), and clients from
// their startup packets on. The zero value is ready for use. Safe for concurrent use.
type limits struct {
	mu        sync.Mutex
	pending   list.List // of *pending, oldest first
	byAddress map[string]*addressLogins
	clients   int
	byUser    map[string]int
}

// limitError is the error of a connection that exceeds a limit, or was evicted.
type limitError struct {
	reason   string // the label in metrics
	limit    int
	response wire.Error
}

func (e *limitError) Error() string { return e.response.Message }

// countClient counts the client of a pending connection, or returns the limit that it
// exceeds. At a limit it evicts a pending client for which the proxy waits.
func (l *limits) countClient(o *Options, p *pending, user string) *limitError {
	var ends evictions
	defer ends.run() // behind the unlock
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.evictedBy != nil {
		return p.evictedBy
	}
	p.awaitsClient = false
	if l.clients >= o.MaxConnections {
		limit := &limitError{"limit", o.MaxConnections, wire.Error{
			Code: "53300", Message: "sorry, too many clients already", Hint: "The limit is WIREFENCE_MAX_CONNECTIONS."}}
		if !l.evictOldest(limit, &ends, func(other *pending) bool { return other.counted }) {
			return limit
		}
	}
	if o.MaxUserConnections > 0 && l.byUser[user] >= o.MaxUserConnections {
		limit := &limitError{"user_limit", o.MaxUserConnections, wire.Error{
			Code: "53300", Message: fmt.Sprintf("too many connections for role %q", user), Hint: "The limit is WIREFENCE_MAX_USER_CONNECTIONS."}}
		if !l.evictOldest(limit, &ends, func(other *pending) bool { return other.counted && other.user == user }) {
			return limit
		}
	}
	if l.byUser == nil {
		l.byUser = map[string]int{}
	}
	p.counted, p.user = true, user
	l.clients++
	l.byUser[user]++
	return nil
}

// remove ends the counting of a connection. It may be called twice.
func (l *limits) remove(p *pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removePending(p)
	l.uncountClient(p)
}

// uncountClient undoes countClient. The caller holds the lock.
func (l *limits) uncountClient(p *pending) {
	if !p.counted {
		return
	}
	p.counted = false
	l.clients--
	if l.byUser[p.user]--; l.byUser[p.user] == 0 {
		delete(l.byUser, p.user)
	}
}

// recordLimit counts and logs a connection that a limit has refused or evicted.
func (s *Server) recordLimit(log *slog.Logger, e *limitError, args ...any) {
	s.metrics.rejected.WithLabelValues(e.reason).Inc()
	s.logLimits.refusedClients.On(log).Warn(e.response.Message, append(args, "limit", e.limit)...)
}

// admitClient counts a client. At a limit it refuses the client and returns false.
func (s *Server) admitClient(client net.Conn, p *pending, user string, log *slog.Logger) bool {
	limit := s.limits.countClient(&s.options, p, user)
	if limit == nil {
		return true
	}
	s.recordLimit(log, limit, "user", user)
	refuse(client, limit.response)
	return false
}

// extraDescriptors are file descriptors for all but sessions: listeners, loops, probes,
// clients that log in or are refused.
const extraDescriptors = 100

// warnOfDescriptors logs a warning if the limit of open files doesn't suffice for
// MaxConnections: two a session.
func (s *Server) warnOfDescriptors() {
	needed := uint64(2*s.options.MaxConnections + extraDescriptors)
	if limit := maxDescriptors(); limit < needed {
		s.options.Logger.Warn("the limit of open files is too low for WIREFENCE_MAX_CONNECTIONS: clients will wait to be accepted; "+
			"raise it (ulimit -n, LimitNOFILE=) or lower the number", "limit", limit, "needed", needed)
	}
}
