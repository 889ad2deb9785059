package proxy

import (
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
		{text: "db:5432", fails: "not of the form"},
		{text: "mysql://db/", fails: "not of the form"},
		{text: "postgres:///", fails: "empty host"},
		{text: "postgres://me@db/", fails: "names a user or a database"},
		{text: "postgres://db/app", fails: "names a user or a database"},
		{text: "postgres://db:x/", fails: "port"},
		{text: "postgres://db:70000/", fails: "port"},
		{text: "postgres://db/?sslmode=verify-full", fails: "without TLS"},
		{text: "postgres://db/?sslmode=often", fails: "unknown"},
		{text: "postgres://db/?target_session_attrs=read-write", fails: "target_session_attrs"},
		{text: "postgres://db/?foo=1", fails: "unknown"},
	} {
		u, err := parseUpstream(c.text)
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
		for _, a := range u.addrs {
			got = append(got, a.network+" "+a.addr)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestOptionsHaveDefaultsAndLimits(t *testing.T) {
	o := Options{Upstream: "postgres://db/"}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	if o.Listen[0] != "127.0.0.1:6433" || o.Mode != Enforce || o.UnfencedWrites != Allow || o.MaxConnections != 1000 ||
		o.StartupTimeout != time.Minute || o.ConnectTimeout != 5*time.Second || o.MaxStatement != 16<<20 || o.DrainTimeout != 30*time.Second {
		t.Errorf("%+v", o)
	}
	for name, change := range map[string]func(*Options){
		"mode":          func(o *Options) { o.Mode = "maybe" },
		"unfenced":      func(o *Options) { o.UnfencedWrites = "perhaps" },
		"resource":      func(o *Options) { o.Resource = strings.Repeat("x", 256) },
		"connections":   func(o *Options) { o.MaxConnections = -1 },
		"statement":     func(o *Options) { o.MaxStatement = 10 },
		"drain timeout": func(o *Options) { o.DrainTimeout = -1 },
		"upstream":      func(o *Options) { o.Upstream = "nowhere" },
	} {
		o := Options{Upstream: "postgres://db/"}
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheVerdictIsTakenApartForTheLog(t *testing.T) {
	for detail, want := range map[string][]any{
		`Resource "orders": presented token 33, current token 34, held by "worker-b" since 2026-11-20 17:00:00.123456+00.`: {
			"resource", "orders", "presented", "33", "current", "34", "holder", "worker-b", "since", "2026-11-20 17:00:00.123456+00"},
		`Resource "a""b": presented token 1, current token 2.`: {"resource", `a""b`, "presented", "1", "current", "2"},
		`Something else.`: {"detail", "Something else."},
		``:                nil,
	} {
		got := verdict(detail)
		if len(got) != len(want) {
			t.Errorf("%s: %v", detail, got)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%s: %v is not %v", detail, got[i], want[i])
			}
		}
	}
}
