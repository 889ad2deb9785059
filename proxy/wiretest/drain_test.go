package wiretest

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// last returns the last message of a session that has ended.
func (p *peer) last() string {
	p.T.Helper()
	p.End()
	lines := p.transcript()
	return lines[len(lines)-1]
}

func (p *peer) fatals() (n int) {
	for _, line := range p.transcript() {
		if strings.HasPrefix(line, "E SFATAL") {
			n++
		}
	}
	return n
}

// Case 20.
func TestDrain(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	r := start(t, "postgres://"+pl.Addr()+"/", proxy.Options{DrainTimeout: time.Minute})
	physical, logical := streams(t, pl, r.Addr)
	idle, busy, batch, query := login(t, pl, r.Addr), login(t, pl, r.Addr), login(t, pl, r.Addr), login(t, pl, r.Addr)
	fenced := login(t, pl, r.Addr, "options", "-c wirefence.token=orders=34")
	listening, held, copying := login(t, pl, r.Addr), login(t, pl, r.Addr), login(t, pl, r.Addr)
	listening.query("LISTEN news")
	held.query("DECLARE held CURSOR WITH HOLD FOR SELECT generate_series(1, 9)")
	copying.Send(q("COPY t FROM STDIN"))
	copying.Until("G")
	busy.query("BEGIN")
	busy.query("INSERT INTO t VALUES (1, 'busy')")
	busy.query("DECLARE c CURSOR FOR SELECT generate_series(1, 9)")
	fenced.query("BEGIN")
	fenced.query("INSERT INTO t VALUES (4, 'fenced')")
	batch.Send(append(run("INSERT INTO t VALUES (2, 'batch')"), flush)...)
	batch.Until("C")
	pl.Exec(t, "SELECT pg_advisory_lock(20)")
	query.Send(q("INSERT INTO t SELECT 3, 'query' FROM pg_advisory_xact_lock(20)"))
	pl.Becomes(t, "1", "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	r.Drain()
	for name, p := range map[string]*peer{"that is idle": idle, "that listens": listening, "with a held cursor": held, "with a physical stream": physical, "with a logical one": logical} {
		if e := p.last(); !strings.HasPrefix(e, "E SFATAL | VFATAL | C57P01") {
			t.Errorf("a session %s ends with %s", name, e)
		}
	}
	if conn, err := net.DialTimeout("tcp", r.Addr, time.Second); err == nil {
		conn.Close()
		t.Error("a new client is accepted during the drain")
	}
	busy.query("INSERT INTO t VALUES (5, 'busy')")
	busy.query("FETCH 3 FROM c")
	busy.query("COMMIT")
	copying.Send(data("6\tcopy\n"), copyDone)
	copying.Ready(1)
	fenced.query("COMMIT")
	batch.Send(sync_)
	batch.Ready(1)
	pl.Exec(t, "SELECT pg_advisory_unlock(20)")
	for _, p := range []*peer{busy, fenced, batch, query, copying} {
		if e := p.last(); !strings.HasPrefix(e, "E SFATAL | VFATAL | C57P01") || p.fatals() != 1 {
			t.Errorf("a session ends with %s", e)
		}
	}
	if err := r.Wait(); err != nil {
		t.Errorf("Serve returns %v", err)
	}
	if rows := pl.rows(t); rows != "1:busy 2:batch 3:query 4:fenced 5:busy 6:copy" {
		t.Errorf("t holds %s", rows)
	}
}

// streams begins a stream of each kind of replication. A slot is made when the transactions of
// before have ended.
func streams(t *testing.T, pl *place, addr string) (physical, logical *peer) {
	t.Helper()
	physical, logical = login(t, pl, addr, "replication", "true"), login(t, pl, addr, "replication", "database")
	system := physical.Exchange(1, q("IDENTIFY_SYSTEM"))[1].Backend().(*pgproto3.DataRow)
	logical.query("CREATE_REPLICATION_SLOT drained TEMPORARY LOGICAL test_decoding")
	for p, start := range map[*peer]string{physical: "PHYSICAL " + string(system.Values[2]), logical: "SLOT drained LOGICAL 0/0"} {
		p.Send(q("START_REPLICATION " + start))
		p.Until("W")
	}
	return physical, logical
}

// A transaction that doesn't end is closed after DrainTimeout, with nothing
// written.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	pl := at(t, 18)
	r := start(t, "postgres://"+pl.Addr()+"/", proxy.Options{DrainTimeout: 100 * time.Millisecond})
	open, query, copying := login(t, pl, r.Addr), login(t, pl, r.Addr), login(t, pl, r.Addr)
	open.query("BEGIN; INSERT INTO t VALUES (1, 'open')")
	query.Send(q("INSERT INTO t SELECT 2, 'query' FROM pg_sleep(60)"))
	copying.Send(q("COPY t FROM STDIN"), data("3\tcopy\n"))
	copying.Until("G")
	query.sleeps()
	r.Drain()
	for _, p := range []*peer{open, query, copying} {
		if e := p.last(); !strings.HasPrefix(e, "E SFATAL | VFATAL | C57P01") {
			t.Errorf("a session ends with %s", e)
		}
	}
	if err := r.Wait(); err != nil {
		t.Errorf("Serve returns %v", err)
	}
	pid, _ := open.Key()
	pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1 AND state <> 'active'", pid)
	if rows := pl.rows(t); rows != "" {
		t.Errorf("t holds %s", rows)
	}
}

// During the grace period new clients are served, since applications reconnect
// while they shut down.
func TestDrainGrace(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	r := start(t, "postgres://"+pl.Addr()+"/", proxy.Options{DrainGrace: 3 * time.Second, DrainTimeout: time.Minute})
	old := login(t, pl, r.Addr)
	r.Drain()
	fresh := login(t, pl, r.Addr)
	fresh.query("SELECT 1")
	old.query("SELECT 1")
	for _, p := range []*peer{old, fresh} {
		if e := p.last(); !strings.HasPrefix(e, "E SFATAL | VFATAL | C57P01") {
			t.Errorf("a session ends with %s", e)
		}
	}
	if err := r.Wait(); err != nil {
		t.Errorf("Serve returns %v", err)
	}
}

// Who doesn't end its login is sent away in a drain, and holds it up no longer
// than that takes.
func TestDrainDuringALogin(t *testing.T) {
	t.Parallel()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{HBA: "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"})).EndWith(t)
	stack.Exec(t, pg.URL("postgres"), "CREATE ROLE scram LOGIN PASSWORD 'secret'")
	r := start(t, "postgres://"+pg.Addr()+"/", proxy.Options{DrainTimeout: stack.Patience})
	conn := stack.Raw(t, r.Addr)
	if _, err := conn.Write(stack.Startup(v30, "postgres", "user", "scram")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 5)); err != nil { // the server asks for the password
		t.Fatal(err)
	}
	began := time.Now()
	r.Drain()
	if said, err := io.ReadAll(conn); err != nil || !strings.Contains(string(said), "C57P01\x00") {
		t.Errorf("the login ends with %q, %v", said, err)
	}
	if err := r.Wait(); err != nil {
		t.Errorf("Serve returns %v", err)
	}
	if took := time.Since(began); took > stack.Patience/2 {
		t.Errorf("the drain took %s", took)
	}
}
