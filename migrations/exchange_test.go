package migrations_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/servers"
)

// exchange is the answer to one simple Query, byte for byte as a proxy reads it.
type exchange struct {
	rows    []string // each row's columns, joined by a space
	warned  []string // messages of NoticeResponses
	code    string   // SQLSTATE of the ErrorResponse, "" for none
	status  byte     // of ReadyForQuery: I, T or E
	changed []string // names in ParameterStatus
}

// speak sends one simple Query and reads until ReadyForQuery.
func speak(t *testing.T, front *pgproto3.Frontend, sql string) exchange {
	t.Helper()
	front.Send(&pgproto3.Query{String: sql})
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	var got exchange
	for {
		message, err := front.Receive()
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			row := ""
			for i, value := range m.Values {
				if i > 0 {
					row += " "
				}
				row += string(value)
			}
			got.rows = append(got.rows, row)
		case *pgproto3.NoticeResponse:
			got.warned = append(got.warned, m.Message)
		case *pgproto3.ErrorResponse:
			got.code = m.Code
		case *pgproto3.ParameterStatus:
			got.changed = append(got.changed, m.Name)
		case *pgproto3.ReadyForQuery:
			got.status = m.TxStatus
			return got
		}
	}
}

// frontend takes over a connection's protocol, to send messages unchanged.
func frontend(t *testing.T, conn *pgx.Conn) *pgproto3.Frontend {
	t.Helper()
	taken, err := conn.PgConn().Hijack()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Conn.Close() })
	if err := taken.Conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return taken.Frontend
}

// exchangeStart is the text that a proxy puts before SELECT wirefence.proxy_hold(...).
const exchangeStart = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;"

// A proxy takes a hold by one simple Query whose first statement makes the implicit
// transaction READ COMMITTED and READ WRITE, whatever the session's defaults. The text
// causes no warning and leaves the session idle, also after an error.
func TestExchangeOfAHoldIsReadCommittedWhateverTheDefaults(t *testing.T) {
	const text = exchangeStart
	const settings = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), current_setting('transaction_deferrable')"
	onEach(t, func(t *testing.T, db database) {
		for _, defaults := range []string{"serializable", "repeatable read", "read committed", "read uncommitted"} {
			for _, readOnly := range []string{"on", "off"} {
				conn := db.admin(t)
				for _, setting := range []string{"isolation = '" + defaults + "'", "read_only = " + readOnly, "deferrable = on"} {
					mustExec(t, conn, "ALTER ROLE app IN DATABASE "+db.name+" SET default_transaction_"+setting)
				}
				front := frontend(t, db.app(t))
				want := func(what, sql, row, code string) {
					t.Helper()
					got := speak(t, front, sql)
					if len(got.warned)+len(got.changed) > 0 || got.code != code || got.status != 'I' {
						t.Errorf("%s, %s, %s: %+v", defaults, readOnly, what, got)
					}
					if row != "" && (len(got.rows) != 1 || got.rows[0] != row) {
						t.Errorf("%s, %s, %s: rows %q, want %q", defaults, readOnly, what, got.rows, row)
					}
				}
				want("settings", text+settings, "read committed off on", "")
				want("snapshot of each statement", text+"SELECT pg_current_xact_id() IS NOT NULL", "t", "")
				want("write", text+"INSERT INTO public.writes VALUES ('orders', 1, 'x') RETURNING token", "1", "")
				want("error", text+"SELECT 1/0", "", "22012")
				want("settings behind an error", text+settings, "read committed off on", "")
				want("unparsable", text+"SELEC", "", "42601")
				want("one statement alone", settings, defaults+" "+readOnly+" on", "")
			}
		}
	})
}

// A standby refuses the first statement of the text, so nothing is held there.
func TestExchangeOfAHoldIsRefusedInRecovery(t *testing.T) {
	t.Parallel()
	primary, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(primary.Close)
	standby, err := primary.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	front := frontend(t, database{standby, "postgres"}.admin(t))
	got := speak(t, front, exchangeStart+"SELECT pg_advisory_lock_shared(1)")
	if got.code != "0A000" || got.status != 'I' || len(got.warned) > 0 {
		t.Errorf("%+v", got)
	}
	if got := speak(t, front, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"); len(got.rows) != 1 || got.rows[0] != "0" {
		t.Errorf("locks: %q", got.rows)
	}
}
