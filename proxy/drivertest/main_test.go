// Package drivertest runs real clients through the proxy: psql, pgbench, pgx,
// psycopg2, node-postgres and JDBC. Each does the same things direct, through
// the proxy without a fence, with the current token, and with a stale one.
package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// fixture is what every database holds besides the schema wirefence: the token
// of orders is 34.
const fixture = `
CREATE TABLE t(id int PRIMARY KEY, v text);
CREATE FUNCTION write_one(int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.t VALUES ($1, ''written'') RETURNING id';
SELECT wirefence.seal('orders', 34, 'holder');`

// The fences of the tests, as startup options.
const (
	current = "-c wirefence.token=orders=34"
	stale   = "-c wirefence.token=orders=33"
)

// rig is a server with a database, and a proxy before it.
type rig struct {
	*servers.Postgres
	db    string
	proxy string // host:port
	admin *pgx.Conn
}

// rigs runs a test on the default version, and on 14 and 18 besides.
func rigs(t *testing.T, test func(*testing.T, *rig)) {
	for _, major := range []int{0, 14, 18} {
		t.Run(name(major), func(t *testing.T) {
			t.Parallel()
			pg := stack.Postgres(t, major)
			db := stack.Database(t, pg)
			r := &rig{pg, db, stack.Proxy(t, pg, proxy.Options{}), stack.Connect(t, pg.URL(db))}
			r.exec(t, fixture)
			test(t, r)
		})
	}
}

func name(major int) string {
	if major == 0 {
		return "default"
	}
	return strconv.Itoa(major)
}

func (r *rig) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := r.admin.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// rows returns what the table t holds.
func (r *rig) rows(t *testing.T) (n int) {
	t.Helper()
	if err := r.admin.QueryRow(context.Background(), "SELECT count(*) FROM public.t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// asleep waits until a backend runs pg_sleep.
func (r *rig) asleep(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; {
		var found bool
		err := r.admin.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database() AND pid <> pg_backend_pid())").Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
		if found {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("no backend sleeps")
		}
	}
}

// program is a client in a process of its own. It prints a line for each thing
// that it does: a letter, a name, what came of it. W is a write, which a stale
// token refuses; R works under every token; E is an error that may be another
// one behind a check.
type program struct {
	command string
	args    []string
	env     []string
}

// need fails the test where a runtime is missing, and says what to install.
func need(t *testing.T, found bool, what string) {
	t.Helper()
	if !found {
		t.Fatalf("%s is not installed: run scripts/install-servers --all", what)
	}
}

func needCommand(t *testing.T, command string) {
	t.Helper()
	_, err := exec.LookPath(command)
	need(t, err == nil, command)
}

// run runs a program against an address. Its second address is the server's own.
func (r *rig) run(t *testing.T, p program, addr, options string) []string {
	t.Helper()
	r.exec(t, "TRUNCATE t")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.command, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Env = append(cmd.Env,
		"PGHOST=127.0.0.1", "PGPORT="+stack.Port(addr), "PGUSER=postgres", "PGDATABASE="+r.db, "PGSSLMODE=disable",
		"PGOPTIONS="+options, "DIRECT_PORT="+strconv.Itoa(r.Port), "LC_ALL=C.UTF-8", "PSQLRC=/dev/null")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", p.command, err, out.String(), errs.String())
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

// compare runs a program in all four ways.
func (r *rig) compare(t *testing.T, p program) {
	t.Helper()
	want := r.run(t, p, r.Addr(), "")
	if len(want) < 10 {
		t.Fatalf("the program does too little:\n%s", strings.Join(want, "\n"))
	}
	for _, line := range want {
		if strings.HasPrefix(line, "W") && strings.Contains(line, "error") {
			t.Errorf("direct: %s", line)
		}
	}
	for name, options := range map[string]string{"unfenced": "", "current": current} {
		if got := r.run(t, p, r.proxy, options); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s\n got: %s\nwant: %s", name, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
		}
	}
	refused := 0
	got := r.run(t, p, r.proxy, stale)
	for _, line := range got {
		switch {
		case strings.HasPrefix(line, "W") && strings.Contains(line, "error WF001"):
			refused++
		case strings.HasPrefix(line, "W"), strings.HasPrefix(line, "R") && strings.Contains(line, "error WF"):
			t.Errorf("stale: %s", line)
		}
	}
	if n := r.rows(t); refused < 5 || n != 0 || len(got) != len(want) {
		t.Errorf("stale: %d refusals, %d rows written, %d lines instead of %d:\n%s", refused, n, len(got), len(want), fmt.Sprint(strings.Join(got, "\n")))
	}
}
