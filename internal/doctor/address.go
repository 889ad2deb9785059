package doctor

import (
	"errors"
	"net"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/connstring"
)

// reachable returns a host at which a local listener answers.
func reachable(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// ListenSession returns the configuration of a session at the address at which a proxy listens,
// with the user, password and database of another configuration. It uses TLS if the proxy has
// it, and doesn't verify the certificate.
func ListenSession(listen string, as *pgx.ConnConfig) (*pgx.ConnConfig, error) {
	var host, port string
	if path, found := strings.CutPrefix(listen, "unix:"); found {
		var name string
		host, name = filepath.Split(path)
		if _, port, found = strings.Cut(name, ".s.PGSQL."); !found {
			return nil, errors.New("a socket must be named as in /dir/.s.PGSQL.6433")
		}
		host = filepath.Clean(host)
	} else {
		var err error
		if host, port, err = net.SplitHostPort(listen); err != nil {
			return nil, err
		}
		host = reachable(host)
	}
	cfg, err := sessionAs(connstring.Settings{"host": host, "port": port, "sslmode": "prefer"}.String(), as)
	if err != nil {
		return nil, err
	}
	preferTLS(cfg)
	return cfg, nil
}

// ProxySession returns the configuration of a session by a connection string through a proxy.
func ProxySession(url string) (*pgx.ConnConfig, error) {
	cfg, err := ParseSession(url)
	if err != nil {
		return nil, err
	}
	preferTLS(cfg)
	return cfg, nil
}

// UpstreamSession returns the configuration of a session at a proxy's servers, with the user,
// password and database of another configuration.
func UpstreamSession(upstream string, as *pgx.ConnConfig) (*pgx.ConnConfig, error) {
	settings, err := connstring.Parse(upstream, "pooling")
	if err != nil {
		return nil, err
	}
	delete(settings, "pooling") // the proxy's own
	return sessionAs(settings.String(), as)
}

// sessionAs parses a connection string that names no user, and takes the user from another
// configuration.
func sessionAs(address string, as *pgx.ConnConfig) (*pgx.ConnConfig, error) {
	cfg, err := ParseSession(address)
	if err != nil {
		return nil, err
	}
	cfg.User, cfg.Password, cfg.Database, cfg.AfterNetConnect = as.User, as.Password, as.Database, as.AfterNetConnect
	return cfg, nil
}
