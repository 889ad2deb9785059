package securitytest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// split promotes the standby of a primary that goes on.
type split struct {
	old, promoted *servers.Postgres
	*stack.Running
	metrics *prometheus.Registry
}

func newSplit(t *testing.T) *split {
	t.Helper()
	s := &split{metrics: prometheus.NewRegistry()}
	s.old, s.promoted = couple(t)
	s.Running = stack.Serve(t, proxy.Options{
		Upstream: both(s.old, s.promoted, "target_session_attrs=read-write"), DatabaseURL: s.old.URL("postgres"), Registerer: s.metrics,
	})
	s.await(t, "primary, timeline 1", "standby")
	return s
}

func (s *split) promote(t *testing.T) {
	t.Helper()
	if err := s.promoted.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// await waits until /readyz tells of both servers so.
func (s *split) await(t *testing.T, old, promoted string) {
	t.Helper()
	want := fmt.Sprintf("ok\n%s: %s\n%s: %s\n", s.old.Addr(), old, s.promoted.Addr(), promoted)
	got := ""
	for end := time.Now().Add(stack.Patience); got != want && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		answer := httptest.NewRecorder()
		s.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		got = answer.Body.String()
	}
	if got != want {
		t.Fatalf("/readyz says\n%s\nnot\n%s", got, want)
	}
}

// A primary that goes on beside the one that was promoted gets no new session, and those
// that are open there end, whatever they are doing.
func TestAnOldPrimaryIsLeft(t *testing.T) {
	t.Parallel()
	s := newSplit(t)
	url := stack.URL(s.Addr, "postgres")
	idle, open, busy := stack.Connect(t, url), stack.Connect(t, url), stack.Connect(t, url)
	if _, err := open.Exec(t.Context(), "BEGIN; CREATE TABLE half (id int)"); err != nil {
		t.Fatal(err)
	}
	running := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "SELECT pg_sleep(60)")
		running <- err
	}()
	s.promote(t)
	began := time.Now()
	for name, err := range map[string]error{"busy": <-running, "idle": awaitEnd(idle), "in a transaction": awaitEnd(open)} {
		if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || refusal.Code != "57P01" || !strings.Contains(refusal.Detail, "timeline 2 was seen") {
			t.Errorf("the %s session ends with %v", name, err)
		}
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("sessions ended %v behind the promotion", took)
	}
	s.await(t, "primary, timeline 1, left behind by a promotion", "primary, timeline 2")
	for range 10 {
		wants(t, "a new session", psql(t, s.Addr, "user=postgres", whichPort), fmt.Sprint(s.promoted.Port))
	}
	var n int
	if err := stack.Connect(t, s.old.URL("postgres")).QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'wirefence' AND pid <> pg_backend_pid()").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d backends are left at the old primary, %v", n, err)
	}
	if err := testutil.GatherAndCompare(s.metrics, strings.NewReader(fmt.Sprintf(`
# HELP wirefence_upstream_behind 1 for a primary that was left behind by a promotion: no session is opened there.
# TYPE wirefence_upstream_behind gauge
wirefence_upstream_behind{host="%[1]s"} 1
wirefence_upstream_behind{host="%[2]s"} 0
# HELP wirefence_upstream_timeline The timeline of a primary, as it was seen last.
# TYPE wirefence_upstream_timeline gauge
wirefence_upstream_timeline{host="%[1]s"} 1
wirefence_upstream_timeline{host="%[2]s"} 2
`, s.old.Addr(), s.promoted.Addr())), "wirefence_upstream_behind", "wirefence_upstream_timeline"); err != nil {
		t.Error(err)
	}
	s.promoted.Kill()
	wants(t, "with the old primary alone", psql(t, s.Addr, "user=postgres", whichPort), "timeline 2 was seen")
}

// awaitEnd asks for nothing, until the session says why it ends.
func awaitEnd(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), stack.Patience)
	defer cancel()
	for {
		if _, err := conn.PgConn().ReceiveMessage(ctx); err != nil {
			return err
		}
	}
}

// An old primary that comes back later gets no session either.
func TestAnOldPrimaryComesBack(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	t.Parallel()
	s := newSplit(t)
	s.old.Kill()
	s.promote(t)
	s.await(t, "primary, timeline 1, not to be asked, left behind by a promotion", "primary, timeline 2")
	if err := s.old.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		wants(t, "a new session", psql(t, s.Addr, "user=postgres", whichPort), fmt.Sprint(s.promoted.Port))
	}
}
