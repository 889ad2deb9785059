package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Handler serves the probes. /livez always answers 200. /readyz answers 200 if the
// server can serve clients, otherwise 503 with the reason. With ?role=leader the server
// must also hold its lease; with ?role=standby it must not.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		err := s.hasRole(r.URL.Query().Get("role"))
		if errors.Is(err, errRole) {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err = cmp.Or(err, s.Ready(ctx)); err != nil {
			w.Header().Set("Connection", "close") // the next probe may reach a new process at this port
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
		s.writeStandings(w)
	})
	return mux
}

var errRole = errors.New("the role must be leader or standby, and needs WIREFENCE_LEASE")

// hasRole returns an error if the server doesn't have the role; "" is any role.
func (s *Server) hasRole(role string) error {
	switch {
	case role == "":
		return nil
	case s.options.Lease == nil || role != "leader" && role != "standby":
		return errRole
	case (role == "leader") == s.Leading():
		return nil
	case role == "standby":
		return fmt.Errorf("the lease of %q is held here", s.options.Lease.Resource())
	}
	return fmt.Errorf("the lease of %q is not held here", s.options.Lease.Resource())
}
