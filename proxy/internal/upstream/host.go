package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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

	confirmed atomic.Pointer[time.Time] // see Confirm
}

// parseHosts parses host1:5432,host2; ports are for hosts without one: one for all, or one
// for each.
func parseHosts(hosts, ports string) ([]*Host, error) {
	names, each := strings.Split(hosts, ","), strings.Split(ports, ",")
	if len(each) != 1 && len(each) != len(names) {
		return nil, fmt.Errorf("the upstream has %d ports for %d hosts: give one for all, or one for each", len(each), len(names))
	}
	var all []*Host
	for i, name := range names {
		h, err := parseHost(name, each[min(i, len(each)-1)])
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

func parseHost(host, port string) (*Host, error) {
	if port == "" {
		port = "5432"
	}
	host, err := url.PathUnescape(host)
	if err != nil {
		return nil, fmt.Errorf("the upstream's host: %w", err)
	}
	isSocket := strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
	if !isSocket {
		if h, p, err := net.SplitHostPort(host); err == nil {
			host, port = h, p
		} else if strings.Count(host, ":") == 1 {
			return nil, fmt.Errorf("the upstream's host %q: %w", host, err)
		}
		host = strings.Trim(host, "[]")
	}
	if host == "" {
		return nil, errors.New("the upstream has an empty host")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, fmt.Errorf("the upstream's port %q is not a number from 1 to 65535", port)
	}
	if isSocket {
		return &Host{Network: "unix", Addr: path.Join(host, ".s.PGSQL."+port), Name: "localhost"}, nil
	}
	return &Host{Network: "tcp", Addr: net.JoinHostPort(host, port), Name: host}, nil
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
