package witness_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/witness"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// writer writes through a proxy until it can't, and notes when it got the last acknowledgment.
type writer struct {
	name string
	conn *pgx.Conn

	mu   sync.Mutex
	last time.Time // of the acknowledgments
	n    int
	err  error // that ended it
}

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, err := w.conn.Exec(ctx, "INSERT INTO journal (name) VALUES ($1)", w.name)
		w.mu.Lock()
		if err == nil {
			w.last = time.Now()
			w.n++
		} else {
			w.err = err
		}
		w.mu.Unlock()
		if err != nil {
			return
		}
		time.Sleep(5 * time.Millisecond) // not to be busy
	}
}

func (w *writer) seen() (last time.Time, n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.n, w.err
}

// A cluster is cut in two, and nobody demotes the old primary. On its side a fenced session gets
// no acknowledgment after the bound, which is before the other server is promoted. Sessions
// without a fence, and those of a proxy without a witness, are acknowledged all the time, and
// what they have written then is nowhere on the other side.
func TestAnIsolatedPrimary(t *testing.T) {
	stack.NeedsMore(t, "Patroni")
	patroni := stack.Started(servers.StartPatroni(t.Context())).EndWith(t)
	old, next := patroni.Members[0], patroni.Members[1]
	conn := stack.Connect(t, old.URL("postgres"))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"CREATE TABLE journal (name text)", "SELECT wirefence.seal('orders', 1, 'before')"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	elects := stack.Started(servers.StartLink(patroni.Electing())).EndWith(t)

	const bound = 3 * time.Second // the lock of the leader lasts for 10 s
	names := "names=" + old.Name + "," + next.Name
	both := []string{old.Server(), next.Server()}
	sideOfTheOld := map[string]string{ // by the name of the writers
		"etcd":    fmt.Sprintf("etcd://%s/service/wirefence/leader?bound=%v&names=%s", elects.Addr(), bound, old.Name),
		"patroni": fmt.Sprintf("patroni://%s?bound=%v", old.Addr(), bound),
		"none":    "",
	}
	var writers []*writer
	proxies := map[string]string{}
	for name, url := range sideOfTheOld {
		o := proxy.Options{Upstream: "postgres://" + old.Server() + "/", DatabaseURL: old.URL("postgres")}
		testWith(t, &o, url, both[:1])
		proxies[name] = stack.Serve(t, o).Addr
		for _, fenced := range []bool{true, false} {
			w := &writer{name: fmt.Sprintf("%s fenced=%v", name, fenced), conn: login(t, proxies[name], fenced)}
			writers = append(writers, w)
		}
	}
	ctx, end := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for _, w := range writers {
		writing.Go(func() { w.run(ctx) })
	}
	t.Cleanup(func() { end(); writing.Wait() })
	for _, w := range writers {
		stack.Eventually(t, w.name+" writes", func() bool { _, n, _ := w.seen(); return n > 20 })
	}

	old.Replicated.Hold()
	elects.Hold()
	old.Abandon()
	cut := time.Now()
	if err := next.AwaitPrimary(t.Context()); err != nil {
		t.Fatal(err)
	}
	promoted := time.Now()
	t.Logf("promoted %v after the cut", promoted.Sub(cut))

	// On the other side, with both servers and the witness that elects, the next holder writes.
	o := proxy.Options{
		Upstream:    "postgres://" + both[0] + "," + both[1] + "/?target_session_attrs=read-write",
		DatabaseURL: next.URL("postgres"),
	}
	testWith(t, &o, fmt.Sprintf("etcd://%s/service/wirefence/leader?bound=%v&%s", patroni.Electing(), bound, names), both)
	other := stack.Serve(t, o).Addr
	token := fence.Token(0)
	stack.Eventually(t, "a grant on the new primary", func() bool {
		conn := stack.Connect(t, next.URL("postgres"))
		defer conn.Close(t.Context())
		if last, err := fence.LastToken(t.Context(), conn, "orders"); err != nil || token == 0 {
			token = max(last, 1) + 1
		}
		sealed, err := fence.Seal(t.Context(), conn, fence.Grant{Resource: "orders", Token: token, Holder: "after"})
		if err == nil && !sealed {
			token = 0
		}
		return sealed
	})
	stack.Eventually(t, "a fenced write on the new primary", func() bool {
		conn, err := pgx.Connect(t.Context(), "postgres://postgres@"+other+"/postgres?sslmode=disable")
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO journal VALUES ('after') /*wirefence.token='orders=%d'*/", token))
		return err == nil
	})
	for _, w := range writers { // those that go on do so behind the promotion
		stack.Eventually(t, w.name+" has ended or goes on", func() bool {
			last, _, err := w.seen()
			return err != nil || last.After(promoted)
		})
		last, n, err := w.seen()
		goesOn := w.name != "etcd fenced=true" && w.name != "patroni fenced=true"
		t.Logf("%s: %d writes, the last %v after the cut; %v", w.name, n, last.Sub(cut).Round(time.Millisecond), err)
		switch {
		case goesOn && err != nil:
			t.Errorf("%s: %v", w.name, err)
		case !goesOn && (stack.State(err) != "57P01" || last.Sub(cut) > bound+100*time.Millisecond || last.After(promoted)):
			t.Errorf("%s: the last acknowledgment came %v after the cut: %v", w.name, last.Sub(cut), err)
		}
	}
	// A new session there may read and write without a fence, but not with one.
	for _, name := range []string{"etcd", "patroni"} {
		conn := login(t, proxies[name], false)
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT 1 /*wirefence.token='orders=1'*/"); stack.State(err) != "57P01" {
			t.Errorf("%s: a fenced statement on the old primary: %v", name, err)
		}
	}
	elects.Restore()
	var others int
	if err := stack.Connect(t, next.URL("postgres")).QueryRow(t.Context(), "SELECT count(*) FROM journal WHERE name = 'after'").Scan(&others); err != nil || others != 1 {
		t.Errorf("%d rows of the next holder: %v", others, err)
	}
}

// testWith gives a proxy the witness of a connection string.
func testWith(t *testing.T, o *proxy.Options, url string, upstream []string) {
	t.Helper()
	if url == "" {
		return
	}
	w, err := witness.Open(url, upstream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	o.Witness, o.WitnessBound = w, w.Bound
}

// login logs in through a proxy.
func login(t *testing.T, addr string, fenced bool) *pgx.Conn {
	t.Helper()
	conn := stack.Connect(t, "postgres://postgres@"+addr+"/postgres?sslmode=disable")
	if fenced {
		stack.Eventually(t, "the witness confirms the primary", func() bool {
			if _, err := conn.Exec(t.Context(), "SET wirefence.token = 'orders=1'; SELECT 1"); err == nil {
				return true
			}
			conn = stack.Connect(t, "postgres://postgres@"+addr+"/postgres?sslmode=disable")
			return false
		})
	}
	return conn
}
