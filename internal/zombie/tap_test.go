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
	tap.begin(2)
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
