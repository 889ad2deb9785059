package relay

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// The usual lock: SET NX PX, and a script that compares and deletes.
func TestALockIsSealedAheadOfItsReply(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.client(t)
	ok, err := c.SetNX(t.Context(), w.lock, "worker-a", time.Minute).Result()
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.wantFence(t, "orders=1")
	w.wantSealed(t, 1)
	if l := w.book.Leases()[0]; l.From != "redis:"+w.lock || time.Until(l.Until) > time.Minute || time.Until(l.Until) < 50*time.Second {
		t.Errorf("lease %+v", l)
	}
	if ok, err := c.SetNX(t.Context(), w.lock, "worker-b", time.Minute).Result(); err != nil || ok {
		t.Error("a second holder", ok, err)
	}
	w.wantFence(t, "orders=1")
	const compareAndDelete = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
	release := goredis.NewScript(compareAndDelete)
	if n, err := release.Run(t.Context(), c, []string{w.lock}, "worker-b").Int(); err != nil || n != 0 {
		t.Error(n, err)
	}
	w.wantFence(t, "orders=1")
	if n, err := release.Run(t.Context(), c, []string{w.lock}, "worker-a").Int(); err != nil || n != 1 {
		t.Error(n, err)
	}
	w.wantFence(t, "")
	if ok, err := c.SetNX(t.Context(), w.lock, "worker-b", time.Minute).Result(); err != nil || !ok {
		t.Fatal(ok, err)
	}
	w.wantFence(t, "orders=2")
	w.wantSealed(t, 2)
}

// An extend, a reentrant take and a look are no new grants, and move the lease's end.
func TestExtendsAreNoNewGrants(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	for _, command := range []string{"PEXPIRE " + w.lock + " 600000", "SET " + w.lock + " a XX PX 600000", "GETEX " + w.lock + " PX 600000"} {
		c.send(command)
		c.reply()
		w.wantFence(t, "orders=1")
		if left := time.Until(w.book.Leases()[0].Until); left < 9*time.Minute || left > 10*time.Minute {
			t.Errorf("%s: %v left", command, left)
		}
	}
	c.does("PERSIST "+w.lock, ":1")
	if until := w.book.Leases()[0].Until; !until.IsZero() {
		t.Errorf("a lock without a time to live ends at %v", until)
	}
	c.does("EXPIRE "+w.lock+" 1", ":1")
	w.wantFence(t, "orders=1")
	for changed := w.book.Changed(); w.book.Fence() != ""; changed = w.book.Changed() {
		<-changed // the lock's time passes by the sidecar's clock
	}
	w.wantSealed(t, 1)
}

