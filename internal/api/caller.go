package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// scope says what a caller may do. Each includes those before it.
type scope int

const (
	scopeRead    scope = iota // look
	scopeLease                // and acquire, renew and release leases
	scopeOperate              // and revoke, declare, and change policies
)

var scopeNames = []string{"read", "lease", "operate"}

func (s scope) String() string { return scopeNames[s] }

func parseScope(text string) (scope, error) {
	at := slices.Index(scopeNames, text)
	if at < 0 {
		return 0, fmt.Errorf("a scope is one of %s", strings.Join(scopeNames, ", "))
	}
	return scope(at), nil
}

// caller is the sender of a request. Without a token file it has no name, and the scope lease.
type caller struct {
	name  string
	scope scope
}

// application is a caller's application_name in the database.
func (c caller) application() string {
	if c.name == "" {
		return "wirefence-api"
	}
	return "wirefence-api/" + c.name
}

type callerKey struct{}

func withCaller(r *http.Request, c caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// callerOf returns the caller of a request's context.
func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// logOf is the log of a request, with its caller.
func (s *Server) logOf(r *http.Request) *slog.Logger {
	log := s.options.Logger.With("client", r.RemoteAddr)
	if c, _ := callerOf(r.Context()); c.name != "" {
		log = log.With("caller", c.name)
	}
	return log
}

// applicationKey is the key of a connection's present application_name in its custom data.
const applicationKey = "wirefence application"

// NameCallers sets the application_name of a pool's connections to the name of the caller
// that uses them, so that the history and the changes of policies record it. Without a
// caller it is the pool's own. It adds a round trip where a connection goes from one caller
// to another.
func NameCallers(cfg *pgxpool.Config) {
	own, prepare := cfg.ConnConfig.RuntimeParams["application_name"], cfg.PrepareConn
	cfg.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if prepare != nil {
			if usable, err := prepare(ctx, conn); !usable || err != nil {
				return usable, err
			}
		}
		want := own
		if c, ok := callerOf(ctx); ok {
			want = c.application()
		}
		data := conn.PgConn().CustomData()
		if present, renamed := data[applicationKey]; present == want || !renamed && want == own {
			return true, nil
		}
		if _, err := conn.Exec(ctx, "SELECT pg_catalog.set_config('application_name', $1, false)", want); err != nil {
			return false, err
		}
		data[applicationKey] = want
		return true, nil
	}
}
