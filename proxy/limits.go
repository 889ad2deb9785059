package proxy

import (
	"container/list"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// limits count connections: those whose clients have not logged in, and the clients
// that are served, from their startup packets on. The zero value is ready for use.
type limits struct {
	mu        sync.Mutex
	pending   list.List // of *pending, the oldest first
	byAddress map[string]*origin
	clients   int
	byUser    map[string]int
	logged    time.Time // when a refusal was last logged
	left      int       // refusals that were not logged since
}

// limitError is a limit that keeps a connection out.
type limitError struct {
	reason string // in metrics
	limit  int
	say    wire.Error
}

func (e *limitError) Error() string { return e.say.Message }

// enter counts the client of a pending connection in, or returns the limit that
// keeps it out. Clients that have not logged in and keep the proxy waiting give
// way to it.
func (l *limits) enter(o *Options, p *pending, user string) *limitError {
	var ends ending
	defer ends.run() // behind the unlock
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.gave != nil {
		return p.gave
	}
	p.silent = false
	if l.clients >= o.MaxConnections {
		limit := &limitError{"limit", o.MaxConnections, wire.Error{
			Code: "53300", Message: "sorry, too many clients already", Hint: "The limit is WIREFENCE_MAX_CONNECTIONS."}}
		if !l.makeWay(limit, &ends, func(other *pending) bool { return other.counted }) {
			return limit
		}
	}
	if o.MaxUserConnections > 0 && l.byUser[user] >= o.MaxUserConnections {
		limit := &limitError{"user_limit", o.MaxUserConnections, wire.Error{
			Code: "53300", Message: fmt.Sprintf("too many connections for role %q", user), Hint: "The limit is WIREFENCE_MAX_USER_CONNECTIONS."}}
		if !l.makeWay(limit, &ends, func(other *pending) bool { return other.counted && other.user == user }) {
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

// leave ends what was counted for a connection. It may be called twice.
func (l *limits) leave(p *pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(p)
	l.discount(p)
}

// discount counts a client out, if it was counted in.
func (l *limits) discount(p *pending) {
	if !p.counted {
		return
	}
	p.counted = false
	l.clients--
	if l.byUser[p.user]--; l.byUser[p.user] == 0 {
		delete(l.byUser, p.user)
	}
}

// log reports whether a refusal is to be logged, and how many were not since the
// last that was: one a second is enough.
func (l *limits) log(now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.logged) < time.Second {
		l.left++
		return 0, false
	}
	left = l.left
	l.logged, l.left = now, 0
	return left, true
}

// limited counts and logs a connection that a limit has kept out.
func (s *Server) limited(log *slog.Logger, e *limitError, args ...any) {
	s.metrics.rejected.WithLabelValues(e.reason).Inc()
	if left, ok := s.limits.log(time.Now()); ok {
		log.Warn(e.say.Message, append(args, "limit", e.limit, "left_out", left)...)
	}
}

// admitted counts a client in, or tells it that there are too many.
func (s *Server) admitted(client net.Conn, p *pending, user string, log *slog.Logger) bool {
	limit := s.limits.enter(&s.options, p, user)
	if limit == nil {
		return true
	}
	s.limited(log, limit, "user", user)
	refuse(client, limit.say)
	return false
}

// descriptorsBeside are file descriptors for all but sessions: listeners, loops,
// probes, clients that log in or are refused.
const descriptorsBeside = 100

// warnOfDescriptors tells if the system won't let as many clients connect as the
// settings do.
func (s *Server) warnOfDescriptors() {
	needed := uint64(2*s.options.MaxConnections + descriptorsBeside)
	if limit := maxDescriptors(); limit < needed {
		s.options.Logger.Warn("the limit of open files is too low for WIREFENCE_MAX_CONNECTIONS: clients will wait to be accepted; "+
			"raise it (ulimit -n, LimitNOFILE=) or lower the number", "limit", limit, "needed", needed)
	}
}