// Every way to free a lock, or to lose it, ends the lease.
func TestEnds(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	token := 0
	for _, command := range []string{"DEL " + w.lock, "UNLINK other " + w.lock, "GETDEL " + w.lock, "RENAME " + w.lock + " other", "PEXPIRE " + w.lock + " 0",
		"SET " + w.lock + " - XX", "MSET x y " + w.lock + " -"} {
		c.does("SET "+w.lock+" a PX 60000", "+OK")
		token++
		w.wantFence(t, "orders="+itoa(token))
		c.send(command)
		c.reply()
		if w.book.Fence() != "" && command[0] != 'S' && command[0] != 'M' {
			t.Errorf("%s: %s", command, w.book.Fence())
		} else if command[0] == 'S' || command[0] == 'M' {
			token++ // "-" is among the arguments: the application's next grant
			w.wantFence(t, "orders="+itoa(token))
		}
	}
	c.does("SET "+w.lock+" mine PX 60000", "+OK")
	token++
	w.wantFence(t, "orders="+itoa(token))
	if err := w.direct(t).Set(t.Context(), w.lock, "another's", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	c.does("PEXPIRE "+w.lock+" 60000", ":1")
	w.wantFence(t, "")
}

// A value that isn't among a command's arguments isn't the application's.
func TestAValueThatTheApplicationDoesNotNameIsNoLock(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.client(t)
	if err := c.Eval(t.Context(), "return redis.call('set', KEYS[1], 'from the script')", []string{w.lock}, "value").Err(); err != nil {
		t.Fatal(err)
	}
	w.wantFence(t, "")
	if err := c.Eval(t.Context(), "return redis.call('set', KEYS[1], ARGV[1])", []string{w.lock}, "value").Err(); err != nil {
		t.Fatal(err)
	}
	w.wantFence(t, "orders=1")
}

// redissonLock and redissonUnlock are what Redisson's RLock runs.
const (
	redissonLock = `if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end;
return redis.call('pttl', KEYS[1]);`
	redissonUnlock = `if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end;
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1);
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0;
else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;`
)

func TestRedissonsLock(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.client(t)
	take := func(w *world, c *goredis.Client, thread string) {
		t.Helper()
		if err := c.Eval(t.Context(), redissonLock, []string{w.lock}, 30000, thread).Err(); err != nil && err != goredis.Nil {
			t.Fatal(err)
		}
	}
	take(w, c, "0b2f:1")
	w.wantFence(t, "orders=1")
	take(w, c, "0b2f:1") // reentrant
	w.wantFence(t, "orders=1")
	other := w.beside(t)
	take(other, other.client(t), "77aa:1")
	other.wantFence(t, "")
	w.wantFence(t, "orders=1")
	for _, want := range []string{"orders=1", ""} {
		if err := c.Eval(t.Context(), redissonUnlock, []string{w.lock, "channel"}, 0, 30000, "0b2f:1").Err(); err != nil {
			t.Fatal(err)
		}
		w.wantFence(t, want)
	}
	take(other, other.client(t), "77aa:1")
	other.wantFence(t, "orders=2")
}

// A hash of an application's own, in which the fields are the same for all holders.
func TestAHashWithAnOwner(t *testing.T) {
	t.Parallel()
	w := start(t)
	c, other := w.dialRaw(t), w.beside(t)
	c.does("HSET "+w.lock+" owner a since 1", ":2")
	w.wantFence(t, "orders=1")
	d := other.dialRaw(t)
	d.does("HSET "+w.lock+" owner b since 2", ":0")
	other.wantFence(t, "orders=2")
	d.does("HSETNX "+w.lock+" owner c", ":0")
	other.wantFence(t, "orders=2")
	c.does("DEL "+w.lock, ":1")
	w.wantFence(t, "")
}

// Two sidecars whose applications use the same value never hold one token.
func TestTheSameValueOfTwoSidecars(t *testing.T) {
	t.Parallel()
	w := start(t)
	other := w.beside(t)
	c, d := w.dialRaw(t), other.dialRaw(t)
	c.does("SET "+w.lock+" host PX 60000", "+OK")
	w.wantFence(t, "orders=1")
	d.does("SET "+w.lock+" host PX 60000", "+OK")
	other.wantFence(t, "orders=2")
	w.wantSealed(t, 2)
	c.does("PEXPIRE "+w.lock+" 60000", ":1")
	w.wantFence(t, "")

	// A take that is refused is none, whatever the value. "SET NX, or GET is mine" is one.
	c.does("SET "+w.lock+" host NX PX 60000", "$-1")
	w.wantFence(t, "")
	other.wantFence(t, "orders=2")
	c.does("GET "+w.lock, "$4 host")
	w.wantFence(t, "orders=3")
	c.does("GET "+w.lock, "$4 host")
	w.wantFence(t, "orders=3")
	d.does("PEXPIRE "+w.lock+" 50000", ":1")
	other.wantFence(t, "")

	// A script that extends what it finds under its value is one, too.
	d.send("EVAL x")
	d.gets("-ERR wrong number…")
	if err := other.client(t).Eval(t.Context(), "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0",
		[]string{w.lock}, "host", 90000).Err(); err != nil {
		t.Fatal(err)
	}
	other.wantFence(t, "orders=4")
}

// A sidecar that was started anew has another id: its first extend is a new grant.
func TestARestartedSidecarGetsANewToken(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.dialRaw(t).does("SET "+w.lock+" a PX 60000", "+OK")
	again := w.beside(t, func(o *Options) { o.ID = w.opts.ID })
	c := again.dialRaw(t)
	c.does("SET "+w.lock+" a XX PX 60000", "+OK")
	again.wantFence(t, "orders=2")
}

// The database's last token is above the counter: a wiped Redis, or a former lock service.
func TestACounterThatIsBehindIsRaised(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 9007199254740993, 'before', '"+string(Source)+"')")
	c := w.dialRaw(t)
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	w.wantFence(t, "orders=9007199254740994")
	c.does("PEXPIRE "+w.lock+" 60000", ":1")
	w.wantFence(t, "orders=9007199254740994")
	c.does("DEL "+w.lock, ":1")
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	w.wantFence(t, "orders=9007199254740995")
}

// The same key in two databases of the server are two locks.
func TestSelectIsFollowed(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	c.does("SELECT 3", "+OK")
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	c.send("GET x", "SELECT 99", "SELECT 4", "SELECT 5", "SET "+w.lock+" b NX PX 60000", "GET "+w.lock)
	for _, want := range []string{"$-1", "-ERR DB index…", "+OK", "+OK", "+OK", "$1 b"} {
		c.gets(want)
	}
	direct := dialRaw(t, w.redis.Addr())
	direct.does("SELECT 5", "+OK")
	direct.does("HGET wirefence:{5:"+w.lock+"} token", "$1 2") // raised above the other one's
	direct.does("SELECT 3", "+OK")
	direct.does("HMGET wirefence:{3:"+w.lock+"} token sidecar", "*2 $1 1 $"+itoa(len(w.opts.ID))+" "+w.opts.ID)
	c.does("FLUSHDB", "+OK")
}
