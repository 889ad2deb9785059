package fencingtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// standby is a proxy whose lease isn't held.
type standby struct {
	*database
	*stack.Running
	lease   *lease
	metrics *prometheus.Registry
}

func newStandby(t *testing.T, o proxy.Options) *standby {
	t.Helper()
	db := newDatabase(t, 15, template)
	db.seal(t, "orders", 34)
	own, metrics := *db, prometheus.NewRegistry()
	o.Lease, o.Upstream, o.Registerer = newLease(""), "postgres://"+db.Addr()+"/", metrics
	s := &standby{&own, stack.Serve(t, o), o.Lease.(*lease), metrics}
	own.proxy = s.Running.Addr
	return s
}

// comes connects in the background.
func (s *standby) comes(t *testing.T) <-chan error {
	over := make(chan error, 1)
	go func() {
		c, err := s.dial(t, s.proxy)
		if err == nil {
			err = c.simple(insert)
		}
		over <- err
	}()
	return over
}

// waiting returns when so many clients wait for the lease.
func (s *standby) waiting(t *testing.T, want int) {
	t.Helper()
	c := counted{s.database, s.metrics}
	for deadline := time.Now().Add(patience); c.gauge(t, "wirefence_standby_waiting") != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients wait, not %d", c.gauge(t, "wirefence_standby_waiting"), want)
		}
	}
}

func (c *counted) gauge(t *testing.T, name string) int {
	t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return int(f.Metric[0].GetGauge().GetValue())
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// ends reads on until the session does, and returns why.
func (c *client) ends() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		if err := c.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

// With refuse and wait there are sessions only while the lease is held: when it is
// lost each ends with its transaction.
func TestSessionsEndWithTheLease(t *testing.T) {
	t.Parallel()
	for _, mode := range []proxy.Standby{proxy.Refuse, proxy.Wait} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := newStandby(t, proxy.Options{Standby: mode})
			s.lease.set("orders=34")
			idle, busy, stubborn := s.connect(t), s.connect(t), s.connect(t)
			busy.must("begin", insert)
			stubborn.must("begin", insert)
			s.lease.set("")
			wantCode(t, idle.ends(), "57P01", "idle")
			busy.must("select 1")
			if err := busy.simple("commit"); err != nil && code(err) != "57P01" {
				t.Errorf("the COMMIT of what was checked: %v", err)
			}
			wantCode(t, stubborn.simple(insert), "WF007", "a write behind the loss")
			_ = stubborn.simple("rollback")
			if err := stubborn.simple("select 1"); code(err) != "57P01" && !stubborn.IsClosed() {
				t.Errorf("behind its transaction: %v", err)
			}
			s.wantRows(t, 1)
			s.lease.set("orders=34")
			s.connect(t).must(insert)
		})
	}
}

func TestReadOnlyStandbyKeepsItsSessions(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{})
	c := s.connect(t)
	c.must("select count(*) from jobs")
	c.fails(insert, "WF007")
	s.lease.set("orders=34")
	c.must(insert)
	s.lease.set("")
	c.fails(insert, "WF007")
	c.must("select 1")
}

// Refused with 57P03, a client of libpq's kind goes to its next host.
func TestRefusingStandby(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{Standby: proxy.Refuse})
	_, err := s.dial(t, s.proxy)
	wantCode(t, err, "57P03")
	if text := fmt.Sprint(err); !strings.Contains(text, `the lease of "orders" is not held here`) {
		t.Errorf("refused by %s", text)
	}
	leader := s.leased(t, newLease("orders=34"), proxy.Options{Standby: proxy.Refuse})
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable", s.proxy, leader.proxy, s.name))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), insert).ReadAll(); err != nil {
		t.Error(err)
	}
}

