package securitytest

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
)

// With sslmode=verify-full the proxy and the issuer's connection take the certificates that psql takes, such as those of
// PostgreSQL's manual, which have a common name alone.
func TestCertificatesAreTakenAsByLibpq(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	stack.OnEach(t, stack.OldAndNew, func(t *testing.T, major int) {
		w := start(t, major)
		loopback, other := net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)
		for _, c := range []struct {
			commonName string
			names      []string
			addresses  []net.IP
		}{
			{"db.test", nil, nil},
			{"DB.Test", nil, nil},
			{"*.test", nil, nil},
			{"127.0.0.1", nil, nil},
			{"other", []string{"127.0.0.1"}, nil},
			{"127.0.0.1", []string{"db.test"}, nil},
			{"127.0.0.1", nil, []net.IP{loopback}},
			{"127.0.0.1", nil, []net.IP{other}},
			{"db.test", nil, []net.IP{loopback}},
			{"db.test", []string{"other.test"}, nil},
			{"other", []string{"*.test", "x"}, []net.IP{other}},
			{"other", []string{"*.db.test"}, nil},
			{"other", []string{"*"}, nil},
			{"", []string{"db.test"}, []net.IP{loopback}},
			{"other", nil, nil},
		} {
			pair := w.ca.IssueNamed(t, c.commonName, c.names, c.addresses...)
			addr := stack.Proxy(t, w.Postgres, proxy.Options{TLS: proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile}})
			for _, host := range []string{"db.test", "a.db.test", "127.0.0.1", "a.test"} {
				server := fmt.Sprintf("host=%s hostaddr=127.0.0.1 port=%s sslmode=verify-full sslrootcert=%s", host, stack.Port(addr), w.ca.CAFile)
				said, taken := psqlOf(t, stack.Version(major), server+" user=postgres dbname=postgres", "SELECT 1")
				if !taken && !strings.Contains(said, "certificate") {
					t.Fatalf("psql: %s", said)
				}
				cfg, err := connstring.Conn(server + " user=postgres dbname=postgres")
				if err != nil {
					t.Fatal(err)
				}
				conn, issuers := pgx.ConnectConfig(t.Context(), cfg)
				if issuers == nil {
					_ = conn.Close(t.Context())
				}
				up, err := upstream.New(server, upstream.Options{Dialer: &net.Dialer{}, Timeout: stack.Patience})
				if err != nil {
					t.Fatal(err)
				}
				link, proxys := up.Dial(t.Context(), up.Routes(upstream.Any, "")[0])
				if proxys == nil {
					_ = link.Close()
				}
				if taken != (issuers == nil) || taken != (proxys == nil) {
					t.Errorf("%v at %s: psql %t, the issuer %v, the proxy %v", c, host, taken, issuers, proxys)
				}
			}
		}
	})
}
