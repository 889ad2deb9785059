package engine_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// faults runs all probes against an address.
func faults(t *testing.T, addr string) (says []string) {
	t.Helper()
	one, other := stack.Connect(t, stack.URL(addr, "postgres")), stack.Connect(t, stack.URL(addr, "postgres"))
	found, err := engine.Faults(t.Context(), one, other)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Means == "" {
			t.Errorf("it isn't said what %q means", f.Says)
		}
		says = append(says, f.Says)
	}
	return says
}

func TestPostgreSQLItself(t *testing.T) {
	t.Parallel()
	for _, major := range stack.Versions() {
		pg := stack.Postgres(t, major)
		t.Run("SQLSTATEs that are lost", func(t *testing.T) { lostStates(t, pg) })
		t.Run("a probe that is cut off", func(t *testing.T) { cutOff(t, pg) })
		if found := faults(t, pg.Addr()); len(found) > 0 {
			t.Errorf("PostgreSQL %d: %q", major, found)
		}
		conn := stack.Connect(t, pg.URL("postgres"))
		if found, err := engine.Timeline(t.Context(), conn); err != nil || len(found) > 0 {
			t.Errorf("the timeline of PostgreSQL %d: %v, %v", major, found, err)
		}
		var locks int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&locks); err != nil || locks > 0 {
			t.Errorf("%d locks are left, %v", locks, err)
		}
	}
}

// lostStates plays a server that gives every error of user code the same SQLSTATE, as some do.
func lostStates(t *testing.T, pg *servers.Postgres) {
	for field, want := range map[string]string{"CWF001": "RAISE with the SQLSTATE WF001 arrives as XXUUU", "Ha hint": "RAISE loses its DETAIL or HINT"} {
		addr := stack.Interposed(t, pg.Addr(), func(typ byte, msg []byte) []byte {
			if typ != 'E' {
				return msg
			}
			other := "CXXUUU"
			if field != "CWF001" {
				other = strings.Repeat("H", len(field))
			}
			return []byte(strings.Replace(string(msg), field+"\x00", other+"\x00", 1))
		})
		if found := faults(t, addr); len(found) == 0 || !strings.Contains(strings.Join(found, "; "), want) {
			t.Errorf("%q, and not %q", found, want)
		}
	}
}

// A server that runs each statement, also after one has failed.
func TestErrorsThatAbortNothing(t *testing.T) {
	t.Parallel()
	addr := stack.Scripted(t, autonomous)
	conn := stack.Connect(t, stack.URL(addr, "postgres"))
	for _, p := range engine.Probes {
		if p.Name != "abort" {
			continue
		}
		found, err := p.Run(t.Context(), conn, nil)
		if err != nil || len(found) != 4 {
			t.Errorf("found %v, %v", found, err)
		}
	}
}

// autonomous answers like a server without transactions.
func autonomous(c net.Conn) {
	server := pgproto3.NewBackend(c, c)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	run := func(sql string) {
		switch {
		case strings.HasPrefix(sql, "DO"):
			server.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "WF001", Message: "refused"})
		case strings.HasPrefix(sql, "SELECT"):
			server.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("one"), DataTypeOID: 25}}})
			server.Send(&pgproto3.DataRow{Values: [][]byte{[]byte("1")}})
			server.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		default:
			server.Send(&pgproto3.CommandComplete{CommandTag: []byte(sql)})
		}
	}
	parsed := ""
	for server.Flush() == nil {
		received, err := server.Receive()
		if err != nil {
			return
		}
		switch m := received.(type) {
		case *pgproto3.Query:
			block, last, _ := strings.Cut(m.String, "$$; ")
			run(block)
			if last != "" {
				run(last)
			}
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		case *pgproto3.Parse:
			parsed = m.Query
			server.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Bind:
			server.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			server.Send(&pgproto3.NoData{})
		case *pgproto3.Execute:
			run(parsed)
		case *pgproto3.Sync:
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
	}
}

// cutOff ends the connections, which is no fault.
func cutOff(t *testing.T, pg *servers.Postgres) {
	one, other := stack.Connect(t, pg.URL("postgres")), stack.Connect(t, pg.URL("postgres"))
	for _, p := range engine.Probes {
		for _, cut := range []*pgx.Conn{one, other} {
			_ = cut.Close(context.Background())
			if found, err := p.Run(t.Context(), one, other); err == nil || len(found) > 0 {
				t.Errorf("%s: %v, %v", p.Name, found, err)
			}
		}
	}
	if found, err := engine.Timeline(t.Context(), one); err == nil || len(found) > 0 {
		t.Errorf("timeline: %v, %v", found, err)
	}
}

// A router answers for several servers, or leads a connection to each of them in turn.
func TestSeveralServersBehindOneConnection(t *testing.T) {
	t.Parallel()
	pg := stack.Postgres(t, 0)
	conn := stack.Connect(t, pg.URL("postgres"))
	single := func(conn *pgx.Conn, says string) {
		t.Helper()
		found, err := engine.Single(t.Context(), conn)
		if err != nil || (len(found) == 0) != (says == "") || says != "" && !strings.Contains(found[0].Says, says) {
			t.Errorf("found %v, %v, and not %q", found, err, says)
		}
	}
	single(conn, "")
	if _, err := conn.Exec(t.Context(), "SET pgdog.shards = '2'"); err != nil { // so that it is answered
		t.Fatal(err)
	}
	single(conn, "SHOW pgdog.shards is answered by 2")

	routed := stack.Connect(t, pg.URL("postgres"))
	if _, err := routed.Exec(t.Context(), "CREATE SEQUENCE shard; SET allow_system_table_mods = on; ALTER FUNCTION pg_catalog.pg_control_system() RENAME TO pg_control_of_one; "+
		"CREATE FUNCTION pg_catalog.pg_control_system() RETURNS TABLE (system_identifier bigint) LANGUAGE sql AS 'SELECT nextval(''public.shard'') % 2'"); err != nil {
		t.Fatal(err)
	}
	single(routed, "two questions were answered by two servers")
}
