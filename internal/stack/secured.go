package stack

import (
	"crypto/tls"
	"os"
	"sync"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/proxy"
)

// Secured says that connections are encrypted, those to proxies and theirs to servers,
// in tests that don't say otherwise: WIREFENCE_TEST_TLS is set.
func Secured() bool { return os.Getenv("WIREFENCE_TEST_TLS") != "" }

// certificates are what servers and proxies show then. The folder of the files is the
// suite's to remove.
type certificates struct {
	dir           string
	server, proxy authority.Pair
	config        *tls.Config // of clients
}

var (
	issue    = sync.OnceValues(issued)
	proxies  sync.Map // addresses of proxies that show a certificate of these
	issuedIn string
)

func issued() (c certificates, err error) {
	if c.dir, err = os.MkdirTemp("", "wf-tls-"); err != nil {
		return c, err
	}
	issuedIn = c.dir
	a, err := authority.In(c.dir)
	if err != nil {
		return c, err
	}
	if c.server, err = a.Pair("db.test", "127.0.0.1"); err != nil {
		return c, err
	}
	c.proxy, err = a.Pair("proxy.test", "127.0.0.1")
	c.config = &tls.Config{RootCAs: a.Pool(), ServerName: "proxy.test"}
	return c, err
}

// secureServer lets a server have TLS.
func secureServer(cfg *servers.PostgresConfig) error {
	if !Secured() || cfg.CertFile != "" {
		return nil
	}
	c, err := issue()
	cfg.CertFile, cfg.KeyFile = c.server.CertFile, c.server.KeyFile
	return err
}

// secureProxy lets a proxy have TLS. It uses a server's by default.
func secureProxy(o *proxy.Options) (did bool, err error) {
	if !Secured() || o.TLS != (proxy.TLS{}) {
		return false, nil
	}
	c, err := issue()
	o.TLS = proxy.TLS{CertFile: c.proxy.CertFile, KeyFile: c.proxy.KeyFile}
	return true, err
}

// secures says whether the proxy at an address is to be spoken to by TLS.
func secures(addr string) bool {
	_, ok := proxies.Load(addr)
	return ok
}
