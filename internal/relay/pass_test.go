package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// What is no lock's command has the same replies as without the relay, in the same order, however
// it is cut into packets, with locks' commands between.
func TestRandomCommandsAnswerAlike(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		w := start(t)
		rng := rand.New(rand.NewPCG(seed, 7))
		direct, through := dialRaw(t, w.redis.Addr()), w.dialRaw(t)
		if seed%2 == 1 {
			direct.send("HELLO 3")
			direct.reply()
			through.send("HELLO 3")
			through.reply()
		}
		for range 15 {
			n := 1 + rng.IntN(60)
			var a, b []byte
			locks := make([]bool, 0, n)
			inTx, watching := false, false
			for range n {
				command := randomCommand(rng)
				for inTx && command[0] == "SELECT" {
					command = randomCommand(rng)
				}
				switch command[0] {
				case "MULTI":
					inTx = true
				case "WATCH":
					watching = watching || !inTx
				case "UNWATCH":
					watching = watching && inTx
				case "EXEC", "DISCARD":
					watching = watching && !inTx
					inTx = false
				}
				a = append(a, encode(command, "d-"+w.lock)...)
				b = append(b, encode(command, "r-"+w.lock)...)
				locks = append(locks, false)
				if !inTx && !watching && rng.IntN(12) == 0 {
					b = append(b, encode([]string{"PEXPIRE", w.lock, "100"}, "")...)
					locks = append(locks, true)
				}
			}
			for _, end := range []string{"DISCARD", "UNWATCH"} {
				a, b, locks = append(a, encode([]string{end}, "")...), append(b, encode([]string{end}, "")...), append(locks, false)
			}
			go direct.Write(a) //nolint:errcheck // the reader sees it
			go func() {
				for len(b) > 0 {
					cut := 1 + rng.IntN(min(len(b), 700))
					_, _ = through.Write(b[:cut])
					b = b[cut:]
				}
			}()
			for _, lock := range locks {
				if lock {
					through.gets(":0")
					continue
				}
				want, got := direct.reply(), through.reply()
				if got = strings.ReplaceAll(got, "r-"+w.lock, "d-"+w.lock); got != want {
					t.Fatalf("seed %d: %.200q through the relay, %.200q direct", seed, got, want)
				}
			}
		}
	}
}

// encode encodes a command with its keys, which begin with @, in a space of their own.
func encode(command []string, space string) []byte {
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = strings.ReplaceAll(word, "@", space)
	}
	return appendCommand(nil, words...)
}

func randomCommand(rng *rand.Rand) []string {
	key := fmt.Sprintf("@%d", rng.IntN(5))
	value := strings.Repeat("v", rng.IntN(40))
	if rng.IntN(30) == 0 {
		value = strings.Repeat("\r\n*1", rng.IntN(60_000))
	}
	all := [][]string{
		{"SET", key, value}, {"get", key}, {"SETNX", key, value}, {"DEL", key, "@x"}, {"INCR", "@n"}, {"EXPIRE", key, "100"}, {"HSET", "@h", "f", value},
		{"HGETALL", "@h"}, {"LPUSH", "@l", value, "b"}, {"LRANGE", "@l", "0", "-1"}, {"EVAL", "return {1, {2, ARGV[1]}, false}", "1", key, value},
		{"EVAL", "return redis.call('get', KEYS[1])", "1", key}, {"MSET", key, "1", "@y", value}, {"MULTI"}, {"EXEC"}, {"DISCARD"}, {"ECHO", value}, {"PING"},
		{"NOSUCH", value}, {"GET"}, {"SET", key}, {"SADD", "@s", value}, {"SMEMBERS", "@none"}, {"WATCH", "@w"}, {"UNWATCH"}, {"SELECT", "0"}, {"STRLEN", key},
		{"GETSET", key, value}, {"EVAL", "x", "zz"}, {"ZADD", "@z", "1.5", "m"}, {"ZSCORE", "@z", "m"}, {"CLIENT", "SETNAME", "x"}, {"TYPE", key},
	}
	return all[rng.IntN(len(all))]
}

