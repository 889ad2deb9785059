package proxy

import (
	"errors"
	"log/slog"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// endedLoginError is the error of a login for which no other server may be tried: the
// client has got an ErrorResponse, or has disconnected.
type endedLoginError struct {
	sent  *wire.Error // to the client; nil if it has disconnected
	cause error
}

func (e *endedLoginError) Error() string { return e.cause.Error() }
func (e *endedLoginError) Unwrap() error { return e.cause }

// isEnded reports whether the error is an endedLoginError.
func isEnded(err error) bool { return errors.As(err, new(*endedLoginError)) }

// errUnreachableLogged says that no server accepts the client. It has been logged.
var errUnreachableLogged = errors.New("could not connect to the upstream server")

// logFailedLogin logs the error that the client got, and the cause if that says more.
func logFailedLogin(log *slog.Logger, err error, after time.Duration) {
	if errors.Is(err, errUnreachableLogged) {
		return
	}
	var args []any
	ended := (*endedLoginError)(nil)
	if errors.As(err, &ended) && ended.sent != nil {
		said := *ended.sent
		args = append(args, "sqlstate", said.Code, "reason", truncate(said.Message, maxLoggedText))
		if said.Detail != "" {
			args = append(args, "detail", truncate(said.Detail, maxLoggedText))
		}
		if text := err.Error(); text != said.Message {
			args = append(args, "error", err)
		}
	} else {
		args = append(args, "error", err)
	}
	log.Info("login failed", append(args, "after", after)...)
}
