package zombie

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

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
	tap, err := newTap([]string{"job", fmt.Sprintf(`{"database":"postgres://app@127.0.0.1:%d/postgres?sslmode=require&application_name=it"}`, server.Port), "postgres:///led"}, env, nil, "", "")
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
		tap.begin(hold{number: 4})
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

// One message is held back until another connection's statement has passed, whichever came first. Then
// all are.
func TestTapHoldsBehind(t *testing.T) {
	t.Parallel()
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	direct := stack.Connect(t, server.URL("postgres"))
	stack.MustExec(t, direct, "CREATE TABLE t (n int)")
	tap, err := newTap([]string{"job", server.URL("postgres")}, nil, nil, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tap.close(); err != nil {
			t.Error(err)
		}
	}()
	var there string
	came := func(n int) {
		stack.Eventually(t, "the messages", func() bool {
			tap.mu.Lock()
			defer tap.mu.Unlock()
			return len(tap.messages) == n
		})
	}
	one, other := stack.Connect(t, tap.Command[1]), stack.Connect(t, tap.Command[1])
	for _, first := range []string{"one", "other"} {
		t.Run(first+" first", func(t *testing.T) {
			stack.MustExec(t, direct, "TRUNCATE t")
			tap.begin(hold{1, (&Message{Kind: queries, SQL: "INSERT INTO t VALUES (1)"}).pattern(), true})
			late := make(chan error, 2)
			insert := func(conn *pgx.Conn, text string) error {
				_, err := conn.Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol)
				return err
			}
			send := func() { go func() { late <- insert(one, "INSERT INTO t VALUES (1)") }() }
			if first == "one" {
				send()
				came(1)
			}
			if err := insert(other, "INSERT INTO t SELECT 2"); err != nil {
				t.Fatal(err)
			}
			if first == "other" {
				send()
			}
			<-tap.held
			go func() { late <- insert(other, "INSERT INTO t SELECT 3") }()
			came(3)
			if err := direct.QueryRow(t.Context(), "SELECT string_agg(n::text, ' ') FROM t").Scan(&there); err != nil || there != "2" {
				t.Error(there, err)
			}
			tap.release()
			if err := errors.Join(<-late, <-late); err != nil {
				t.Error(err)
			}
		})
	}
}

// A URL whose host only the shell knows stays as it is; one whose password it knows is led.
func TestTapLeavesVariables(t *testing.T) {
	t.Parallel()
	texts := []string{"psql postgres://$DBHOST/app", "psql postgres://app@h/app?host=$DBHOST", "psql postgres://app:$PASSWORD@h/app"}
	tap, err := newTap(texts, nil, nil, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := tap.Command; got[0] != texts[0] || got[1] != texts[1] || !strings.HasPrefix(got[2], "psql postgres://app:$PASSWORD@127.0.0.1:") {
		t.Error(got)
	}
	if err := tap.close(); err != nil {
		t.Error(err)
	}
}

// A statement that comes when the other connection's is awaited no longer is held back at once.
func TestTapGivesUp(t *testing.T) {
	t.Parallel()
	late := &Message{Connection: 2, Kind: queries, SQL: "SELECT b"}
	for name, before := range map[string]bool{"before it has come": true, "behind it": false} {
		t.Run(name, func(t *testing.T) {
			tap, err := newTap([]string{"job"}, nil, nil, "", "")
			if err != nil {
				t.Fatal(err)
			}
			tap.begin(hold{1, late.pattern(), true})
			if before {
				tap.giveUp()
			}
			passed := make(chan bool)
			go func() {
				tap.pass(late)
				close(passed)
			}()
			stack.Eventually(t, "the message", func() bool { return tap.count() == 1 })
			if !before {
				tap.giveUp()
			}
			<-tap.held
			select {
			case <-passed:
				t.Error("it has passed")
			default:
			}
			tap.release()
			<-passed
			if err := tap.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Commands to Redis that name a lock are held back, too; others are not counted.
func TestTapOfRedis(t *testing.T) {
	t.Parallel()
	server := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	tap, err := newTap([]string{"job"}, []string{"PGHOST=127.0.0.1", "REDIS=" + server.URL()}, []string{"nightly"}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tap.close(); err != nil {
			t.Error(err)
		}
	}()
	options, err := redis.ParseURL(pgenv.Value(tap.Env, "REDIS"))
	if err != nil || options.Addr == server.Addr() {
		t.Fatal(options, err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	tap.begin(hold{number: 2})
	if err := errors.Join(client.Set(t.Context(), "other", "1", 0).Err(), client.SetNX(t.Context(), "nightly", "me", time.Minute).Err()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- client.Del(t.Context(), "nightly").Err() }()
	<-tap.held
	if value, err := server.Do(t.Context(), "GET", "nightly"); value != "me" || err != nil {
		t.Errorf("%v, %v", value, err)
	}
	tap.release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	tap.hangUp()
	if got := fmt.Sprint(tap.messages[0], "; ", tap.messages[1]); len(tap.messages) != 2 || got != "set nightly me ex 60 nx; del nightly" {
		t.Error(got)
	}
}