func TestBlockingCommandsAndSubscriptions(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.client(t, func(o *goredis.Options) { o.PoolSize = 4 })
	popped := make(chan error, 1)
	go func() { popped <- c.BLPop(context.Background(), time.Minute, "list-"+w.lock).Err() }()
	sub := c.Subscribe(t.Context(), "channel-"+w.lock)
	defer sub.Close()
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), "channel-"+w.lock, "hello").Err(); err != nil {
		t.Fatal(err)
	}
	if m := <-sub.Channel(); m.Payload != "hello" {
		t.Error(m)
	}
	if err := c.LPush(t.Context(), "list-"+w.lock, "x").Err(); err != nil {
		t.Fatal(err)
	}
	if err := <-popped; err != nil {
		t.Error(err)
	}
	// A blocked command ahead of a lock's on one connection.
	raw := w.dialRaw(t)
	raw.send("BLPOP list-"+w.lock+" 0", "SET "+w.lock+" a NX")
	stack.Eventually(t, "blocked", func() bool { return strings.Contains(c.ClientList(t.Context()).Val(), "cmd=blpop") })
	if w.direct(t).Exists(t.Context(), w.lock).Val() != 0 {
		t.Error("the lock was taken ahead of the command before it")
	}
	c.LPush(t.Context(), "list-"+w.lock, "y")
	raw.gets("*2 …")
	raw.gets("+OK")
	w.wantFence(t, "orders=1")
}

// RESP3 pushes come between replies, also during a lock's command and its seal.
func TestPushes(t *testing.T) {
	t.Parallel()
	w := start(t)
	release := held(t, w, "5")
	c, direct := w.dialRaw(t), w.direct(t)
	c.does("HELLO 3", "%…")
	c.does("CLIENT TRACKING ON", "+OK")
	c.send("SET tracked-" + w.lock + " 1") // the user's rights are looked at ahead of it
	c.getsPast("+OK")
	c.does("GET tracked-"+w.lock, "$1 1")
	c.does("SUBSCRIBE news-"+w.lock, ">3 $9 subscribe…")
	c.send("SET " + w.lock + " a NX PX 60000")
	w.eventually(t, "1")
	direct.Set(t.Context(), "tracked-"+w.lock, "2", 0)
	c.getsPast(">2 $10 invalidate *1 $" + itoa(len("tracked-"+w.lock)) + " tracked…")
	direct.Publish(t.Context(), "news-"+w.lock, strings.Repeat("x", 100_000))
	c.getsPast(">3 $7 message…")
	release()
	c.getsPast("+OK")
	w.wantFence(t, "orders=6")
	direct.Publish(t.Context(), "news-"+w.lock, "behind")
	c.getsPast(">3 $7 message…")
	c.send("DEL " + w.lock)
	c.getsPast(":1")
	w.wantFence(t, "")
	c.send("RESET")
	c.getsPast("+RESET")
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	w.wantFence(t, "orders=7")
	c.does("QUIT", "+OK")
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the connection stays behind QUIT")
	}
}

func TestInlineAndMalformedCommands(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	c.Write([]byte("PING\r\n\r\n*0\r\nset " + w.lock + " a nx\nEcho \"a b\"\r\n")) //nolint:errcheck
	for _, want := range []string{"+PONG", "+OK", "$3 a b"} {
		c.gets(want)
	}
	w.wantFence(t, "orders=1")
	for _, text := range []string{"*x\r\n", "*1\r\nPING\r\n", "*2\r\n$3\r\nGET\r\n$-5\r\n", "SET \"" + w.lock + "\" b\r\n", "*1\r\n$1234567890123456789012\r\n"} {
		c := w.dialRaw(t)
		c.Write([]byte(text)) //nolint:errcheck
		c.gets("-ERR wirefence: protocol error")
	}
}

// A value is carried without being held in memory; a command that names a lock is limited.
func TestLargeCommands(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	large := strings.Repeat("x", 20<<20)
	for _, key := range []string{"large-" + w.lock, "larger-" + w.lock} {
		c.does("SET "+key+" "+large, "+OK")
		c.does("STRLEN "+key, ":20971520")
		c.does("DEL "+key, ":1")
	}
	c.does("EVAL return(1)--"+large[:3<<20]+" 1 "+w.lock, ":1") // no lock's command is that large
	c.send("SET " + w.lock + " " + large[:2<<20])
	c.gets("-ERR wirefence: a command that names a lock's key is too large")
}

func TestUnixSocketsAndUsers(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	redis := withUsers(t, []string{"--unixsocket", socket}, "app on >secret ~* +@all", "poor on >secret ~lock* +@string +@connection +@transaction")
	here := filepath.Join(t.TempDir(), "relay.sock")
	w := startFor(t, redis, suite.Database(t, 0), "lock", func(o *Options) {
		o.Upstream = "unix://" + socket
	})
	c := w.client(t, func(o *goredis.Options) {
		o.Username, o.Password = "app", "secret"
	})
	if ok, err := c.SetNX(t.Context(), "lock", "a", time.Minute).Result(); err != nil || !ok {
		t.Error(ok, err)
	}
	w.wantFence(t, "orders=1")

	plain := startFor(t, redis, w.db, "lock", func(o *Options) { o.Listen = here })
	poor := plain.client(t, func(o *goredis.Options) {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", here) }
		o.Username, o.Password, o.DisableIdentity = "poor", "secret", true
	})
	if err := poor.Set(t.Context(), "lock2", "x", 0).Err(); err != nil {
		t.Error("a command that is no lock's:", err)
	}
	if !strings.Contains(plain.log.String(), "a user of Redis can't take locks through the relay") {
		t.Error("the missing right was not found at the connection's start")
	}
	if err := poor.Do(t.Context(), "SET", "lock", "b", "NX").Err(); err == nil || !strings.Contains(err.Error(), "the user poor needs") {
		t.Error(err)
	}
}

