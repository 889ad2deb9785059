package relay

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What applications do with the lock L, a and b behind a sidecar each, d directly: who and a command,
// its reply, and the tokens of the leases that the sidecars of a and b hold behind it. M is another
// key, and S is that of the lock's state.
var plays = []struct {
	name   string
	sealed string // the token and its source that are recorded before
	same   bool   // the sidecars have the same id
	log    string
	steps  string
}{
	{name: "set, and compare and delete", steps: `
		a SET L worker-a NX PX 60000 => +OK => 1
		a SET L worker-b NX PX 60000 => $-1 => 1
		a EVAL DELETE 1 L worker-b => :0 => 1
		a EVAL DELETE 1 L worker-a => :1 => -
		a SET L worker-b NX PX 60000 => +OK => 2`},
	{name: "every way to free a lock, or to lose it", steps: `
		a SET L x PX 60000 => +OK => 1
		a DEL L => :1 => -
		a SET L x PX 60000 => +OK => 2
		a UNLINK M L => :1 => -
		a SET L x PX 60000 => +OK => 3
		a GETDEL L => $1 x => -
		a SET L x PX 60000 => +OK => 4
		a RENAME L M => +OK => -
		a SET L x PX 60000 => +OK => 5
		a PEXPIRE L 0 => :1 => -
		a SET L x PX 60000 => +OK => 6
		a SET L another XX => +OK => 7
		a MSET M y L x => +OK => 8
		d SET L another's => +OK => 8
		a PEXPIRE L 60000 => :1 => -`},
	{name: "a value that the application doesn't name is no lock of its", steps: `
		a EVAL return(redis.call('set',KEYS[1],'constant')) 1 L value => +OK => -
		a EVAL return(redis.call('set',KEYS[1],ARGV[1])) 1 L value => +OK => 1`},
	{name: "Redisson's lock, which is reentrant", steps: `
		a EVAL TAKE 1 L 30000 0b2f:1 => $-1 => 1 -
		a EVAL TAKE 1 L 30000 0b2f:1 => $-1 => 1 -
		b EVAL TAKE 1 L 30000 77aa:1 => :… => 1 -
		a EVAL UNLOCK 2 L M 0 30000 0b2f:1 => :0 => 1 -
		a EVAL UNLOCK 2 L M 0 30000 0b2f:1 => :1 => - -
		b EVAL TAKE 1 L 30000 77aa:1 => $-1 => - 2`},
	{name: "a hash whose fields are the same for all holders", steps: `
		a HSET L owner a since 1 => :2 => 1 -
		b HSET L owner b since 2 => :0 => 1 2
		b HSETNX L owner c => :0 => 1 2
		a DEL L => :1 => - 2`},
	// A take that is refused is none, whatever the value. "SET NX, or GET is mine" is one, and so is a
	// script that extends what it finds under its value.
	{name: "two applications with the same value never hold one token", steps: `
		a SET L host PX 60000 => +OK => 1 -
		b SET L host PX 60000 => +OK => 1 2
		a PEXPIRE L 60000 => :1 => - 2
		a SET L host NX PX 60000 => $-1 => - 2
		a GET L => $4 host => 3 2
		a GET L => $4 host => 3 2
		b PEXPIRE L 50000 => :1 => 3 -
		b EVAL x => -ERR wrong number… => 3 -
		b EVAL EXTEND 1 L host 90000 => :1 => 3 4`},
	{name: "the first extend through a sidecar that was started anew", same: true, steps: `
		a SET L x PX 60000 => +OK => 1 -
		b SET L x XX PX 60000 => +OK => 1 2`},
	{name: "a counter that is behind, as of a wiped Redis, is raised", sealed: "9007199254740993, 'before', '" + string(Source) + "'", steps: `
		a SET L x NX PX 60000 => +OK => 9007199254740994
		a PEXPIRE L 60000 => :1 => 9007199254740994
		a DEL L => :1 => -
		a SET L x NX PX 60000 => +OK => 9007199254740995`},
	{name: "a seal that fails is no lock", sealed: "5, 'before', 'etcd'", log: "cannot seal the grant of a lock in Redis", steps: `
		a SET L x NX PX 60000 => $-1 => -
		a SET L x PX 60000 NX GET => -ERR wirefence: the grant of the lock can't be sealed… => -
		a SETNX L x => -ERR wirefence: … => -
		a SET L x => -ERR wirefence: … => -
		a HSET L owner x => -ERR wirefence: … => -
		a EXISTS L => :0 => -
		a MULTI => +OK => -
		a INCR M => +QUEUED => -
		a SET L x NX => +QUEUED => -
		a EXEC => -ERR wirefence: … => -
		a HELLO 3 => %… => -
		a SET L x NX => _ => -
		a EXISTS L => :0 => -`},
	{name: "a grant that can't be counted is no lock", log: "cannot count the grants of a lock in Redis", steps: `
		a SET L x NX => +OK => 1
		d SET S x => +OK => 1
		a DEL L => :1 => -
		a SET L x NX => $-1 => -
		a SET L x => -ERR wirefence: … => -
		a EXISTS L => :0 => -
		d DEL S => :1 => -
		a SET L x NX => +OK => 2`},
}

