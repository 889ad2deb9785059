package doctor

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestTLSIsPreferredOnTheFirstConnection(t *testing.T) {
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	pair := authority.New(t).Issue(t, "proxy.test", "127.0.0.1")
	for name, o := range map[string]proxy.TLS{"with TLS": {CertFile: pair.CertFile, KeyFile: pair.KeyFile}, "without TLS": {}} {
		var log stack.Log
		addr := stack.Proxy(t, pg, proxy.Options{TLS: o, Logger: log.Logger()})
		as, err := pgx.ParseConfig(pg.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		session, err := ListenSession(addr, as)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), session)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, encrypted := conn.PgConn().Conn().(*tls.Conn); encrypted != (o.CertFile != "") {
			t.Errorf("%s: encrypted is %v", name, encrypted)
		}
		_ = conn.Close(t.Context())
		log.Await(t, "session ended")
		if text := log.String(); strings.Contains(text, "no session began") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
