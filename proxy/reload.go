package proxy

import (
	"errors"
	"fmt"
)

// reload is one thing that Reload reads again.
type reload struct {
	name string // for the log
	do   func() error
}

func (s *Server) reloads() []reload {
	all := []reload{
		{"look for functions that release locks", func() error { s.databases.Forget(); return nil }},
		{"upstream certificates", s.upstream.Reload},
	}
	if s.tls != nil {
		all = append(all, reload{"TLS certificate", s.tls.reload})
	}
	if s.users != nil {
		all = append(all, reload{"user file", s.users.Reload})
	}
	return all
}

// Reload reads certificates and the user file again, and has databases asked again whether
// functions of theirs release advisory locks. It logs the names of what it has reloaded. If
// one fails, the old value stays in use, the error names it, and the others are reloaded
// all the same. It may be called at any time, before Serve too.
func (s *Server) Reload() error {
	var done []string
	var failures []error
	for _, r := range s.reloads() {
		if err := r.do(); err != nil {
			failures = append(failures, fmt.Errorf("reloading the %s: %w", r.name, err))
			continue
		}
		done = append(done, r.name)
	}
	s.options.Logger.Info("reloaded", "what", done)
	return errors.Join(failures...)
}