// Scripts of libraries. TAKE and UNLOCK are what Redisson's RLock runs.
var scripts = map[string]string{
	"DELETE": "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
	"EXTEND": "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0",
	"TAKE": `if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end;
return redis.call('pttl', KEYS[1]);`,
	"UNLOCK": `if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end;
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1);
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0;
else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;`,
}

// Each grant is sealed ahead of its reply, and each lease ends with its lock.
func TestLeasesFollowLocks(t *testing.T) {
	t.Parallel()
	for _, p := range plays {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			b := a.beside(t, func(o *Options) {
				if p.same {
					o.ID = a.opts.ID
				}
			})
			if p.sealed != "" {
				a.db.Exec(t, "SELECT wirefence.seal('orders', "+p.sealed+")")
			}
			conns := map[string]*conn{"a": a.dialRaw(t), "b": b.dialRaw(t), "d": dialRaw(t, a.redis.Addr())}
			names := map[string]string{"L": a.lock, "M": "m-" + a.lock, "S": newTrack(a.locks.locks[a.lock], 0, nil).state}
			for name, script := range scripts {
				names[name] = script
			}
			last := int64(0)
			for line := range strings.Lines(strings.TrimSpace(p.steps)) {
				step := strings.Split(strings.TrimSpace(line), " => ")
				words := strings.Fields(step[0])
				for i, word := range words {
					if name := names[word]; name != "" {
						words[i] = name
					}
				}
				c := conns[words[0]]
				if _, err := c.Write(appendCommand(nil, words[1:]...)); err != nil {
					t.Fatal(err)
				}
				c.gets(step[1])
				for i, token := range strings.Fields(step[2]) {
					fence := ""
					if n, err := strconv.ParseInt(token, 10, 64); err == nil {
						last, fence = max(last, n), "orders="+token
					}
					[]*world{a, b}[i].wantFence(t, fence)
				}
			}
			if last > 0 {
				a.wantSealed(t, last)
			}
			if !strings.Contains(fmt.Sprint(a.log), p.log) {
				t.Errorf("the log lacks %q", p.log)
			}
		})
	}
}

// An extend moves the lease's end, which comes by the sidecar's clock.
func TestALeaseLastsAsLongAsItsLock(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	c.does("SET "+w.lock+" a NX PX 60000", "+OK")
	if l := w.book.Leases()[0]; l.From != "redis:"+w.lock || time.Until(l.Until) > time.Minute || time.Until(l.Until) < 50*time.Second {
		t.Errorf("lease %+v", l)
	}
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
		<-changed
	}
	w.wantSealed(t, 1)
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