// A client waits for the lease before its login, no longer than it may; who goes
// meanwhile is noticed, and so is the end of the proxy.
func TestWaitingStandby(t *testing.T) {
	t.Parallel()
	certificate := authority.New(t).Issue(t, "localhost")
	s := newStandby(t, proxy.Options{Standby: proxy.Wait, TLS: proxy.TLS{CertFile: certificate.CertFile, KeyFile: certificate.KeyFile}})
	s.lease.set("orders=34")
	busy := s.connect(t)
	plain := s.comes(t)
	wantCode(t, <-plain, "", "while the lease is held")
	s.truncate(t)

	busy.must("begin") // it stays
	s.lease.set("")
	all := []<-chan error{s.comes(t), s.comesByTLS(t)}
	s.waiting(t, 2)
	gone, err := net.Dial("tcp", s.proxy)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Write(startupPacket(s.name)); err != nil {
		t.Fatal(err)
	}
	s.waiting(t, 3)
	_ = gone.Close()
	s.waiting(t, 2)

	over := make(chan error, 1)
	go func() { over <- busy.simple("select pg_sleep(600)") }()
	for running := false; !running; {
		running = value[bool](t, s.database, "select exists(select from pg_stat_activity where query like 'select pg_sleep(600)%' and state = 'active')")
	}
	if err := busy.CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	wantCode(t, <-over, "57014", "a cancel request on standby")

	s.lease.set("orders=34")
	for _, waited := range all {
		wantCode(t, <-waited, "", "a client that waited")
	}
	s.wantRows(t, 2)

	s.lease.set("")
	last := s.comes(t)
	s.waiting(t, 1)
	_ = busy.simple("rollback")
	s.Drain()
	wantCode(t, <-last, "57P01", "a client that waits for a proxy that ends")
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWaitingStandbyHasEnough(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{Standby: proxy.Wait, StandbyWait: 50 * time.Millisecond})
	wantCode(t, <-s.comes(t), "57P03")
	s.waiting(t, 0)
}

func (db *database) truncate(t *testing.T) { t.Helper(); db.exec(t, "truncate jobs") }

func (s *standby) comesByTLS(t *testing.T) <-chan error {
	over := make(chan error, 1)
	go func() {
		conn, err := pgconn.Connect(context.Background(), fmt.Sprintf("postgres://postgres@%s/%s?sslmode=require", s.proxy, s.name))
		if err == nil {
			_, err = conn.Exec(context.Background(), insert).ReadAll()
			_ = conn.Close(context.Background())
		}
		over <- err
	}()
	return over
}

// startupPacket asks for a session of the superuser.
func startupPacket(database string) []byte {
	body := "\x00\x03\x00\x00user\x00postgres\x00database\x00" + database + "\x00\x00"
	return append([]byte{0, 0, 0, byte(len(body) + 4)}, body...)
}

func TestReadyByRole(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{})
	ask := func(query string) int {
		answer := httptest.NewRecorder()
		s.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz"+query, nil))
		return answer.Code
	}
	for _, c := range []struct {
		fence, query string
		want         int
	}{
		{"", "", 200}, {"", "?role=leader", 503}, {"", "?role=standby", 200}, {"", "?role=king", 400},
		{"orders=34", "", 200}, {"orders=34", "?role=leader", 200}, {"orders=34", "?role=standby", 503},
	} {
		s.lease.set(c.fence)
		if got := ask(c.query); got != c.want {
			t.Errorf("with the lease %q /readyz%s answers %d, want %d", c.fence, c.query, got, c.want)
		}
	}
	s.Drain()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	if got := ask("?role=leader"); got != 503 {
		t.Errorf("a leader that has drained answers %d", got)
	}
	plain := stack.Serve(t, proxy.Options{Upstream: "postgres://" + s.Postgres.Addr() + "/"})
	answer := httptest.NewRecorder()
	plain.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz?role=leader", nil))
	if answer.Code != 400 {
		t.Errorf("without a lease /readyz?role=leader answers %d", answer.Code)
	}
}
