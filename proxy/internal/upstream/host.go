package upstream

import (
	"errors"
	"net"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wirefence/wirefence/internal/connstring"
)

// Host is one server of the upstream. Its methods are safe for concurrent use.
type Host struct {
	Network string // tcp or unix
	Addr    string // host:port, or the path of the socket
	Name    string // the host's name, which its certificate must bear

	mu        sync.Mutex
	failed    time.Time // when the last attempt to connect failed; zero if it succeeded
	role      Role
	roleKey   string        // of the session that found the role; "" if a probe did
	probeErr  error         // of the last probe for the role
	learnedAt time.Time     // when role or probeErr was set
	probing   chan struct{} // closed at the end of the probe that is under way; nil without one
	standing  Standing

	confirmed atomic.Pointer[confirmation] // see Confirm
}

func newHost(s connstring.Server) (*Host, error) {
	switch {
	case s.Name == "":
		return nil, errors.New("it has an empty host")
	case strings.HasPrefix(s.Name, "/"), strings.HasPrefix(s.Name, "@"):
		return &Host{Network: "unix", Addr: path.Join(s.Name, ".s.PGSQL."+s.Port), Name: "localhost"}, nil
	}
	return &Host{Network: "tcp", Addr: net.JoinHostPort(s.Address, s.Port), Name: s.Name}, nil
}

func (h *Host) String() string { return h.Addr }

// avoidFor is how long a host that could not be reached is tried after the others: each
// attempt to connect to a lost host lasts until its timeout.
const avoidFor = 10 * time.Second

func (h *Host) recordDial(ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = time.Time{}
	if !ok {
		h.failed = time.Now()
	}
}

func (h *Host) avoided() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.failed.IsZero() && time.Since(h.failed) < avoidFor
}
