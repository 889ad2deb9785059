package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// unsealable lets every seal of the resource fail: its tokens come from another source.
func unsealable(t testing.TB, w *world) {
	w.db.Exec(t, "SELECT wirefence.seal('orders', 5, 'before', 'etcd')")
}

// held keeps a transaction open under the last token, for which each seal waits.
func held(t *testing.T, w *world) (release func()) {
	conn := w.db.Direct(t)
	stack.MustExec(t, conn, "BEGIN")
	stack.MustExec(t, conn, "SELECT wirefence.check((SELECT 'orders=' || last_token FROM wirefence.resource_locks WHERE resource_id = 'orders'))")
	return func() { stack.MustExec(t, conn, "COMMIT") }
}

// A seal that fails is no lock: it is given back, and the reply says so.
func TestASealThatFails(t *testing.T) {
	t.Parallel()
	w := start(t)
	unsealable(t, w)
	c := w.dialRaw(t)
	for command, want := range map[string]string{
		"SET " + w.lock + " a NX PX 60000":     "$-1",
		"SET " + w.lock + " a PX 60000 NX GET": "-ERR wirefence: the grant of the lock can't be sealed…",
		"SETNX " + w.lock + " a":               "-ERR wirefence: …",
		"SET " + w.lock + " a":                 "-ERR wirefence: …",
		"HSET " + w.lock + " owner a":          "-ERR wirefence: …",
	} {
		c.does(command, want)
		c.does("EXISTS "+w.lock, ":0")
		w.wantFence(t, "")
	}
	c.send("MULTI", "INCR n-"+w.lock, "SET "+w.lock+" a NX", "EXEC")
	for _, want := range []string{"+OK", "+QUEUED", "+QUEUED", "-ERR wirefence: …"} {
		c.gets(want)
	}
	c.does("HELLO 3", "%…")
	c.does("SET "+w.lock+" a NX", "_")
	c.does("EXISTS "+w.lock, ":0")
	if !strings.Contains(w.log.String(), "cannot seal the grant of a lock in Redis") {
		t.Error("nothing was logged")
	}
}

// What a client sends during a seal is answered behind it.
func TestTheReplyIsHeldBackDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 5, 'before', '"+string(Source)+"')")
	release := held(t, w)
	c, other := w.dialRaw(t), w.dialRaw(t)
	c.send("SET " + w.lock + " a NX PX 60000")
	direct := w.direct(t)
	stack.Eventually(t, "Redis has it", func() bool { return direct.Exists(t.Context(), w.lock).Val() == 1 })
	c.send("PING behind")
	other.does("SET "+w.lock+" b NX PX 60000", "$-1") // doesn't wait
	w.wantFence(t, "")
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if b, err := c.r.ReadByte(); err == nil {
		t.Fatalf("byte %q came ahead of the seal", b)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	release()
	c.gets("+OK")
	c.gets("$6 behind")
	w.wantFence(t, "orders=6")
}

func TestTheClientGoesDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 5, 'before', '"+string(Source)+"')")
	release := held(t, w)
	defer release()
	c, direct := w.dialRaw(t), w.direct(t)
	c.send("SET " + w.lock + " a NX PX 60000")
	stack.Eventually(t, "Redis has it", func() bool { return direct.Exists(t.Context(), w.lock).Val() == 1 })
	_ = c.Close()
	stack.Eventually(t, "Redis has it", func() bool { return direct.Exists(t.Context(), w.lock).Val() == 0 })
	w.wantFence(t, "")
}

func TestTheLocksTimePassesDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 5, 'before', '"+string(Source)+"')")
	release := held(t, w)
	defer release()
	c := w.dialRaw(t)
	c.does("SET "+w.lock+" a NX PX 200", "$-1")
	w.wantFence(t, "")
}

