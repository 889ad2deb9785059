package main

import (
	"context"
	"fmt"
	"log/slog"
)

// redisLog takes what go-redis would write to standard error, which belongs to
// the command that runs under the lease: which master a Sentinel named, and
// failed attempts to connect, whose errors are told anyway.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client: "+fmt.Sprintf(format, v...))
}