// The relay's own user and the kind of server are looked at before the first client comes.
func TestListenRefuses(t *testing.T) {
	t.Parallel()
	redis := withUsers(t, nil, "keys on >x ~lock* +@all", "scripts on >x ~* +@all -eval -evalsha")
	cluster := stack.Started(servers.StartRedis(t.Context(), "--cluster-enabled", "yes")).EndWith(t)
	replica := stack.Started(servers.StartRedis(t.Context(), "--replicaof", "127.0.0.1 1")).EndWith(t)
	w := start(t)
	for upstream, want := range map[string]string{
		"redis://keys:x@" + redis.Addr():    "can't follow locks",
		"redis://scripts:x@" + redis.Addr(): "can't follow locks",
		"redis://keys:y@" + redis.Addr():    "WRONGPASS",
		cluster.URL():                       "Redis Cluster",
		"redis://127.0.0.1:1":               "not ready: dial tcp 127.0.0.1:1: connect: connection refused",
		replica.URL():                       "not ready: HSET wirefence:{0:" + w.lock + "}: READONLY",
	} {
		o := w.opts
		o.Upstream, o.Registerer = upstream, nil
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), ":x@") || errors.Is(err, ErrNotReady) != strings.HasPrefix(want, "not ready") {
			t.Errorf("%s: %v", upstream, err)
		}
		_ = r.Shutdown(t.Context())
	}
	for upstream, want := range map[string]string{"redis-cluster://a,b": "Redis Cluster", "redis-sentinel://a/m": "not of Sentinels", "http://x": "no redis://", "": "no redis://"} {
		o := w.opts
		o.Upstream = upstream
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", upstream, err)
		}
	}
	if _, err := New(Options{Upstream: redis.URL(), Locks: map[string]fence.Resource{"": "x"}}); err == nil {
		t.Error("options without anything are taken")
	}
}

func TestLimitOfConnections(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *Options) { o.MaxConnections = 1 })
	c := w.dialRaw(t)
	c.does("PING", "+PONG")
	w.dialRaw(t).gets("-ERR max number of clients reached")
	_ = c.Close()
	stack.Eventually(t, "another client is served", func() bool {
		d, err := net.Dial("tcp", w.addr)
		if err != nil {
			return false
		}
		defer d.Close()
		_ = d.SetDeadline(time.Now().Add(time.Second))
		d.Write([]byte("PING\r\n")) //nolint:errcheck
		b := make([]byte, 5)
		n, _ := d.Read(b)
		return string(b[:n]) == "+PONG"
	})
}

// Where Redis has gone, clients see their connections end; a new one works when it is back, also
// where it has forgotten scripts and counters.
func TestRedisRestarts(t *testing.T) {
	t.Parallel()
	redis, err := servers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	w := startFor(t, redis, suite.Database(t, 0), "lock")
	c := w.dialRaw(t)
	c.does("SET lock a NX PX 60000", "+OK")
	redis.Kill()
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the connection stays")
	}
	w.dialRaw(t).gets("-ERR wirefence: cannot connect to Redis")
	if err := redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = w.dialRaw(t)
	c.does("SET lock b NX PX 60000", "+OK")
	w.wantFence(t, "orders=2")
	c.does("SCRIPT FLUSH", "+OK")
	c.does("DEL lock", ":1")
	w.wantFence(t, "")
}

// withUsers starts a Redis with users.
func withUsers(t *testing.T, args []string, users ...string) *servers.Redis {
	redis, err := servers.StartRedis(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	for _, user := range users {
		words := []any{"ACL", "SETUSER"}
		for word := range strings.FieldsSeq(user) {
			words = append(words, word)
		}
		if _, err := redis.Do(t.Context(), words...); err != nil {
			t.Fatal(err)
		}
	}
	return redis
}

// getsPast is gets behind invalidations of other keys: a client with CLIENT TRACKING gets those of
// the locks and of their states, too.
func (c *conn) getsPast(want string) {
	c.t.Helper()
	begin, _ := strings.CutSuffix(want, "…")
	for {
		got := c.reply()
		if strings.HasPrefix(got, begin) {
			return
		}
		if !strings.HasPrefix(got, ">2 $10 invalidate") {
			c.t.Fatalf("reply %.200q, want %q", got, want)
		}
	}
}
