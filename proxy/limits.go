package proxy

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// limits count the clients that are served, from their startup packets on. The
// zero value is ready for use.
type limits struct {
	mu      sync.Mutex
	clients int
	byUser  map[string]int
	logged  time.Time // when a refusal was last logged
	left    int       // refusals that were not logged since
}

// refusedLimit is a limit that keeps a client out.
type refusedLimit struct {
	reason string // in metrics
	limit  int
	say    wire.Error
}

// enter counts a client in, who is to leave in the end; or it returns the limit
// that keeps the client out.
func (l *limits) enter(o *Options, user string) *refusedLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clients >= o.MaxConnections {
		return &refusedLimit{"limit", o.MaxConnections, wire.Error{
			Code: "53300", Message: "sorry, too many clients already", Hint: "The limit is WIREFENCE_MAX_CONNECTIONS."}}
	}
	if o.MaxUserConnections > 0 && l.byUser[user] >= o.MaxUserConnections {
		return &refusedLimit{"user_limit", o.MaxUserConnections, wire.Error{
			Code: "53300", Message: fmt.Sprintf("too many connections for role %q", user), Hint: "The limit is WIREFENCE_MAX_USER_CONNECTIONS."}}
	}
	if l.byUser == nil {
		l.byUser = map[string]int{}
	}
	l.clients++
	l.byUser[user]++
	return nil
}

func (l *limits) leave(user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients--
	if l.byUser[user]--; l.byUser[user] == 0 {
		delete(l.byUser, user)
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

// admitted counts a client in, or tells it that there are too many.
func (s *Server) admitted(client net.Conn, user string, log *slog.Logger) bool {
	refused := s.limits.enter(&s.options, user)
	if refused == nil {
		return true
	}
	s.metrics.rejected.WithLabelValues(refused.reason).Inc()
	if left, ok := s.limits.log(time.Now()); ok {
		log.Warn(refused.say.Message, "user", user, "limit", refused.limit, "left_out", left)
	}
	refuse(client, refused.say)
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
