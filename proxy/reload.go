package proxy

import (
	"errors"
	"fmt"
)

// A reload is something that can be read anew while clients are served.
type reload struct {
	what string // for the log
	do   func() error
}

func (s *Server) reloads() []reload {
	all := []reload{
		{"stored code", func() error { s.databases.Forget(); return nil }},
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

// Reload reads anew what can be while clients are served: whether code
// stored in the databases interferes with fences, certificates, the user file. It logs what it has
// done. What can't be reloaded stays as it was and is in the error; the rest is
// reloaded all the same. It may be called at any time, before Serve too.
func (s *Server) Reload() error {
	var done []string
	var failures []error
	for _, r := range s.reloads() {
		if err := r.do(); err != nil {
			failures = append(failures, fmt.Errorf("reloading the %s: %w", r.what, err))
			continue
		}
		done = append(done, r.what)
	}
	s.options.Logger.Info("reloaded", "what", done)
	return errors.Join(failures...)
}
