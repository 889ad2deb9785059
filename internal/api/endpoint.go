package api

import (
	"fmt"
	"net"
	"net/http"
)

// endpoint is a listener as the API sees it: its callers, and the operations that it serves.
type endpoint struct {
	// setting names the listener's address.
	setting string
	// applications: only the operations for applications are served, and tokens need the
	// scope lease.
	applications bool
	// loopback: only this machine reaches it.
	loopback bool
	// socket: it is a Unix socket, which no browser reaches.
	socket bool
}

// needs is the scope that a route takes.
func (at endpoint) needs(r route) scope {
	if at.applications {
		return scopeLease
	}
	return r.needs
}

// Application returns the handler for a listener of applications, at WIREFENCE_API_LISTEN:
// their operations, and the probes /livez and /readyz, for which no token is asked. It
// fails where every request would be refused. The bounds on acquires that wait are those
// of the server, however many listeners it has.
func (s *Server) Application(l net.Addr) (http.Handler, error) {
	at := endpoint{setting: "WIREFENCE_API_LISTEN", applications: true, loopback: IsLoopback(l), socket: l.Network() == "unix"}
	if why := s.refusal(at); why != "" {
		return nil, fmt.Errorf("%s: %s", l, why)
	}
	routes := s.mux(at)
	probes := http.NewServeMux()
	probes.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	probes.HandleFunc("GET /readyz", s.ready)
	guarded := ownHost(at, probes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" || r.URL.Path == "/readyz" {
			guarded.ServeHTTP(w, r)
			return
		}
		routes.ServeHTTP(w, r)
	}), nil
}

// ready answers whether acquires are served, so that a load balancer sends them elsewhere
// before they are refused.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.serving.Err() != nil {
		w.Header().Set("Connection", "close") // the next may reach another process
		http.Error(w, "not ready: draining", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// IsLoopback reports whether only this machine reaches a TCP address.
func IsLoopback(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
