package fencingtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// PostgreSQL tells a session that a takeover ends of an administrator's command. If the session
// had a fence, the proxy adds an explanation, and logs it.
func TestAnEndedTransactionIsExplained(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		var log stack.Log
		w = w.own(t, proxy.Options{Logger: log.Logger()})
		const ofOrders = `under a fence of "orders", and`
		for n, c := range []struct {
			name      string
			options   string
			sql       []string
			explained string // "" where it isn't
		}{
			{"startup options", "-c wirefence.token=orders=34", []string{"begin", insert}, ofOrders},
			{"comment", "", []string{"begin", insert + "/*wirefence.token='orders=34'*/"}, ofOrders},
			{"two in a comment", "", []string{"begin", insert + "/*wirefence.token='orders=34,we%22ird=7'*/"}, `under a fence of "orders", "we""ird", and`},
			{"variable", "", []string{"set wirefence.token = 'orders=34'", "begin", insert}, "under a fence, and"},
			{"variable after options", "-c wirefence.token=other=34", []string{"set wirefence.token = 'orders=34'", "begin", insert}, "under a fence, and"},
			{"no fence", "", []string{"begin", insert}, ""},
			{"a fence before", "", []string{insert + "/*wirefence.token='orders=34'*/", "select pg_sleep(0.2)", "select 1", "begin", insert}, ""},
		} {
			w.unseal(t)
			w.Seal(t, "orders", 34)
			client := w.connect(t, "user", "app", "options", c.options, "application_name", fmt.Sprint("client ", n))
			client.Must(c.sql...)
			pid, _ := client.Key()
			if c.explained != "" {
				w.Exec(t, "select wirefence.revoke('orders')")
			} else {
				stack.MustExec(t, w.Admin, "select pg_terminate_backend($1)", int32(pid))
			}
			err := client.End()
			stack.WantState(t, err, "57P01", c.name)
			end := (*pgconn.PgError)(nil)
			if !errors.As(err, &end) || end.Message != "terminating connection due to administrator command" || end.Severity != "FATAL" {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			line := fmt.Sprintf("sqlstate=57P01 reason=%q pid=%d", end.Message, pid)
			if c.explained == "" {
				if end.Detail != "" || end.Hint != "" || strings.Contains(log.String(), line) {
					t.Errorf("%s: explained by %q, %q", c.name, end.Detail, end.Hint)
				}
				continue
			}
			if !strings.Contains(end.Detail, c.explained) || !strings.Contains(end.Hint, "wirefence history") {
				t.Errorf("%s: explained by %q, %q", c.name, end.Detail, end.Hint)
			}
			if n == 0 { // later ones come within a second of it
				log.Await(t, line+` resources=[orders]`)
			}
		}
	})
}
