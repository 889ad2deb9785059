package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// held records a token and keeps a transaction open under it, for which each seal waits.
func held(t *testing.T, w *world, recorded string) (release func()) {
	t.Helper()
	w.db.Exec(t, "SELECT wirefence.seal('orders', "+recorded+", 'before', '"+string(Source)+"')")
	conn := w.db.Direct(t)
	stack.MustExec(t, conn, "BEGIN")
	stack.MustExec(t, conn, "SELECT wirefence.check('orders="+recorded+"')")
	return func() { stack.MustExec(t, conn, "COMMIT") }
}

// sealing starts an application whose grant waits for its seal, as long as the test holds it up.
func sealing(t *testing.T) (w *world, c *conn, release func()) {
	t.Helper()
	w = start(t)
	release, c = held(t, w, "5"), w.dialRaw(t)
	c.send("SET " + w.lock + " a NX PX 60000")
	w.eventually(t, "1")
	return w, c, release
}

// eventually waits until the lock is there, or isn't.
func (w *world) eventually(t *testing.T, exists string) {
	t.Helper()
	c := dialRaw(t, w.redis.Addr())
	stack.Eventually(t, w.lock+" exists: "+exists, func() bool {
		c.send("EXISTS " + w.lock)
		return c.reply() == ":"+exists
	})
}

// What a client sends during a seal is answered behind it.
func TestTheReplyIsHeldBackDuringASeal(t *testing.T) {
	t.Parallel()
	w, c, release := sealing(t)
	c.send("PING behind")
	w.dialRaw(t).does("SET "+w.lock+" b NX PX 60000", "$-1") // doesn't wait
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
	w, c, release := sealing(t)
	defer release()
	_ = c.Close()
	w.eventually(t, "0")
	w.wantFence(t, "")
}

func TestTheLocksTimePassesDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	defer held(t, w, "5")()
	w.dialRaw(t).does("SET "+w.lock+" a NX PX 200", "$-1")
	w.wantFence(t, "")
}

// A grant whose lock has become another's during its seal gets no higher token, and doesn't free
// the other's lock.
func TestTheLockBecomesAnothersDuringASeal(t *testing.T) {
	t.Parallel()
	w := start(t)
	other := w.beside(t)
	release := held(t, w, "1")
	c, d, direct := w.dialRaw(t), other.dialRaw(t), w.direct(t)
	direct.HSet(t.Context(), newTrack(w.locks.locks[w.lock], 0, nil).state, "token", 1)
	c.send("SET " + w.lock + " a NX PX 60000")
	w.eventually(t, "1")
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

// Shutdown waits for a seal, and for what was sent before.
func TestShutdownWaitsForASeal(t *testing.T) {
	t.Parallel()
	w, c, release := sealing(t)
	idle := w.dialRaw(t)
	idle.does("PING", "+PONG")
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
