package proxy

import (
	"errors"
	"log/slog"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// endedLogin says that a login has ended, and no other server is to be tried: the
// client has been told, or is gone.
type endedLogin struct {
	said *wire.Error // to the client, nil where nothing could be said
	why  error
}

func (e *endedLogin) Error() string { return e.why.Error() }
func (e *endedLogin) Unwrap() error { return e.why }

// isEnded reports whether a login has ended.
func isEnded(err error) bool { return errors.As(err, new(*endedLogin)) }

// errUnreachable says that no server takes the client, which has been logged.
var errUnreachable = errors.New("could not connect to the upstream server")

// logFailedLogin says why a client could not log in: in the words of the error that it
// got, and by what the proxy knows beyond that.
func logFailedLogin(log *slog.Logger, err error, after time.Duration) {
	if errors.Is(err, errUnreachable) {
		return
	}
	var args []any
	ended := (*endedLogin)(nil)
	if errors.As(err, &ended) && ended.said != nil {
		said := *ended.said
		args = append(args, "sqlstate", said.Code, "reason", cut(said.Message, logged))
		if said.Detail != "" {
			args = append(args, "detail", cut(said.Detail, logged))
		}
		if text := err.Error(); text != said.Message {
			args = append(args, "error", err)
		}
	} else {
		args = append(args, "error", err)
	}
	log.Info("login failed", append(args, "after", after)...)
}
