package relay

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// In the client's own transaction the scripts are put around its commands, and their replies taken
// out, whether the client waits for each reply or sends all at once.
func TestLocksInTransactions(t *testing.T) {
	t.Parallel()
	w := start(t)
	n := "n-" + w.lock
	for i, together := range []bool{false, true} {
		c := w.dialRaw(t)
		play := func(steps ...string) { // commands and their replies in turn
			t.Helper()
			var commands []string
			for i := 0; i < len(steps); i += 2 {
				if commands = append(commands, steps[i]); !together {
					c.does(steps[i], steps[i+1])
				}
			}
			if together {
				c.send(commands...)
				for i := 1; i < len(steps); i += 2 {
					c.gets(steps[i])
				}
			}
		}
		play("SET "+n+" 5", "+OK", "MULTI", "+OK", "INCR "+n, "+QUEUED", "SET "+w.lock+" a NX PX 60000", "+QUEUED",
			"GET "+w.lock, "+QUEUED", "PEXPIRE "+w.lock+" 50000", "+QUEUED", "EXEC", "*4 :6 +OK $1 a :1", "GET "+n, "$1 6")
		w.wantFence(t, "orders="+itoa(2*i+1))
		play("MULTI", "+OK", "PING", "+QUEUED", "MULTI", "-ERR MULTI calls…", "DEL "+w.lock, "+QUEUED", "SET "+w.lock+" a", "+QUEUED", "EXEC", "*3 +PONG :1 +OK")
		w.wantFence(t, "orders="+itoa(2*i+1)) // the same value as ahead
		play("MULTI", "+OK", "SET "+w.lock+" b", "+QUEUED", "DISCARD", "+OK", "PING", "+PONG",
			"MULTI", "+OK", "SET "+w.lock+" b", "+QUEUED", "NOSUCH x", "-ERR unknown…", "EXEC", "-EXECABORT…",
			"MULTI", "+OK", "SET "+w.lock, "-ERR wrong…", "EXEC", "-EXECABORT…", "MULTI", "+OK", "EXEC", "*0")
		w.wantFence(t, "orders="+itoa(2*i+1))
		play("MULTI", "+OK", "SET "+w.lock+" b", "+QUEUED", "DEL x-"+w.lock, "+QUEUED", "EXEC", "*2 +OK :0")
		w.wantFence(t, "orders="+itoa(2*i+2))
		play("MULTI", "+OK", "DEL "+w.lock, "+QUEUED", "EXEC", "*1 :1", "PING", "+PONG")
		w.wantFence(t, "")
	}
}

// Under WATCH nothing is wrapped: the relay's EXEC would end it. A lock's command is refused, and a
// transaction with one isn't run.
func TestUnderWatch(t *testing.T) {
	t.Parallel()
	w := start(t)
	n := "n-" + w.lock
	c, other := w.dialRaw(t), w.dialRaw(t)
	c.does("WATCH "+n, "+OK")
	c.send("GET "+n, "SET "+w.lock+" a NX", "GET "+n)
	for _, want := range []string{"$-1", "-ERR wirefence: a lock's command can't be followed under WATCH…", "$-1"} {
		c.gets(want)
	}
	c.send("MULTI", "INCR "+n, "SET "+w.lock+" a NX", "INCR "+n, "EXEC")
	for _, want := range []string{"+OK", "+QUEUED", "-ERR wirefence: …", "+QUEUED", "-EXECABORT…"} {
		c.gets(want)
	}
	c.does("SET "+w.lock+" a NX", "+OK") // EXEC has ended it
	w.wantFence(t, "orders=1")

	// What WATCH is for works.
	c.does("WATCH "+n, "+OK")
	other.does("SET "+n+" 7", "+OK")
	c.does("MULTI", "+OK")
	c.does("INCR "+n, "+QUEUED")
	c.does("EXEC", "*-1")
	c.does("GET "+n, "$1 7")
	for _, end := range []string{"UNWATCH", "DISCARD"} {
		c.does("WATCH "+n, "+OK")
		if end == "DISCARD" {
			c.does("MULTI", "+OK")
		}
		c.does(end, "+OK")
		c.does("PEXPIRE "+w.lock+" 60000", ":1")
	}
}

// SELECT inside of MULTI takes effect with EXEC, or doesn't: locks can't be followed until the next
// one outside.
func TestSelectInsideATransaction(t *testing.T) {
	t.Parallel()
	w := start(t)
	c := w.dialRaw(t)
	for _, command := range []string{"MULTI", "SELECT 7", "EXEC"} {
		c.send(command)
		c.reply()
	}
	c.does("SET "+w.lock+" a NX", "-ERR wirefence: a lock's command can't be followed behind a SELECT…")
	c.send("MULTI", "SET "+w.lock+" a NX", "EXEC")
	for _, want := range []string{"+OK", "-ERR wirefence: …", "-EXECABORT…"} {
		c.gets(want)
	}
	c.does("SELECT 0", "+OK")
	c.does("SET "+w.lock+" a NX", "+OK")
	w.wantFence(t, "orders=1")
}

// Connections whose replies can't be matched keep working, and end at a lock's command.
func TestConnectionsOnWhichLocksCannotBeFollowed(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, begin := range []string{"SUBSCRIBE x", "PSUBSCRIBE x*", "MONITOR", "CLIENT REPLY SKIP"} {
		c := w.dialRaw(t)
		if c.send(begin); !strings.HasPrefix(begin, "CLIENT") {
			c.reply()
		}
		c.send("PING", "DEL "+w.lock)
		for {
			reply, err := c.r.ReadString('\n')
			if err != nil {
				t.Fatalf("%s: %v", begin, err)
			}
			if strings.HasPrefix(reply, "-ERR wirefence") || strings.HasPrefix(reply, "-ERR a lock") {
				break
			}
		}
		// The answer to the PING may come behind it.
		if _, err := io.Copy(io.Discard, c.r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection stays", begin)
		}
	}
	c := w.dialRaw(t)
	for _, command := range []string{"MULTI", "RESET"} {
		c.send(command)
		c.reply()
	}
	c.does("GET none-"+w.lock, "$-1")
	c.send("DEL " + w.lock)
	c.gets("-ERR wirefence: …")
}
