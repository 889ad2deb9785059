package upstream

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

func TestUpstreams(t *testing.T) {
	for _, c := range []struct {
		text, want string // want is network and address of each host
		fails      string
	}{
		{text: "postgres://db:5432/", want: "tcp db:5432"},
		{text: "postgresql://db", want: "tcp db:5432"},
		{text: "postgres://a:1,b:2/?sslmode=disable", want: "tcp a:1 tcp b:2"},
		{text: "postgres://a,b/?port=6000", want: "tcp a:6000 tcp b:6000"},
		{text: "postgres://[::1]:5433/", want: "tcp [::1]:5433"},
		{text: "postgres:///?host=/run/postgresql", want: "unix /run/postgresql/.s.PGSQL.5432"},
		{text: "postgres://%2Frun%2Fpostgresql/?port=5433", want: "unix /run/postgresql/.s.PGSQL.5433"},
		{text: "", fails: "is missing"},
		{text: "db:5432", fails: "no connection string"},
		{text: "mysql://db/", fails: "begins with postgres://"},
		{text: "postgres:///", fails: "empty host"},
		{text: "postgres://me@db/", fails: "names a user or a database"},
		{text: "postgres://db/app", fails: "names a user or a database"},
		{text: "postgres://db:x/", fails: "port"},
		{text: "postgres://db:70000/", fails: "port"},
		{text: "postgres://a,b/?port=6000,6001", want: "tcp a:6000 tcp b:6001"},
		{text: "postgres://a,b,c/?port=6000,6001", fails: "2 ports for 3 hosts"},
		{text: "postgres://%40wf/?port=5433", want: "unix @wf/.s.PGSQL.5433"},
		{text: "postgres:///?host=@wf", want: "unix @wf/.s.PGSQL.5432"},
		{text: "postgres://%2Frun%2Fpostgresql:5433/", want: "unix /run/postgresql/.s.PGSQL.5433"},
		{text: "host=db hostaddr=10.0.0.1 keepalives_idle=10 gssencmode=disable", want: "tcp 10.0.0.1:5432"},
		{text: "postgres://db/?application_name=mine", fails: "is a client's"},
		{text: "postgres://db/?sslcrl=x.crl", fails: "sslcrl"},
		{text: "postgres://db/?sslmode=verify-full", fails: "needs sslrootcert"},
		{text: "postgres://db/?sslmode=verify-full&sslrootcert=/no/such/file", fails: "no such file"},
		{text: "postgres://db/?sslmode=require&sslrootcert=system", fails: "needs sslmode=verify-full"},
		{text: "postgres://db/?sslrootcert=system", want: "tcp db:5432"},
		{text: "postgres://db/?sslcert=a.crt", fails: "need each other"},
		{text: "postgres://db/?sslcert=a.crt&sslkey=a.key&sslmode=disable", fails: "no use"},
		{text: "postgres://db/?sslnegotiation=direct", fails: "needs sslmode=require"},
		{text: "postgres://db/?sslnegotiation=direct&sslmode=require", want: "tcp db:5432"},
		{text: "postgres://db/?sslnegotiation=perhaps", fails: "none of"},
		{text: "postgres://db/?sslmode=often", fails: "none of disable"},
		{text: "postgres://db/?target_session_attrs=read-write", want: "tcp db:5432"},
		{text: "postgres://db/?target_session_attrs=fast", fails: "none of any"},
		{text: "postgres://db/?pooling=transaction", want: "tcp db:5432"},
		{text: "postgres://db/?pooling=statement", fails: "none of auto"},
		{text: "postgres://db/?foo=1", fails: "libpq doesn't know"},
	} {
		u, err := New(c.text, Options{Dialer: &net.Dialer{}, Timeout: time.Second})
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v, want an error about %q", c.text, err, c.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		var got []string
		for _, a := range u.Hosts {
			got = append(got, a.Network+" "+a.Addr)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

// Who gives up waiting for a server says nothing of it to the next.
func TestWhoGivesUpBlamesNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := New("postgres://"+l.Addr().String()+"/?sslmode=disable&target_session_attrs=primary",
		Options{Dialer: &net.Dialer{}, Timeout: time.Minute, ProbeURL: "postgres://me@nowhere/db"})
	if err != nil {
		t.Fatal(err)
	}
	h := u.Hosts[0]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := u.Role(ctx, h, ""); err == nil {
		t.Fatal("a server that doesn't answer has a role")
	}
	if !h.learnedAt.IsZero() || h.probing != nil {
		t.Error("that one client gave up counts as the server's answer")
	}
	if _, err := u.Dial(ctx, Route{Host: h}); err == nil || h.avoided() {
		t.Errorf("a server is avoided because a client gave up: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, stop)
	began := time.Now()
	if _, err := u.Dial(stopped, Route{Host: h, TLS: true}); err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("waiting for an answer about TLS ends after %s with %v", time.Since(began), err)
	}
}

// Without the means to ask, a server that had another role when a session found
// out last is tried after the others, however long ago that was.
func TestUnfitServersComeLast(t *testing.T) {
	u, err := New("postgres://a,b/?sslmode=disable&target_session_attrs=read-write", Options{Dialer: &net.Dialer{}})
	if err != nil {
		t.Fatal(err)
	}
	first := func(key string) string { return u.Routes(ReadWrite, key)[0].Host.Name }
	a, b := u.Hosts[0], u.Hosts[1]
	long := func(h *Host) { h.learnedAt = h.learnedAt.Add(-time.Hour) }
	a.Learn(Role{Known: true, Standby: true}, "alice")
	if long(a); first("bob") != "b" {
		t.Error("a standby is tried first")
	}
	b.recordDial(false)
	if first("bob") != "b" {
		t.Error("a standby is tried before a primary that was away")
	}
	a.Learn(Role{Known: true, ReadOnly: true}, "alice")
	if long(a); first("bob") != "a" || first("alice") != "b" {
		t.Error("one user's read-only sessions count for another, or not for the user")
	}
}
