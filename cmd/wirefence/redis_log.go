package main

import (
	"context"
	"fmt"
	"log/slog"

	goredis "github.com/redis/go-redis/v9"
)

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
