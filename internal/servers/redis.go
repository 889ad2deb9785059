package servers

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Redis is a running Redis server without persistence: what it held is gone
// when it is restarted.
type Redis struct {
	process

	conf string // a configuration file that comes first; "" for none
	args []string
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
	if _, err := lookUp("redis-server"); err != nil {
		return nil, err
	}
	p, err := newProcess("redis")
	if err != nil {
		return nil, err
	}
	return &Redis{process: p, args: args}, nil
}

// Start starts a server that was ended by Stop or Kill, empty, on the same port.
func (r *Redis) Start(ctx context.Context) error {
	var args []string
	if r.conf != "" {
		args = append(args, r.conf)
	}
	args = append(args, "--port", strconv.Itoa(r.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", r.dir)
	return r.run(ctx, exec.Command("redis-server", append(args, r.args...)...), r.ping)
}

func (r *Redis) ping(ctx context.Context) error {
	_, err := r.Do(ctx, "ping")
	return err
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

// await returns when done does with true, or with an error after a minute.
func await(ctx context.Context, what string, done func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
