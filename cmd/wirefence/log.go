package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// newLogger writes to standard error: text on a terminal, JSON otherwise.
func newLogger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("log level %q is none of debug, info, warn, error", level)}
	}
	format = strings.ToLower(format)
	if format == "auto" {
		format = "json"
		if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			format = "text"
		}
	}
	handler := logHandler(os.Stderr, l, format)
	if handler == nil {
		return nil, usageError{fmt.Errorf("log format %q is none of auto, text, json", format)}
	}
	return slog.New(handler), nil
}

// logHandler writes lines of a format, text or json; nil for any other.
func logHandler(w io.Writer, level slog.Level, format string) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: withUnits}
	switch format {
	case "text":
		return slog.NewTextHandler(w, options)
	case "json":
		return slog.NewJSONHandler(w, options)
	}
	return nil
}

// withUnits writes durations as in 1.5s, also in JSON, which would have them as a number
// of nanoseconds.
func withUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// logRedisTo sends the messages of all go-redis clients to a log; nil discards them. By
// default go-redis writes to standard error, which belongs to the command that runs under
// the lease.
func logRedisTo(log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	goredis.SetLogger(redisLog{log})
}

type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client: "+fmt.Sprintf(format, v...))
}
