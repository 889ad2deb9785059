package api

import (
	"context"
	"net/http"
	"time"

	"github.com/wirefence/wirefence/fence"
)

// About describes a process. It holds no secrets.
type About struct {
	Version string `json:"version"`
	// Schema is the version of the schema that the binary needs.
	Schema    int       `json:"schema"`
	StartedAt time.Time `json:"started_at"`
	// Process is the name under which the process writes to the history.
	Process string `json:"process"`
	Mode    string `json:"mode"`
	// UnfencedWrites says whether a write without a fence passes: allow or reject.
	UnfencedWrites string `json:"unfenced_writes"`
	// Lease is the sidecar's, absent where there is none.
	Lease *OwnLease `json:"lease,omitempty"`
	// Adopted are the locks of the application's own that leases follow.
	Adopted []AdoptedLease `json:"adopted,omitempty"`
	// Settings are all of the process's, by the names of their variables.
	Settings map[string]string `json:"settings"`
	Upstream []UpstreamHost    `json:"upstream"`
}

// OwnLease is the lease that the process holds, or waits for.
type OwnLease struct {
	Resource string `json:"resource"`
	Held     bool   `json:"held"`
}

// AdoptedLease is a lock that the application takes by itself, with the last lease that followed it.
type AdoptedLease struct {
	From      string         `json:"from"`
	Resource  fence.Resource `json:"resource"`
	Held      bool           `json:"held"`
	Token     fence.Token    `json:"token,omitempty"`
	TokenText string         `json:"token_text,omitempty"`
	Holder    string         `json:"holder,omitempty"`
	Since     time.Time      `json:"since,omitzero"`
	Until     time.Time      `json:"until,omitzero"`
	// Ended is why the lease is over, or why none has begun.
	Ended string `json:"ended,omitempty"`
}

// UpstreamHost is a server that the process connects clients to.
type UpstreamHost struct {
	Host string `json:"host"`
	// Role is primary, standby or unknown.
	Role string `json:"role"`
	// Timeline is a primary's, 0 where it isn't known.
	Timeline uint32 `json:"timeline,omitempty"`
	// Behind says that a promotion has left the primary behind.
	Behind bool `json:"behind"`
	// Error is why the host can't be asked now.
	Error string `json:"error,omitempty"`
}

func (s *Server) about(w http.ResponseWriter, _ *http.Request, _ fence.Resource) error {
	about := About{Settings: map[string]string{}}
	if s.options.About != nil {
		about = s.options.About()
	}
	about.StartedAt = about.StartedAt.UTC()
	about.Upstream = append([]UpstreamHost{}, about.Upstream...)
	return write(w, about)
}

// identity is the caller that a token belongs to. By it, a page leaves out what the caller
// may not do.
type identity struct {
	Name  string `json:"name,omitempty"`
	Scope string `json:"scope"`
	// TokenRequired is false where everybody who reaches the listener may call, without
	// operating.
	TokenRequired bool `json:"token_required"`
}

func (s *Server) whoami(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	c, _ := callerOf(r.Context())
	return write(w, identity{c.name, c.scope.String(), s.options.Token != nil})
}

func (s *Server) guards(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	return list(s, w, r, "guards", fence.Guards)
}

func (s *Server) rows(w http.ResponseWriter, r *http.Request, _ fence.Resource) error {
	return list(s, w, r, "rows", fence.RowClasses)
}

// list answers with what the database has of a kind.
func list[T any](s *Server, w http.ResponseWriter, r *http.Request, kind string, of func(context.Context, fence.Querier) ([]T, error)) error {
	if s.options.Database == nil {
		return errNoDatabase
	}
	all, err := of(r.Context(), s.options.Database)
	if err != nil {
		return err
	}
	return write(w, map[string][]T{kind: all})
}
