package zombie

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/pgenv"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// A client that is led by libpq's variables, or by a URL within a text, comes through the tap, which
// holds back one message and all later ones.
func TestTap(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	pair := a.Issue(t, "localhost", "127.0.0.1")
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{CertFile: pair.CertFile, KeyFile: pair.KeyFile, HBA: "host all postgres all trust\nhostssl all all all trust\n"})).EndWith(t)
	stack.Exec(t, server.URL("postgres"), "CREATE ROLE app LOGIN")
	env := []string{"PGHOST=127.0.0.1", fmt.Sprint("PGPORT=", server.Port), "PGSSLMODE=require", "PATH=/usr/bin"}
	tap, err := newTap([]string{"job", fmt.Sprintf(`{"database":"postgres://app@127.0.0.1:%d/postgres?sslmode=require&application_name=it"}`, server.Port), "postgres:///led"}, env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tap.close(); err != nil {
			t.Error(err)
		}
	}()
	var argument struct{ Database string }
	if err := json.Unmarshal([]byte(tap.Command[1]), &argument); err != nil || tap.Command[2] != "postgres:///led" {
		t.Fatal(tap.Command, err)
	}
	for _, text := range []string{argument.Database, fmt.Sprintf("host=%s port=%d user=app dbname=postgres", pgenv.Value(tap.Env, "PGHOST"), server.Port)} {
		tap.begin(4)
		conn := stack.Connect(t, text)
		if _, err := conn.Exec(t.Context(), "CREATE TEMPORARY TABLE t (n int)", pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", 7)
			done <- err
		}()
		<-tap.held
		select {
		case err := <-done:
			t.Fatalf("it was answered: %v", err)
		default:
		}
		tap.release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		tap.hangUp()
		var all []string
		for _, m := range tap.messages {
			all = append(all, m.String()+" "+m.Answer)
		}
		want := "(connects) ; CREATE TEMPORARY TABLE t (n int) CREATE TABLE; INSERT INTO t VALUES ($1) ; (execute) INSERT INTO t VALUES ($1) INSERT 0 1; (sync) INSERT INTO t VALUES ($1) "
		if got := strings.Join(all, "; "); got != want {
			t.Errorf("%s\nnot %s", got, want)
		}
		_ = conn.Close(t.Context())
	}
}
