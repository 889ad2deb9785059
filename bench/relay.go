package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
)

const (
	viaRelay = "relay"
	viaCopy  = "a relay that only copies"
)

// measureRelay measures Redis directly, through a sidecar's relay, and through one that reads nothing of
// what it copies: commands that are no lock's, by redis-benchmark, and how long a client waits for a
// lock, which the sidecar seals meanwhile.
func (b *book) measureRelay(ctx context.Context, w *world) error {
	redis, err := servers.StartRedis(ctx)
	if err != nil {
		return err
	}
	defer redis.Close()
	port, err := servers.FreePort()
	if err != nil {
		return err
	}
	listen := fmt.Sprint("127.0.0.1:", port)
	p, err := w.start(ctx, wirefence, rivals[wirefence], w.postgres.Addr(), map[string]string{
		"WIREFENCE_LEASE_FROM": "redis:lock=relayed", "WIREFENCE_REDIS_URL": redis.URL(), "WIREFENCE_REDIS_LISTEN": listen,
	})
	if err != nil {
		return err
	}
	defer p.close()
	if err := opened(ctx, listen); err != nil {
		return err
	}
	copies, err := startCounter(redis.Addr())
	if err != nil {
		return err
	}
	defer copies.close()
	ways := []string{direct, viaCopy, viaRelay}
	addrs := map[string]string{direct: redis.Addr(), viaCopy: copies.listener.Addr().String(), viaRelay: listen}
	for round := range b.flags.rounds {
		for _, load := range relayed {
			for i := range ways {
				way := ways[(i+round)%len(ways)]
				s, err := load.run(ctx, addrs[way], b.flags.seconds)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", load.name, way, err)
				}
				b.add(row{"relay", load.name, load.clients, way}, s)
			}
		}
	}
	return nil
}

// relayed is what is done directly and through the relays.
var relayed = []struct {
	name    string
	clients int
	run     func(ctx context.Context, addr string, seconds int) (sample, error)
}{
	{"SET", 16, commandRate("-t", "set")},
	{"GET", 16, commandRate("-t", "get")},
	{"GET in pipelines of 16", 16, commandRate("-t", "get", "-P", "16")},
	{"SET NX of a lock", 1, takeLocks},
}

// opened waits until a listener is open.
func opened(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// commandRate has redis-benchmark measure a command.
func commandRate(command ...string) func(context.Context, string, int) (sample, error) {
	return func(ctx context.Context, addr string, seconds int) (sample, error) {
		_, port, _ := net.SplitHostPort(addr)
		out, err := exec.CommandContext(ctx, "redis-benchmark", append(command, "-p", port, "-c", "16", "-d", "100", "-n", strconv.Itoa(20_000*seconds), "--csv")...).Output()
		if err != nil {
			return nil, fmt.Errorf("redis-benchmark: %w", err)
		}
		lines, err := csv.NewReader(strings.NewReader(string(out))).ReadAll()
		if err != nil || len(lines) != 2 {
			return nil, fmt.Errorf("redis-benchmark: %w: %s", err, out)
		}
		rate, err := strconv.ParseFloat(lines[1][1], 64)
		return sample{commands: rate}, err
	}
}

// takeLocks takes a lock for a while, and measures each SET NX.
func takeLocks(ctx context.Context, addr string, seconds int) (sample, error) {
	client := goredis.NewClient(&goredis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	var times []time.Duration
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		began := time.Now()
		taken, err := client.SetNX(ctx, "lock", "bench", time.Minute).Result()
		times = append(times, time.Since(began))
		if err == nil && taken {
			err = client.Del(ctx, "lock").Err()
		}
		if err != nil || !taken {
			return nil, fmt.Errorf("the lock was taken: %v: %w", taken, err)
		}
	}
	return latency(times), nil
}
