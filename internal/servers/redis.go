package servers

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// Redis is a running Redis server without persistence: what it held is gone
// when it is restarted.
type Redis struct {
	process
	bus int // port at which nodes of a cluster talk to each other
}

// StartRedis starts a server on a free loopback port. Arguments are passed on
// to redis-server. It returns when the server answers.
func StartRedis(ctx context.Context, args ...string) (*Redis, error) {
	r, err := newRedis(args...)
	if err != nil {
		return nil, err
	}
	return orClosed(r, r.Start(ctx))
}

// newRedis makes a server that is not started yet.
func newRedis(args ...string) (*Redis, error) {
	r := &Redis{}
	if err := r.prepare("redis-server", &r.bus); err != nil {
		return nil, err
	}
	r.command = append(append(r.command, "--port", strconv.Itoa(r.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", r.dir), args...)
	r.ready = func(ctx context.Context) error {
		_, err := r.Do(ctx, "ping")
		return err
	}
	return r, nil
}

// Do sends one command and returns its answer.
func (r *Redis) Do(ctx context.Context, args ...any) (any, error) {
	client := goredis.NewClient(&goredis.Options{Addr: r.Addr(), Protocol: 2, MaxRetries: -1})
	defer client.Close()
	answer, err := client.Do(ctx, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %v: %w", r.Addr(), args, err)
	}
	return answer, nil
}

// says reports whether the answer to a command contains all the texts.
func (r *Redis) says(ctx context.Context, command string, texts ...string) bool {
	answer, err := r.Do(ctx, words(command)...)
	if err != nil {
		return false
	}
	text := fmt.Sprint(answer)
	for _, want := range texts {
		if !strings.Contains(text, want) {
			return false
		}
	}
	return true
}

func words(command string) (all []any) {
	for word := range strings.FieldsSeq(command) {
		all = append(all, word)
	}
	return all
}

// URL is the connection string of the server.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// addrs are the servers' addresses, separated by commas.
func addrs(all []*Redis) string {
	var list []string
	for _, server := range all {
		list = append(list, server.Addr())
	}
	return strings.Join(list, ",")
}
