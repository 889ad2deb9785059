package fencingtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// standby is a world behind a proxy whose lease isn't held.
type standby struct {
	*world
	lease *lease
}

func newStandby(t *testing.T, o proxy.Options) *standby {
	t.Helper()
	l := newLease("")
	o.Lease = l
	return &standby{newWorld(t, oldAndNew[0]).own(t, o), l}
}

// comes connects in the background.
func (s *standby) comes(t *testing.T) <-chan error {
	over := make(chan error, 1)
	go func() {
		c, err := stack.TryLogin(t, s.proxy, s.Name)
		if err == nil {
			err = c.Simple(insert)
		}
		over <- err
	}()
	return over
}

// waiting returns when so many clients wait for the lease.
func (s *standby) waiting(t *testing.T, want int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%d clients wait", want), func() bool { return s.metric(t, "wirefence_standby_waiting", nil) == want })
}

// With refuse and wait, each session ends with its transaction when the lease is lost.
func TestSessionsEndWithTheLease(t *testing.T) {
	t.Parallel()
	for _, mode := range []proxy.Standby{proxy.Refuse, proxy.Wait} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := newStandby(t, proxy.Options{Standby: mode})
			s.lease.set("orders=34")
			idle, busy, stubborn := s.connect(t), s.connect(t), s.connect(t)
			busy.Must("begin", insert)
			stubborn.Must("begin", insert)
			s.lease.set("")
			stack.WantState(t, idle.End(), "57P01", "idle")
			busy.Must("select 1")
			if err := busy.Simple("commit"); err != nil && stack.State(err) != "57P01" {
				t.Errorf("the COMMIT of what was checked: %v", err)
			}
			stack.WantState(t, stubborn.Simple(insert), "WF007", "a write behind the loss")
			_ = stubborn.Simple("rollback")
			if err := stubborn.Simple("select 1"); stack.State(err) != "57P01" && !stubborn.Ended() {
				t.Errorf("behind its transaction: %v", err)
			}
			s.wantRows(t, 1)
			s.lease.set("orders=34")
			s.connect(t).Must(insert)
		})
	}
}

// A client like libpq that gets 57P03 tries its next host.
func TestRefusingStandby(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{Standby: proxy.Refuse})
	_, err := stack.TryLogin(t, s.proxy, s.Name)
	stack.WantState(t, err, "57P03")
	if text := fmt.Sprint(err); !strings.Contains(text, `the lease of "orders" is not held here`) {
		t.Errorf("refused by %s", text)
	}
	leader := s.own(t, proxy.Options{Lease: newLease("orders=34"), Standby: proxy.Refuse})
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable", s.proxy, leader.proxy, s.Name))
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

// A client waits for the lease before its login. The proxy notices when it leaves, and tells it
// when the proxy ends.
func TestWaitingStandby(t *testing.T) {
	t.Parallel()
	certificate := authority.New(t).Issue(t, "localhost")
	s := newStandby(t, proxy.Options{Standby: proxy.Wait, TLS: proxy.TLS{CertFile: certificate.CertFile, KeyFile: certificate.KeyFile}})
	s.lease.set("orders=34")
	busy := s.connect(t)
	plain := s.comes(t)
	stack.WantState(t, <-plain, "", "while the lease is held")
	s.Exec(t, "truncate jobs")

	busy.Must("begin") // it stays
	s.lease.set("")
	all := []<-chan error{s.comes(t), s.comesByTLS(t)}
	s.waiting(t, 2)
	gone := stack.Raw(t, s.proxy)
	if _, err := gone.Write(stack.Startup(pgproto3.ProtocolVersion30, s.Name)); err != nil {
		t.Fatal(err)
	}
	s.waiting(t, 3)
	_ = gone.Close()
	s.waiting(t, 2)

	over := make(chan error, 1)
	go func() { over <- busy.Simple("select pg_sleep(600)") }()
	stack.Eventually(t, "it sleeps", func() bool {
		return stack.Value[bool](t, s.DB, "select exists(select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database())")
	})
	busy.Cancel()
	stack.WantState(t, <-over, "57014", "a cancel request on standby")

	s.lease.set("orders=34")
	for _, waited := range all {
		stack.WantState(t, <-waited, "", "a client that waited")
	}
	s.wantRows(t, 2)

	s.lease.set("")
	last := s.comes(t)
	s.waiting(t, 1)
	_ = busy.Simple("rollback")
	s.server.Drain()
	stack.WantState(t, <-last, "57P01", "a client that waits for a proxy that ends")
	if err := s.server.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWaitingStandbyHasEnough(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{Standby: proxy.Wait, StandbyWait: 50 * time.Millisecond})
	stack.WantState(t, <-s.comes(t), "57P03")
	s.waiting(t, 0)
}

func (s *standby) comesByTLS(t *testing.T) <-chan error {
	c := stack.DialTLS(t, s.proxy, &tls.Config{InsecureSkipVerify: true})
	over := make(chan error, 1)
	go func() {
		err := c.Login(s.Name)
		if err == nil {
			err = c.Simple(insert)
		}
		over <- err
	}()
	return over
}

// A server that is stopped isn't ready, though the system accepts connections for it.
func TestReadyNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	server := stack.Serve(t, proxy.Options{Upstream: "postgres://" + pg.Addr() + "/", ConnectTimeout: time.Second})
	ready := func() int {
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return answer.Code
	}
	if err := pg.Pause(); err != nil || ready() != 503 {
		t.Errorf("a stopped server is ready, %v", err)
	}
	if err := pg.Resume(); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "it is ready", func() bool { return ready() == 200 })
}

func TestReadyByRole(t *testing.T) {
	t.Parallel()
	s := newStandby(t, proxy.Options{})
	ask := func(query string) int {
		answer := httptest.NewRecorder()
		s.server.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz"+query, nil))
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
	s.server.Drain()
	if err := s.server.Wait(); err != nil {
		t.Error(err)
	}
	if got := ask("?role=leader"); got != 503 {
		t.Errorf("a leader that has drained answers %d", got)
	}
	plain := s.own(t, proxy.Options{})
	answer := httptest.NewRecorder()
	plain.server.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz?role=leader", nil))
	if answer.Code != 400 {
		t.Errorf("without a lease /readyz?role=leader answers %d", answer.Code)
	}
}