// A grant whose lock has become another's during its seal gets no higher token, and doesn't free
// the other's lock.
func TestTheLockBecomesAnothersDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	other := w.beside(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 1, 'before', '"+string(Source)+"')")
	release := held(t, w)
	c, d, direct := w.dialRaw(t), other.dialRaw(t), w.direct(t)
	direct.HSet(t.Context(), newTrack(w.locks.locks[w.lock], 0, nil).state, "token", 1)
	c.send("SET " + w.lock + " a NX PX 60000")
	stack.Eventually(t, "Redis has it", func() bool { return direct.Exists(t.Context(), w.lock).Val() == 1 })
	direct.Del(t.Context(), w.lock)
	d.send("SET " + w.lock + " b NX PX 60000")
	stack.Eventually(t, "Redis has it", func() bool { return direct.Get(t.Context(), w.lock).Val() == "b" })
	release()
	d.gets("+OK")
	other.wantFence(t, "orders=3")
	if reply := c.reply(); reply == "+OK" { // the seals came in the locks' order; then the first lease is stale
		w.wantFence(t, "orders=2")
	} else {
		w.wantFence(t, "")
	}
	w.wantSealed(t, 3)
	if got := direct.Get(t.Context(), w.lock).Val(); got != "b" {
		t.Errorf("the lock has %q", got)
	}
	// Played on its own: the token 2 finds 3 recorded, and the lock isn't its grant's any more.
	l := look{granted: true, token: 2, own: true, holder: "=a"}
	tr := w.track(w.locks.locks[w.lock], 0)
	if err := w.grant(t.Context(), tr, l); err != errLockLost {
		t.Errorf("%v", err)
	}
	if got := direct.Get(t.Context(), w.lock).Val(); got != "b" {
		t.Errorf("the lock has %q", got)
	}
}

// Scripts can't write where the state isn't a hash: no grant is counted, so there is no lock.
func TestAStateThatIsNoHash(t *testing.T) {
	t.Parallel()
	w := start(t)
	direct, c := w.direct(t), w.dialRaw(t)
	c.does("SET "+w.lock+" a NX", "+OK")
	w.wantFence(t, "orders=1")
	direct.Set(t.Context(), "wirefence:{0:"+w.lock+"}", "x", 0)
	c.does("DEL "+w.lock, ":1")
	w.wantFence(t, "")
	c.does("SET "+w.lock+" a NX", "$-1")
	c.does("SET "+w.lock+" a", "-ERR wirefence: …")
	c.does("EXISTS "+w.lock, ":0")
	direct.Del(t.Context(), "wirefence:{0:"+w.lock+"}")
	c.does("SET "+w.lock+" a NX", "+OK")
	w.wantFence(t, "orders=2")
}

// Shutdown waits for a seal, and for what was sent before.
func TestShutdownWaitsForASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.db.Exec(t, "SELECT wirefence.seal('orders', 5, 'before', '"+string(Source)+"')")
	release := held(t, w)
	c, idle, direct := w.dialRaw(t), w.dialRaw(t), w.direct(t)
	idle.does("PING", "+PONG")
	c.send("SET " + w.lock + " a NX PX 60000")
	stack.Eventually(t, "Redis has it", func() bool { return direct.Exists(t.Context(), w.lock).Val() == 1 })
	ended := make(chan error)
	go func() { ended <- w.Shutdown(context.Background()) }()
	if _, err := idle.r.ReadByte(); err == nil {
		t.Error("an idle connection stays")
	}
	release()
	c.gets("+OK")
	w.wantFence(t, "orders=6")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c, blocked := dialRaw(t, w.redis.Addr()), start(t)
	d := blocked.dialRaw(t)
	d.send("BLPOP nothing 0")
	stack.Eventually(t, "Redis has it", func() bool { c.send("CLIENT LIST"); return strings.Contains(c.reply(), "cmd=blpop") })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := blocked.Shutdown(ctx); err != context.DeadlineExceeded {
		t.Error(err)
	}
}
