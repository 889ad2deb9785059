package fencingtest

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// said is a witness that says what a test tells it: the index of the server that leads, and
// silent for none.
type said struct{ leader atomic.Int64 }

const silent = -1

func (s *said) Leads(_ context.Context, server int) (leads bool, address netip.Addr, err error) {
	if s.leader.Load() == silent {
		return false, address, errors.New("nobody answers")
	}
	return s.leader.Load() == int64(server), address, nil
}

// On a server that the witness no longer confirms, sessions with a fence end within the bound, and
// so do their statements. Others go on, and all is as before once it is confirmed again.
func TestUnconfirmedSessionsEnd(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		const bound = 2 * time.Second // a busy machine may not confirm for a second
		var witness said
		w = w.own(t, proxy.Options{Hold: w.period(), DatabaseURL: w.URL(w.Name), Witness: &witness, WitnessBound: bound})
		confirmed := func(want int) {
			t.Helper()
			stack.Eventually(t, "the metric changes", func() bool {
				return w.metric(t, "wirefence_upstream_confirmed", nil) == want
			})
		}
		ready := func() string {
			answer := httptest.NewRecorder()
			w.server.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/readyz", nil))
			text, _ := io.ReadAll(answer.Body)
			return string(text)
		}
		confirmed(1)
		if text := ready(); !strings.Contains(text, ", confirmed as the leader") {
			t.Error(text)
		}
		idle, running, unfenced := w.fenced(t, "orders=34"), w.fenced(t, "orders=34"), stack.Login(t, w.proxy, w.Name)
		idle.Must(insertOf(34), insertOf(34))
		running.Must(insertOf(34), insertOf(34), "BEGIN", insertOf(34))
		running.Send(stack.Unnamed("SELECT pg_sleep(60)")...)
		running.Send(&pgproto3.Sync{})
		unfenced.Must("BEGIN", "INSERT INTO jobs VALUES (1)")

		witness.leader.Store(silent)
		fell := time.Now()
		for _, c := range []*client{idle, running} {
			if err := c.End(); stack.State(err) != "57P01" {
				t.Errorf("a session with a fence ended with %v", err)
			}
		}
		if took := time.Since(fell); took > bound+stack.Patience/4 {
			t.Errorf("it took %v", took)
		}
		stack.Eventually(t, "its statement ends", func() bool {
			return !stack.Value[bool](t, w.DB, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid() AND state = 'active')")
		})
		confirmed(0)
		if text := ready(); !strings.Contains(text, "not confirmed as the leader within 2s") {
			t.Error(text)
		}
		unfenced.Must("COMMIT", "SELECT 1")
		if err := unfenced.Simple("SELECT 1 /*wirefence.token='orders=34'*/"); stack.State(err) != "57P01" {
			t.Errorf("a fence in an open session: %v", err)
		}

		witness.leader.Store(0)
		confirmed(1)
		w.fenced(t, "orders=34").Must(insertOf(34), insertOf(34))
	})
}
