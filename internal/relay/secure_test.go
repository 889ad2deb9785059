package relay

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
)

// TLS on both sides, with a user of Redis, and who may come without it.
func TestTLS(t *testing.T) {
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ca := authority.New(t)
	pair, own := ca.Issue(t, "redis.test"), ca.Issue(t, "relay.test", "127.0.0.1")
	redis := withUsers(t, []string{"--tls-port", itoa(port), "--tls-cert-file", pair.CertFile, "--tls-key-file", pair.KeyFile, "--tls-ca-cert-file", ca.CAFile, "--tls-auth-clients", "no"},
		"sidecar on >secret ~* +@all", "app on >secret ~* +@all", "default off")
	secured := func(o *Options) {
		o.Upstream = "rediss://sidecar:secret@127.0.0.1:" + itoa(port) + "?tls_server_name=redis.test"
		o.TLS = &tls.Config{Certificates: []tls.Certificate{own.Load(t)}}
	}
	t.Setenv("SSL_CERT_FILE", ca.CAFile) // this is the only test here by which it is read
	user := func(o *goredis.Options) { o.Username, o.Password = "app", "secret" }
	encrypted := func(o *goredis.Options) { o.TLSConfig = &tls.Config{RootCAs: ca.Pool()} }
	takes := func(w *world, want bool, changes ...func(*goredis.Options)) {
		t.Helper()
		c := w.client(t, changes...)
		if got, err := c.SetNX(t.Context(), "lock", "a", time.Minute).Result(); got != want {
			t.Fatal(got, err)
		}
		if want {
			w.wantFence(t, "orders="+itoa(int(w.book.Leases()[0].Token)))
			c.Del(t.Context(), "lock")
		}
	}
	w := startFor(t, redis, suite.Database(t, 0), "lock", secured)
	takes(w, true, user, encrypted)
	takes(w, true, user)
	takes(w, false, encrypted)

	strict := w.beside(t, secured, func(o *Options) { o.RequireTLS = true })
	takes(strict, true, user, encrypted)
	strict.dialRaw(t).does("PING", "-ERR wirefence: TLS is required…")
	here := filepath.Join(t.TempDir(), "relay.sock")
	takes(w.beside(t, secured, func(o *Options) { o.RequireTLS, o.Listen = true, here }), true, user, func(o *goredis.Options) {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", here) }
	})
}
